"""The graph captured on the device, and the graph captured for its target without touching it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch

import foretrace
from tests.gpu.child import Circumstances, Finding, failure
from tests.gpu.listing import apart, nodes_of
from tests.gpu.programs import program
from tests.support.subject import Subject

LEVELS: Final = ("export", "aten", "joint", "forward", "backward")


def run(given: Circumstances) -> Iterator[Finding]:
    """A row for each graph, and one that says whether the device was touched."""
    with program(given.program, given.dtype, "cpu", given.device) as subject:
        before = torch.cuda.is_initialized()
        named = by_name(subject, given)
        touched = torch.cuda.is_initialized() and not before
    yield "untouched", *_untouched(given, before=before, touched=touched)
    with program(given.program, given.dtype, given.device) as subject:
        yield from compared(named, captured(subject, None))


@dataclass(frozen=True)
class Named:
    """A program captured for a target by name, and its cuts."""

    program: foretrace.Program
    graphs: dict[str, list[str]]


def by_name(subject: Subject, given: Circumstances) -> Named:
    """The program on the CPU, captured and cut for the device's target."""
    made = captured(subject, "meta" if "named" in given.plant else given.target)
    return Named(made, {level: listed(made, level) for level in LEVELS})


def compared(named: Named, here: foretrace.Program) -> Iterator[Finding]:
    """Each cut, node by node."""
    for level, others in named.graphs.items():
        yield level, *_compared(level, here, named.program, listed(here, level), others)


def captured(subject: Subject, target: str | None) -> foretrace.Program:
    """The program for a target; None: that of its inputs."""
    given = (subject.fn, subject.args, subject.kwargs)
    return foretrace.capture(*given, target=target, values="guard")


def listed(made: foretrace.Program, level: str) -> list[str]:
    """A cut's nodes, or what refuses it."""
    try:
        return nodes_of(made.cut(level).graph_module)
    except foretrace.Refusal as refusal:
        return [failure(refusal)[1]]


def _untouched(given: Circumstances, *, before: bool, touched: bool) -> tuple[str, Any]:
    if given.device != "cuda":
        return "skipped", f"{given.device} is no device that could be touched"
    if before:
        return "skipped", "the program itself touches the device before it is captured"
    if touched and given.dtype == "autocast":
        return "skipped", "torch.autocast('cuda') asks the device whether it has bfloat16"
    return ("DIFFERS", "the capture has initialised CUDA") if touched else ("same", "")


def _compared(
    level: str,
    here: foretrace.Program,
    named: foretrace.Program,
    ours: list[str],
    others: list[str],
) -> tuple[str, Any]:
    if ours == others:
        if len(ours) == 1 and ours[0].startswith("refused"):
            return ours[0], "both are refused"
        return "same", ""
    found = apart(ours, others)
    place = found["apart_at"]
    detail = {"on_the_device": found["eager"], "by_name": found["ours"], "apart_at": place}
    targets = f"{here.recorded.target} on the device, {named.recorded.target} by name"
    said = f"node {place} of {len(ours)}, {len(others)} ({targets})"
    why = [_why(each, level, lines, place) for each, lines in ((here, ours), (named, others))]
    return "DIFFERS", {"said": said, "why": why, **detail}


def _why(made: foretrace.Program, level: str, lines: list[str], place: int) -> str:
    """What the first node that differs comes from, with the choices on the way."""
    if place >= len(lines):
        return "the graph ends before it"
    name = lines[place].partition(":")[0]
    try:
        return str(made.cut(level).explain(name))[:2000]
    except (foretrace.Refusal, KeyError, ValueError) as error:
        return f"{type(error).__name__}: {error}"[:300]
