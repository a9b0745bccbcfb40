"""The kernels that eager calls on the device, against those that the aten cut calls."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

import foretrace
from foretrace.frontends.program import Cut
from foretrace.lowering.cuts.cut import Level, flatten
from tests.gpu.child import Circumstances, Finding
from tests.gpu.leaves import eagers_leaves
from tests.gpu.listing import leaves_of
from tests.gpu.programs import program
from tests.support.kernels import Call, Kernels, calls, kernel
from tests.support.subject import Subject

KEYS: Final = {"cpu": "CPU", "cuda": "CUDA"}
SHOWN: Final = 6
LISTED: Final = 200


def run(given: Circumstances) -> Iterator[Finding]:
    """One row: all kernels of a forward, with the sizes of what each gets."""
    with program(given.program, given.dtype, given.device) as subject:
        yield "eager's", *compared(subject, KEYS[given.device], planted="kernels" in given.plant)


def compared(subject: Subject, key: str, *, planted: bool = False) -> tuple[str, Any]:
    """Status and detail."""
    live = subject.fresh()
    program = foretrace.capture(live.fn, live.args, live.kwargs, values="guard")
    cut: Any = program.cut("aten")
    eager, ours = subject.fresh(), subject.fresh()
    eager.fn(*eager.args, **eager.kwargs)  # what is built at the first call
    cut(*ours.args, **ours.kwargs)
    eager, ours = subject.fresh(), subject.fresh()
    theirs = calls(lambda: eager.fn(*eager.args, **eager.kwargs), key)
    mine = calls(lambda: cut(*ours.args, **ours.kwargs), key)
    unread, theirs = without_unread(theirs, mine, dropped(program, cut))
    expected, found = total(theirs), total(mine)
    if planted:
        found = Counter({name: count + 1 for name, count in found.items()})
    if expected == found:
        return "same", {"said": f"and {len(unread)} of eager's that nothing reads"}
    said = f"eager's alone: {told(expected - found)}; the cut's alone: {told(found - expected)}"
    lists = {
        "kernels": {"eager": told(expected, LISTED), "ours": told(found, LISTED)},
        "eager": eagers_leaves(subject.fresh())[:LISTED],
        "ours": leaves_of(cut.graph_module)[:LISTED],
    }
    return "DIFFERS", {"said": said, **lists}


def without_unread(
    eager: list[Call], ours: list[Call], unread: Counter[str]
) -> tuple[list[Call], list[Call]]:
    """Eager's calls that the cut lacks as nothing reads what they give, and all others."""
    more = Counter((c.name, c.sizes) for c in eager) - Counter((c.name, c.sizes) for c in ours)
    left_out, others = list[Call](), list[Call]()
    for call in eager:
        if more[call.name, call.sizes] and unread[call.name]:
            more[call.name, call.sizes] -= 1
            unread[call.name] -= 1
            left_out.append(call)
        else:
            others.append(call)
    return left_out, others


def total(made: list[Call]) -> Kernels:
    """All kernels of several calls."""
    return sum((call.inside for call in made), Counter())


def dropped(program: foretrace.Program, cut: Cut) -> Counter[str]:
    """The operators that the capture saw and the cut has not: nothing reads what they give."""
    recorded = [str(op.target) for op in flatten(program.recorded.ops, Level(written=False))]
    whole = [str(node.target) for node in cut.graph_module.graph.nodes]
    return Counter(map(named, recorded)) - Counter(map(named, whole))


def named(target: str) -> str:
    """An operator as the profiler names it."""
    return kernel(target.removeprefix("aten.").partition(".")[0])


def told(found: Kernels, most: int = SHOWN) -> str:
    """The kernels by name, sizes and count."""
    return ", ".join(f"{name}{shape} x{n}" for (name, shape), n in list(found.items())[:most])
