"""The attention kernel that foretrace expects, against the one that eager takes on the device."""

from collections.abc import Iterator
from typing import Any, Final

import torch

from foretrace.errors import Refusal
from foretrace.ir.program.interface import Target
from foretrace.operators.targets.profile import target_of
from foretrace.operators.targets.sdpa import choose_attention
from tests.gpu.attention import Row, grid, seen
from tests.gpu.child import Circumstances, Finding
from tests.unit.operators.targets.attention_calls import Call

RAISES: Final = ("wrong call", "no attention kernel")
"""Refusals that say that eager raises, too."""


def run(given: Circumstances) -> Iterator[Finding]:
    """One row, or one for each call that differs."""
    place = torch.device(given.device, 0) if given.device == "cuda" else torch.device(given.device)
    target = target_of("meta" if "choices" in given.plant else None, place)
    if "choices" in given.plant:
        place = torch.device("meta")
    rows = grid()[given.program.removeprefix("attention, ")]
    wrong = [found for row in rows if (found := compared(row, target, place, given.device))]
    yield from (("SDPA", "DIFFERS", each) for each in wrong[:50])
    if not wrong:
        yield "SDPA", "same", {"said": f"{len(rows)} calls"}


def compared(row: Row, target: Target, place: torch.device, device: str) -> dict[str, Any] | None:
    """What differs, with the call as data."""
    choice, kernel = seen(row, device)
    ours, why = expected(row, target, place)
    if agree(ours, choice, kernel):
        return None
    said = f"{ours} expected, torch chooses {choice}, eager calls {kernel}"
    return {"said": said, "call": row, "why": why, "target": str(target)}


def expected(row: Row, target: Target, place: torch.device) -> tuple[str, Any]:
    """The kernel that foretrace names, and its reasons."""
    try:
        choice = choose_attention(target, Call.read(row).typed(place))
    except Refusal as refusal:
        return ("error" if refusal.kind in RAISES else f"refused({refusal.kind})"), str(refusal)
    return choice.value, [choice.reason, *choice.rejected]


def agree(ours: str, choice: str, kernel: str) -> bool:
    """Whether it is the kernel that runs; where none runs to its end, the one that is chosen."""
    if not kernel.startswith("error"):
        return ours == kernel
    return ours in {choice, "error"}
