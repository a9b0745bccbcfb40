"""Runs on a device: as tests/databases/seen.py sees them, and the device's random state."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch

from tests.databases.seen import SEED, Seen, _findings as findings, forward_run, joint_run
from tests.support.subject import Snapshot, Subject

AGAIN: Final = 4  # further runs of eager, where something differs
SHOWN: Final = 12  # differences that a row tells

Runner = Callable[[Subject], Seen]
Lines = dict[str, str]
"""What differs, by what it differs in: "gradients[3]", "output.0"."""


@dataclass(frozen=True)
class Run:
    """What a run gave and left, and the device's random state after it."""

    seen: Seen
    random: bytes


def once(runner: Runner, subject: Subject, device: str) -> Run:
    """One run from a seed; the subject's tensors are afterwards as they were."""
    before = Snapshot.take(subject)
    try:
        with seeded(device):
            seen = runner(subject)
            random = state(device)
        return Run(kept(seen), random)
    finally:
        before.put_back()


@contextmanager
def seeded(device: str) -> Iterator[None]:
    """The device's generator at the seed that seen.py gives the CPU's."""
    if device == "cuda":
        torch.cuda.manual_seed_all(SEED)
    yield


def state(device: str) -> bytes:
    """The state of the device's generator."""
    found = torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()
    return bytes(found.tolist())


def kept(seen: Seen) -> Seen:
    """The same with copies of what the snapshot puts back."""
    seen.inputs = [tensor.clone() for tensor in seen.inputs]
    seen.state = [tensor.clone() for tensor in seen.state]
    return seen


def eager(subject: Subject) -> Seen:
    """The program itself."""
    return forward_run(subject.fn, subject)


def forward(cut: Callable[..., Any]) -> Runner:
    """What is called like the program, and autograd's backward through it."""
    return lambda subject: forward_run(cut, subject)


def joint(cut: Callable[..., Any], tangents: Any) -> Runner:
    """What takes the tangents and gives the gradients."""
    return lambda subject: joint_run(cut, subject, tangents)


def differing(left: Run, right: Run, *, flags: bool) -> Lines:
    """Everything that is not bitwise equal: values, types, strides, aliasing, random numbers."""
    found: Lines = {}
    for _, line in findings(left.seen, right.seen, undefined=False, flags=flags):
        found.setdefault(line.partition(":")[0], line)
    if left.random != right.random:
        found["random state"] = "the device's random state after the run differs"
    return found


def judged(
    expected: Run, found: Run, again: Callable[[], Run], *, flags: bool
) -> tuple[str, dict[str, Any]]:
    """Status and detail: "skipped" where all that differs is what eager does not repeat."""
    lines = differing(expected, found, flags=flags)
    if not lines:
        return "same", {}
    unsteady: Lines = {}
    for _ in range(AGAIN):
        unsteady |= differing(expected, again(), flags=True)
    mine = {name: line for name, line in lines.items() if name not in unsteady}
    if mine:
        said = f"{len(mine)} differ: {'; '.join(list(mine.values())[:SHOWN])}"
        return "DIFFERS", {"said": said, "unsteady": sorted(unsteady)}
    shown = ", ".join(sorted(lines)[:SHOWN])
    said = "eager differs from run to run"
    return "skipped", {"said": said, "what": shown, "ours": list(lines.values())[:SHOWN]}
