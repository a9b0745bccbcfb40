"""Every route that promises eager's bits runs eager's kernels, over operands that lie as eager's.

What a route runs more often than eager, by kernel, sizes, strides, dtypes and numbers, is a
difference. Where it may run ops again (a policy's backward, a step that asks after it has begun),
it is what eager never runs. What eager runs more often is work that a graph does not need.

Places are not compared: a cut leaves out, a policy moves, and independent ops may run in any order.
That each result is fed where eager feeds it, the comparisons of values see on every processor.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import foretrace
from tests.programs import CASES, Case
from tests.steps import STEPS, Step
from tests.steps.failing import FAILS
from tests.support import compare, own_leaves
from tests.support.bits import tensors
from tests.support.other_kernels import LISTED, listed
from tests.support.pairs import PairCut
from tests.support.ran import Call, ran
from tests.support.steps import built
from tests.support.subject import Snapshot, Subject
from tests.support.turns import crossed, one_in

pytestmark = [
    pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight"),
    pytest.mark.filterwarnings("ignore:.* was captured again 8 times"),
]

BATCHES = 4
"""The last of these is looked at: by then a step is captured, and its optimizer has its state"""
BY_NAME = [pytest.param(case, id=f"{case.section}.{name}") for name, case in CASES.items()]
WHOLE = [
    pytest.param(step, id=f"{step.section}.{name}")
    for name, step in STEPS.items()
    if not step.breaks and name not in FAILS
]


@dataclass(frozen=True)
class Route:
    """How a program is run: the cut or callable, and in which mode."""

    cut: str = ""
    policy: str = ""
    backend: Any = None
    grad: bool = True

    @property
    def again(self) -> bool:
        """Whether it may run forward ops once more."""
        return bool(self.policy or (self.backend and self.grad))

    def made(self, case: Case, live: Subject) -> Callable[..., object]:
        """What is called in the program's place."""
        if self.backend:
            return foretrace.compile(live.fn, backend=self.backend, fullgraph=True)
        program = foretrace.capture(live.fn, live.args, live.kwargs)
        if self.policy:
            return PairCut(*program.pair(loss=case.loss, policy=self.policy))
        return program.cut(self.cut, **({"loss": case.loss} if self.cut == "joint" else {}))

    def fits(self, case: Case) -> bool:
        """Whether there is something to differentiate, where it does."""
        return case.train or not (self.policy or self.cut == "joint")


ROUTES = {
    "export": Route("export"), "aten": Route("aten"), "joint": Route("joint"),
    **{policy: Route(policy=policy) for policy in ("min_cut", "save_all", "recompute_all")},
    "compiled": Route(backend="eager"), "compiled no_grad": Route(backend="eager", grad=False),
    "graph modules": Route(backend=lambda module, inputs: module),
    "graph modules no_grad": Route(backend=lambda module, inputs: module, grad=False),
}  # fmt: skip
WAYS = [pytest.param(route, id=name) for name, route in ROUTES.items()]


def run(case: Case, route: Route, called: Callable[..., Any], given: Subject) -> Counter[Call]:
    """The kernels of one run, forward and, where the route has one, backward.

    Of the program itself, too: `called` is the function then. What is written is put back.
    """
    torch.default_generator.manual_seed(0)
    one_call = called is not given.fn and bool(route.policy or route.cut == "joint")
    back = route.grad and route.cut != "aten"

    def go() -> None:
        with torch.set_grad_enabled(route.grad):
            if one_call:
                tangents = {} if case.loss is not None else {"tangents": ones}
                called(*given.args, **given.kwargs, **tangents)
                return
            outputs = called(*given.args, **given.kwargs)
        named = tensors(outputs, "output")
        if back and any(tensor.requires_grad for _, tensor in named):
            compare._backward(outputs, case.loss, compare._tangents(named))

    ones: list[Tensor] = tangents_of(case) if one_call and case.loss is None else []
    before = Snapshot.take(given)
    found = ran(go)
    before.put_back()
    return found


def tangents_of(case: Case) -> list[Tensor]:
    """Those of one run of eager."""
    given = case.subject()
    torch.default_generator.manual_seed(0)
    return compare._tangents(tensors(given.fn(*given.args, **given.kwargs), "output"))


def runs(case: Case, route: Route) -> bool:
    """Not under `no_grad` what hooks a tensor or asks for a gradient."""
    given = case.subject().fresh()
    try:
        with torch.set_grad_enabled(route.grad):
            given.fn(*given.args, **given.kwargs)
    except (RuntimeError, AssertionError):
        return False
    return True


def more(ours: Counter[Call], eager: Counter[Call], *, again: bool = False) -> Counter[Call]:
    """What runs more often than in eager; where ops may run again, what eager never runs."""
    return (
        Counter({each: n for each, n in ours.items() if each not in eager})
        if again
        else (ours - eager)
    )


def check(name: str, ours: Counter[Call], eager: Counter[Call], *, again: bool = False) -> None:
    """Fail on kernels that are not listed for a program."""
    wrong = [
        f"{n} x {call[0]}{call[1]}"
        for call, n in more(ours, eager, again=again).items()
        if not listed(name, call[0], again=call in eager)
    ]
    assert not wrong, "other kernels than eager's:\n  " + "\n  ".join(wrong)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(("case", "route"), crossed(one_in(5, BY_NAME, 2), WAYS))
def test_of_programs(case: Case, route: Route) -> None:
    same_kernels(case, route)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("transposed_indices", "aten"), ("rows_scanned", "joint"),
        ("rows_scanned_by_a_layer", "joint"), ("products_folded_under_no_grad", "export"),
    ],
)  # fmt: skip
def test_of_those_that_had_others(name: str, way: str) -> None:
    """Each had kernels that are none of eager's, of equal values on most processors."""
    same_kernels(CASES[name], ROUTES[way])


def same_kernels(case: Case, route: Route) -> None:
    """Fail on kernels that run more often than in eager, and are not listed."""
    if not route.fits(case) or not runs(case, route):
        pytest.skip("nothing to differentiate, or eager raises")
    given = case.subject()
    live = given.fresh()

    def once() -> Callable[..., object]:
        called = route.made(case, live)
        with torch.set_grad_enabled(route.grad):
            fresh = given.fresh()
            run(case, route, called, Subject(live.fn, fresh.args, fresh.kwargs))
        return called

    if case.name in own_leaves.NAMES and callable(route.backend) and route.grad:
        own_leaves.check_refused(once)
        return
    try:
        called = once()
    except foretrace.Refusal as refusal:
        if not case.may_refuse:
            raise
        pytest.xfail(f"{case.may_refuse}: {refusal}")
    eager = given.fresh()
    expected = run(case, route, eager.fn, eager)
    fresh = given.fresh()
    found = run(case, route, called, Subject(live.fn, fresh.args, fresh.kwargs))
    check(case.name, found, expected, again=route.again)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("step", one_in(12, WHOLE, 5))
def test_of_steps(step: Step) -> None:
    """One batch of a step that is captured whole."""
    seen = []
    for compile in (lambda fn: fn, partial(foretrace.compile, fullgraph=True)):
        loop = built(step.build)
        call = compile(loop.step)
        for index in range(BATCHES - 1):
            call(*loop.batch(index))
        batch = loop.batch(BATCHES - 1)
        seen.append(ran(lambda call=call, batch=batch: call(*batch)))
    check(step.name, seen[1], seen[0], again=True)


def test_a_product_over_other_shapes_is_seen() -> None:
    """The comparison fails where a batch is multiplied at once, though the values be equal."""
    rows, matrix = torch.ones(2, 3, 4), torch.ones(4, 5)
    one, other = ran(lambda: [row @ matrix for row in rows]), ran(lambda: rows @ matrix)
    assert [name for name, _ in more(other, one)] == ["mm"]
    assert not more(one, ran(lambda: [row @ matrix for row in rows]))
    transposed = ran(lambda: matrix.t() @ rows[0].t())
    assert more(transposed, ran(lambda: matrix.t().contiguous() @ rows[0].t()))


def test_the_kernels_of_a_backward_are_seen() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    names = {name for name, _ in ran(lambda: (x @ x.t()).tanh().sum().backward())}
    assert {"mm", "tanh", "sum", "tanh_backward"} <= names


def test_each_program_of_the_list_is_one() -> None:
    known = {*CASES, *STEPS}
    assert len(LISTED) <= 10
    assert not {name for each in LISTED for name in each.programs if name not in known}
