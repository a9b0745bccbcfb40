"""The kernels that eager calls on the device, against those that the aten cut calls."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import foretrace
from tests.gpu.child import Circumstances, Finding
from tests.gpu.listing import eagers_leaves, leaves_of
from tests.gpu.programs import program
from tests.kernels import Kernels, kernels
from tests.subject import Subject

KEYS: Final = {"cpu": "CPU", "cuda": "CUDA"}
SHOWN: Final = 6
LISTED: Final = 400


def run(given: Circumstances) -> Iterator[Finding]:
    """One row: all kernels of a forward, with the shape of the first that each gets."""
    with program(given.program, given.dtype, given.device) as subject:
        yield "eager's", *compared(subject, KEYS[given.device], planted=given.plant == "kernels")


def compared(subject: Subject, key: str, *, planted: bool = False) -> tuple[str, Any]:
    """Status and detail."""
    live = subject.fresh()
    cut = foretrace.capture(live.fn, live.args, live.kwargs).cut("aten")
    eager, ours = subject.fresh(), subject.fresh()
    cut(*ours.args, **ours.kwargs)  # what is built at the first call
    ours = subject.fresh()
    expected = kernels(lambda: eager.fn(*eager.args, **eager.kwargs), key)
    found = kernels(lambda: cut(*ours.args, **ours.kwargs), key)
    if planted:
        found = Counter({name: count + 1 for name, count in found.items()})
    if expected == found:
        return "same", ""
    said = f"eager's alone: {told(expected - found)}; the cut's alone: {told(found - expected)}"
    lists = {
        "kernels": {"eager": told(expected, LISTED), "ours": told(found, LISTED)},
        "eager": eagers_leaves(subject.fresh())[:LISTED],
        "ours": leaves_of(cut.graph_module)[:LISTED],
    }
    return "DIFFERS", {"said": said, **lists}


def told(found: Kernels, most: int = SHOWN) -> str:
    """The kernels by name, first shape and count."""
    return ", ".join(f"{name}{shape} x{n}" for (name, shape), n in list(found.items())[:most])
