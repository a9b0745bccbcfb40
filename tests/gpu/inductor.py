"""foretrace.compile by Inductor, held against eager by the rule of tests/dropin/test_inductor.py.

Inductor reorders sums, so its bits are not eager's: what torch allows it on whole models is `near`,
and where a model is harder than that, ours may be twice as far from eager as torch.compile is.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import Tensor
from torch._dynamo.utils import same
from torch._inductor import config

import foretrace
from tests.gpu.child import Circumstances, Finding
from tests.gpu.cuts import Bench
from tests.gpu.programs import program
from tests.gpu.runs import Run, differing, forward
from tests.support.bits import tensors
from tests.support.shortened import shortened
from tests.support.subject import modules_of

WORSE: Final = 2  # times as far from eager as torch.compile, at most
Named = dict[str, Tensor | None]


def run(given: Circumstances) -> Iterator[Finding]:
    """One row."""
    with program(given.program, given.dtype, given.device) as subject:
        for module in modules_of(subject.fn):
            shortened(module)
        bench = Bench(subject, given.device)
        with config.patch(fallback_random=True):
            yield "compile inductor", *compared(bench, planted="inductor" in given.plant)


def compared(bench: Bench, *, planted: bool = False) -> tuple[str, Any]:
    """Status and detail, with how far both are from eager."""
    expected, found = bench.expected, by_inductor(foretrace.compile, bench)
    wanted, ours = named(expected), named(found)
    if planted:
        ours = {name: t if t is None else t + torch.ones_like(t) for name, t in ours.items()}
    wrong = [name for name, each in wanted.items() if facts(each) != facts(ours.get(name))]
    if wrong or wanted.keys() != ours.keys():
        return "DIFFERS", {"said": f"dtype, sizes or presence: {wrong or sorted(ours)}"}
    if not planted and not differing(expected, found, flags=False):
        return "same", ""
    far = [name for name, each in wanted.items() if not same(each, ours[name])]
    torchs = named(by_inductor(torch.compile, bench)) if far else {}
    apart = {name: [distance(wanted[name], each[name]) for each in (ours, torchs)] for name in far}
    worse = {name: two for name, two in apart.items() if not two[0] <= WORSE * two[1]}
    if worse:
        return "DIFFERS", {"said": f"ours and torch.compile's distance: {worse}", "all": apart}
    said = f"{len(far)} of {len(wanted)} held against torch.compile" if far else "within 1e-4"
    return "near", {"said": "as near to eager as Inductor is", "how": said, "apart": apart}


def by_inductor(compiler: Callable[..., Any], bench: Bench) -> Run:
    """A step of the compiled program."""
    torch._dynamo.reset()
    return bench.over(forward(compiler(bench.live.fn, backend="inductor")))


def named(ran: Run) -> Named:
    """Outputs, gradients and what was written."""
    seen = ran.seen
    lists: dict[str, list[Any]] = {
        "gradient": seen.gradients,
        "input": seen.inputs,
        "state": seen.state,
    }
    flat = {f"{kind} {i}": t for kind, found in lists.items() for i, t in enumerate(found)}
    return {**{name: t.detach() for name, t in tensors(seen.outputs, "output")}, **flat}


def facts(tensor: Tensor | None) -> tuple[Any, ...]:
    """What must be equal whoever compiles."""
    return () if tensor is None else (tensor.dtype, tuple(tensor.shape))


def distance(one: Tensor | None, other: Tensor | None) -> float:
    """The largest difference of an element."""
    if one is None or other is None:
        return 0.0 if one is other else float("inf")
    return float((one.double() - other.double()).abs().max())
