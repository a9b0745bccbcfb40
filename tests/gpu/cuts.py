"""Every cut, the pair and the compiled callable beside eager, on the device, to the last bit."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch

import foretrace
from tests.gpu.child import Circumstances, Finding, failure
from tests.gpu.leaves import eagers_leaves
from tests.gpu.listing import apart, leaves_of
from tests.gpu.programs import program
from tests.gpu.runs import Run, Runner, eager, forward, joint, judged, once
from tests.support.pairs import PairCut
from tests.support.subject import Subject

TRAINED: Final = ("export", "aten", "compile eager")
"""What gives outputs that autograd follows."""


@dataclass
class Bench:
    """One program on the device, its eager run, and what is captured from it."""

    subject: Subject
    device: str

    @cached_property
    def live(self) -> Subject:
        """What is captured; each cut reads its parameters, so each run is over it."""
        return self.subject.fresh()

    @cached_property
    def captured(self) -> foretrace.Program:
        """The capture, for all cuts."""
        live = self.live
        return foretrace.capture(live.fn, live.args, live.kwargs, values="guard")

    def again(self) -> Run:
        """Another run of eager."""
        return once(eager, self.subject.fresh(), self.device)

    def over(self, runner: Runner) -> Run:
        """A run over the captured parameters and fresh inputs."""
        fresh = self.subject.fresh()
        return once(runner, Subject(self.live.fn, fresh.args, fresh.kwargs), self.device)

    @cached_property
    def expected(self) -> Run:
        """Eager's run, that all others are held against."""
        return self.again()

    @property
    def tangents(self) -> list[torch.Tensor]:
        """Those of the eager run."""
        return self.expected.seen.tangents


def routes(bench: Bench) -> dict[str, Callable[[], tuple[Any, Runner]]]:
    """How each callable is made, and how it is run."""

    def cut(level: str) -> Callable[[], tuple[Any, Runner]]:
        def make() -> tuple[Any, Runner]:
            made = bench.captured.cut(level)
            runner = joint(made, bench.tangents) if level == "joint" else forward(made)
            return made, runner

        return make

    def pair() -> tuple[Any, Runner]:
        made = PairCut(*bench.captured.pair())
        return made, joint(made, bench.tangents)

    def compiled() -> tuple[Any, Runner]:
        made = foretrace.compile(bench.live.fn, fullgraph=True)
        return made, forward(made)

    made: dict[str, Callable[[], tuple[Any, Runner]]] = {
        name: cut(name) for name in ("export", "aten", "joint")
    }
    return {**made, "pair": pair, "compile eager": compiled}


def run(given: Circumstances) -> Iterator[Finding]:
    """A row for each route."""
    with program(given.program, given.dtype, given.device) as subject:
        bench = Bench(subject, given.device)
        yield from compared(bench, planted="cuts" in given.plant)


def compared(bench: Bench, *, planted: bool = False) -> Iterator[Finding]:
    """Each route held against eager; what it raises is its row."""
    for name, make in routes(bench).items():
        if name in ("joint", "pair") and not bench.tangents:
            yield name, "skipped", "no output requires grad"
            continue
        try:
            made, runner = make()
            if planted:
                runner = wrong(runner)
            flags = name in TRAINED
            status, detail = judged(bench.expected, bench.over(runner), bench.again, flags=flags)
            if status == "DIFFERS":
                detail |= listed(bench, made)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is found
            yield failure(error, name)
        else:
            yield name, status, detail


def wrong(runner: Runner) -> Runner:
    """The same with the last bit of each floating output another, to see that it is told."""

    def planted(subject: Subject) -> Any:
        seen = runner(subject)
        seen.outputs = torch.utils._pytree.tree_map_only(torch.Tensor, nudged, seen.outputs)
        return seen

    return planted


def nudged(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    return torch.nextafter(tensor.detach(), torch.full_like(tensor, torch.inf))


def listed(bench: Bench, made: Any) -> dict[str, Any]:
    """What eager ran and what the graph has, leaf by leaf from where they part."""
    halves = [made.forward, made.backward] if isinstance(made, PairCut) else [made]
    graphs = [half.graph_module for half in halves if hasattr(half, "graph_module")]
    ours = [line for graph in graphs for line in leaves_of(graph)]
    return apart(eagers_leaves(bench.subject.fresh()), ours)
