"""Floats that data decides: open in every graph, computed step by step as Python does.

Each program is captured once and called with other data; what it gives is eager's to the last bit.
"""

import copy
import math
import operator
import re
from collections.abc import Callable
from functools import partial
from math import copysign as with_sign, fabs as absolute
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given as drawing, settings, strategies as st
from torch import Tensor, nn

import foretrace
from tests.against_eager.test_from_data import (
    ROUTES,
    Inputs,
    OfFunction,
    exported,
    given,
    joint,
    made,
    same,
    trained,
)
from tests.support.bits import differences, same_bits
from tests.support.turns import crossed, some


def scaled(x: Tensor) -> Tensor:
    v = x.abs().max().item()
    return (x * (v * 2 + 0.1 + 0.2)).sum() + (1 - v / 3)


def by_alpha(x: Tensor, y: Tensor) -> Tensor:
    return torch.add(x, y, alpha=x.detach().mean()).sum() + x.sub(y, alpha=x.std().item()).sum()


def as_scalars(x: Tensor) -> Tensor:
    v = x.std().item()
    y = x.clamp(max=v) + (x / v).cos() + v * x + (v - x).exp() + torch.full((3,), v)
    z = F.leaky_relu(x, v) + F.threshold(x, v, 0.5) + torch.where(x > v, v, 0.0)
    return (y + z + torch.addcmul(x, x, x, value=v)).sum()


def as_tensors(x: Tensor) -> Tensor:
    v = x.detach().mean().item()
    return (torch.tensor(v) * x + x.new_tensor(v) + torch.tensor([v, 2.0, 1])[0]).sum()


def rounded(x: Tensor) -> Tensor:
    v = x.sum().item() * 3.7
    return (x * round(v) + abs(v) + (-v) + math.floor(v) + math.ceil(v) + math.trunc(v)).sum()


def divided(x: Tensor) -> Tensor:
    v = x.sum().item() + 0.25
    return (x * (v // 0.3) + v % 0.7 + divmod(v, 0.2)[0] + 3 // v + 5 % v).sum()


def rooted(x: Tensor) -> Tensor:
    v = x.detach().pow(2).sum().item()
    return (x * math.sqrt(v) + v**0.5).sum()


def of_libm(x: Tensor) -> Tensor:
    v = x.detach().pow(2).sum().item()
    return (x * math.exp(-v) + math.log(v + 1.0) + math.atan2(v, 0.3) + round(v, 2)).sum()


def of_elements(x: Tensor) -> Tensor:
    """Python takes `float` of a tensor with one element for its functions of numbers."""
    total = x.detach().pow(2).sum()
    counted = (x.detach() > 0).sum().view(1, 1) + 1
    grown = math.pow(counted, 0.5) * math.log(counted) + math.exp(-total) + math.ceil(total)
    return (x * math.sqrt(total) + grown).sum() + math.hypot(total, 2.0) * math.fmod(total, 0.3)


def corrected(x: Tensor, step: Tensor) -> Tensor:
    s = step.item()
    return (x * (1 - 0.9**s) / (1 - 0.999**s) + s / 3 + s * 0.1).sum()


def of_both_kinds(x: Tensor, n: Tensor) -> Tensor:
    v, k = x.detach().sum().item(), n.item()
    return (x[:k] * (k + v) * (k * v) / (k - v) + v**k + x.shape[0] * v).sum()


def clipped(x: Tensor) -> Tensor:
    total = (x.detach() * 3).norm().item()
    if total > 1:
        x = x * (1.0 / (total + 1e-6))
    return x.sum()


def largest(x: Tensor) -> Tensor:
    v, w = x.detach().sum().item(), x.detach().max().item()
    return (x * max(v, w, 0.0)).sum() + min(v, 0.5) + torch.sym_max(v, w)


def listed(x: Tensor) -> Tensor:
    a, b = x[:2].detach().tolist()
    return (x * a + b).sum()


def ranged(x: Tensor) -> Tensor:
    v = x.detach().abs().sum().item()
    return (
        torch.arange(v).sum() * x.sum()
        + torch.arange(0, float(x.detach().max()) + 4, 0.3).sin().sum()
        + x.pow(2).sum()
    )


class Counted(nn.Module):
    """Batch norm that averages over all batches: its momentum is 1 / their number."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4, momentum=None)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x).pow(3).sum()


class Averaged(nn.Module):
    """A moving average whose decay follows from a step count."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.register_buffer("average", torch.zeros(4))
        self.register_buffer("step", torch.zeros((), dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        self.step += 1
        decay = 1 - 1 / self.step.item() ** 0.5
        self.average.mul_(decay).add_(self.weight.detach(), alpha=1 - decay)
        self.average.lerp_(self.weight.detach(), (1 + self.step.item()) / (10 + self.step.item()))
        return (x * self.weight).sum() * (self.average.sum() + 1)


CASES: dict[str, tuple[Callable[[], Callable[..., Tensor]], list[Inputs]]] = {
    **{fn.__name__: (partial(copy.copy, fn), made(lambda: (torch.randn(3),)))
       for fn in (scaled, as_scalars, as_tensors, rounded, divided, rooted, of_libm, of_elements,
                  listed, ranged)},
    "by_alpha": (lambda: by_alpha, made(lambda: (torch.randn(4), torch.randn(4)))),
    "corrected": (lambda: corrected, [(torch.randn(4), torch.tensor(n)) for n in (3, 7, 12)]),
    "of_floats": (lambda: corrected, [(torch.randn(4), torch.tensor(n)) for n in (3.0, 7.5, 1.0)]),
    "of_both_kinds": (
        lambda: of_both_kinds, [(torch.rand(6), torch.tensor(n)) for n in (3, 2, 4)],
    ),
    "clipped": (lambda: clipped, made(lambda: (torch.randn(4) + 2,))),
    "largest": (lambda: largest, made(lambda: (torch.rand(4) - 2.0,))),
    "counted": (Counted, made(lambda: (torch.randn(5, 4),))),
    "averaged": (partial(Averaged, torch.int64), made(lambda: (torch.randn(4),))),
    "averaged_floats": (partial(Averaged, torch.float32), made(lambda: (torch.randn(4),))),
}  # fmt: skip
NO_FILE = {
    "of_libm": "has no exp of a number",
    "of_elements": "has no pow of a number",
    "rounded": "has no round of a number",
}


@pytest.mark.parametrize(("name", "route"), crossed(CASES, ROUTES))
def test_trains_on_other_data(name: str, route: str) -> None:
    make, calls = CASES[name]
    live: Any = make()
    eager = copy.deepcopy(live)
    call = ROUTES[route](live, foretrace.capture(live, given(calls[0]), verify=True), calls[0])
    for inputs in calls:
        assert same(trained(live, call, inputs), trained(eager, eager, inputs))
    assert route != "compile" or not call.recaptures


@pytest.mark.parametrize("name", some(2, CASES))
def test_joint_runs_on_other_data(name: str) -> None:
    make, calls = CASES[name]
    live: Any = make()
    eager = copy.deepcopy(live)
    cut = foretrace.capture(live, given(calls[0]), verify=True).cut("joint", loss=0)
    for inputs in calls:
        assert same(joint(live, cut, inputs), trained(eager, eager, inputs))


@pytest.mark.parametrize("name", some(2, [name for name in CASES if name not in NO_FILE], 1))
@pytest.mark.filterwarnings("ignore:the graph is for inputs")
def test_a_file_runs_on_other_data(name: str) -> None:
    make, calls = CASES[name]
    live: Any = make()
    eager = copy.deepcopy(live)
    module = exported(live, calls[0])
    for inputs in calls:
        assert same([module(*inputs)], [eager(*inputs)])


@pytest.mark.parametrize(
    ("fn", "line"),
    [(of_libm, "math.exp(-v)"), (of_elements, "math.exp(-total)"), (rounded, "round(v)")],
)
def test_a_file_has_few_functions_of_numbers(fn: Any, line: str) -> None:
    with pytest.raises(foretrace.Refusal, match=NO_FILE[fn.__name__]) as found:
        foretrace.export(OfFunction(fn), (torch.randn(3),))
    assert line in str(found.value)


# ---- any arithmetic ---------------------------------------------------------------------------


def power(one: Any, two: Any) -> Any:
    """Of integers alone it is ShapeEnv's."""
    return one ** (two * 1.0)


BINARY = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv,
          operator.mod, power, math.atan2, math.copysign, max, min]  # fmt: skip
UNARY = [operator.neg, abs, math.sqrt, math.exp, math.log1p, round, math.floor, math.trunc, int]
OPERANDS = st.one_of(
    st.integers(0, 7), st.floats(-4, 4, width=64), st.sampled_from([0.1, 0.2, 3, -1, 1e-3, 7.0])
)
"""An integer up to 7 is the place of an earlier number"""
STEPS = st.lists(
    st.tuples(st.sampled_from([*BINARY, *UNARY]), st.integers(0, 7), OPERANDS), max_size=8
)


PHASES = [phase for phase in Phase if phase is not Phase.shrink]
"""A failing program is short as it is"""


def computed(steps: list[Any], x: Tensor, n: Tensor) -> Any:
    """Straight-line arithmetic; a step that has no result leaves the number as it is."""
    numbers: list[Any] = [x.sum().item(), x.max().item(), n.item()]
    for function, place, other in steps:
        one = numbers[place % len(numbers)]
        two = numbers[other % len(numbers)] if type(other) is int else other
        numbers.append(function(one, two) if function in BINARY else function(one))
    return x * numbers[-1], *numbers[3:]


def bits_of(program: Callable[..., Any], *inputs: Tensor) -> list[Any] | None:
    """What a program gives; None where it raises."""
    try:
        found = program(*inputs)
    except (ArithmeticError, ValueError, TypeError, RuntimeError):
        return None
    return [each if isinstance(each, Tensor) else (type(each), repr(each)) for each in found]


@pytest.mark.parametrize("by", [0.1, -2.5, 7.0])
def test_a_count_that_became_a_number_divides_as_python_does(by: float) -> None:
    def program(x: Tensor, n: Tensor) -> Any:
        count = n.item()
        known = count if count == 2 else -1  # a guard: the symbol is the number from here on
        return known % by, by % known, known // by, known * by, known / by

    x, n = torch.randn(3, dtype=torch.float64), torch.tensor(2)
    recorded = foretrace.capture(program, (x, n))
    for call in (recorded.cut("aten"), recorded.compile()):
        assert bits_of(call, x, n) == bits_of(program, x, n)


@drawing(STEPS, st.integers(0, 1000))
@settings(max_examples=40, deadline=None, phases=PHASES)
def test_any_arithmetic_is_pythons(steps: list[Any], seed: int) -> None:
    torch.manual_seed(seed)
    calls = [(torch.randn(3, dtype=torch.float64), torch.tensor(n)) for n in (2, 5, -1)]
    program = partial(computed, steps)
    first = bits_of(program, *calls[0])
    if first is None or any(kind is complex for kind, _ in first[1:]):
        return
    recorded = foretrace.capture(program, calls[0])
    for call in (recorded.cut("aten"), recorded.compile()):
        for number, inputs in enumerate(calls):
            eager, found = bits_of(program, *inputs), bits_of(call, *inputs)
            if found is None and number:  # what Python asked has another answer
                assert eager is None or recorded.guards
                continue
            assert eager is not None
            assert found is not None
            assert same_bits(found[0], eager[0])
            assert found[1:] == eager[1:]


# ---- what is asked of them --------------------------------------------------------------------


def compared(x: Tensor) -> Tensor:
    return x * 2 if x.sum().item() > 3 else x - 1


def formatted(x: Tensor) -> Any:
    return x * 2, f"{x.sum().item():.3f}"


def keyed(x: Tensor) -> Tensor:
    return x * {3.0: 2}.get(x.sum().item(), 1)


def looked_at(x: Tensor) -> Tensor:
    return x if math.isnan(x.sum().item()) else -x


def fixed(x: Tensor) -> Tensor:
    return x * absolute(x.sum().item())


def of_sign(x: Tensor) -> Tensor:
    return x + with_sign(1.0, x.sum().item() * 0.0)


ONES = torch.ones(3)
NAN = torch.tensor([1.0, math.nan, 2.0])
ASKED = {
    "compared": (compared, ONES, ONES * 2, "if x.sum().item() > 3"),
    "formatted": (formatted, ONES, ONES * 2, ":.3f"),
    "keyed": (keyed, ONES, ONES * 2, "{3.0: 2}"),
    "looked_at": (looked_at, ONES, NAN, "math.isnan"),
    "fixed": (fixed, ONES, ONES * 2, "absolute(x.sum()"),
    "fixed_nan": (fixed, NAN, ONES, "absolute(x.sum()"),
    "of_sign": (of_sign, ONES, -ONES, "with_sign"),
}


@pytest.mark.parametrize("name", ASKED)
def test_every_graph_raises_on_another_answer(name: str) -> None:
    fn, then, now, line = ASKED[name]
    program = foretrace.capture(fn, (then,))
    for call in (program.cut("export"), program.cut("aten"), program.cut("aten").graph_module,
                 program.compile()):  # fmt: skip
        call(then)
        with pytest.raises(RuntimeError, match="guard broken") as raised:
            call(now)
        assert line in str(raised.value)
    assert any(line in str(guard) for guard in program.guards)


@pytest.mark.parametrize("name", ASKED)
def test_compile_captures_another_answer(name: str) -> None:
    fn, then, now, _ = ASKED[name]
    compiled: Any = foretrace.compile(fn, fullgraph=True)
    for answer in (then, now, then, now):
        assert repr(compiled(answer)) == repr(fn(answer))
    assert len(compiled.recaptures) == 1


@pytest.mark.parametrize("inputs", [ONES, ONES * 2, NAN, -ONES])
def test_both_sides_of_a_comparison(inputs: Tensor) -> None:
    def program(x: Tensor) -> Tensor:
        total = x.sum()
        return x * math.sqrt(total.item()) if total.item() * 3 > 3 else x - total.item()

    call = foretrace.capture(program, (ONES,), branches="both").cut("aten")
    assert same_bits(call(inputs), program(inputs))


def test_a_float_is_one_to_the_program() -> None:
    def program(x: Tensor) -> Tensor:
        return x * 2 if isinstance(x.sum().item(), float) else x

    assert same_bits(foretrace.capture(program, (ONES,)).cut("aten")(ONES), ONES * 2)


def test_a_number_that_is_returned_is_this_calls() -> None:
    def program(x: Tensor) -> Any:
        return x * 2, {"loss": x.sum().item() * 0.1}

    recorded = foretrace.capture(program, (ONES,))
    for call in (recorded.cut("export"), recorded.cut("aten"), recorded.compile()):
        for x in (ONES, ONES / 3, NAN):
            assert repr(call(x)) == repr(program(x))


@pytest.mark.parametrize("exponent", [0.5, 2])
def test_a_derivative_that_asks_for_the_number_is_for_it_alone(exponent: float) -> None:
    """That of `pow` computes with its exponent in C++."""

    def program(x: Tensor) -> Tensor:
        return (x ** x.detach().max().item()).sum()

    first, other = (torch.tensor([1.5, 2.5], requires_grad=True) * n for n in (1, exponent))
    cut = foretrace.capture(program, (first.detach().requires_grad_(),)).cut("joint", loss=0)
    with pytest.raises(
        RuntimeError, match="guard broken: Runtime assertion failed for expression Eq"
    ):
        cut(other.detach().requires_grad_())


def test_steps_are_told() -> None:
    program = foretrace.capture(scaled, (torch.randn(3),))
    cut = program.cut("aten")
    (line,) = [line for line in str(cut.explain("mul")).splitlines() if "written" in line]
    assert line.split() == ["written", "mul"]
    assert "Python computes it of numbers" in str(cut.explain("mul"))


@pytest.mark.parametrize("refused", ["meta", "refuse", "complex"])
def test_what_stays_refused(refused: str) -> None:
    x = ONES.to("meta") if refused == "meta" else ONES * (1j if refused == "complex" else 1)
    values: Any = "refuse" if refused == "refuse" else "guard"
    with pytest.raises(foretrace.Refusal, match="depends on the inputs") as found:
        foretrace.capture(lambda x: x * x.sum().item(), (x,), values=values)
    assert found.value.kind == "data-dependent"


def numbers_alone(x: Tensor) -> Any:
    v = x.item()
    return v, v * 2 + 0.1, math.exp(v), math.floor(v), int(v > 0), [x * 2, -v]


def beside_a_history(x: Tensor) -> Any:
    v = x.detach().sin().item()
    return x * v, v / 3


def rows_of(x: Tensor) -> Any:
    places = x.reshape(1).expand(5)[: int(x.detach() > -9)].nonzero()
    return places, places.shape[0] * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager", lambda module, inputs: module])
@pytest.mark.parametrize("program", [numbers_alone, beside_a_history, rows_of])
def test_numbers_are_returned_by_every_backend(program: Any, backend: Any) -> None:
    """Also by one that gets graphs, which give them beside their tensors."""
    compiled = foretrace.compile(program, backend=backend)
    for number in (0.5, 2.25, -0.75):
        ours, eager = (torch.tensor(number, requires_grad=True) for _ in range(2))
        assert not [*differences(program(eager), compiled(ours), "")]
    assert len(compiled.recaptures) <= 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_an_integer_of_a_float_is_a_step_of_pythons(backend: str) -> None:
    """And not of what stands in the place of `math.trunc` while a program is recorded."""

    def whole(x: Tensor) -> Tensor:
        return torch.ones(3) * int(x.item())

    compiled = foretrace.compile(whole, backend=backend)
    for number in (2.5, 2.75, 4.5):
        x = torch.tensor(number)
        assert same([compiled(x)], [whole(x)])
    program = foretrace.capture(whole, (torch.tensor(2.5),))
    targets = [node.target for node in program.cut("aten").graph_module.graph.nodes]
    assert math.trunc in targets


def test_what_nobody_reads_and_takes_a_float_stays_if_it_may_raise() -> None:
    """It is asked with many floats, as any may come."""

    def unread(x: Tensor) -> Tensor:
        v = x.item()
        x * v
        torch.ones(3).softmax(0) * v
        torch.ones(3).clamp(min=v)
        return x + 1

    nodes = foretrace.capture(unread, (torch.tensor(0.5),)).cut("aten").nodes
    assert not {"mul", "clamp"} & set(nodes)

    def raises(x: Tensor) -> Tensor:
        v = x.item()
        torch.ones(2, 2).renorm(2, 0, v)
        return x + 1

    def wrong(x: Tensor) -> Tensor:
        return torch.ones(2).renorm(2, 0, x.item())

    with pytest.raises(foretrace.Refusal, match="at least 2 dimensions"):
        foretrace.capture(wrong, (torch.tensor(0.5),))

    kept = foretrace.capture(raises, (torch.tensor(0.5),)).cut("aten")
    for call in (raises, kept):
        with pytest.raises(RuntimeError):
            call(torch.tensor(-2.0))


@pytest.mark.parametrize("fn", [math.prod, math.fsum])
def test_a_function_that_iterates_gets_the_tensor(fn: Callable[..., Any]) -> None:
    x = torch.tensor([[0.5], [2.0]])
    compiled = foretrace.compile(lambda x: x * fn(x))
    for inputs in (x, x + 1):
        assert same_bits(compiled(inputs), inputs * fn(inputs))


@pytest.mark.parametrize("name", ["trunc", "sqrt", "isclose"])
def test_what_has_no_float_raises_as_in_eager(name: str) -> None:
    x = torch.tensor([0.5, 2.0] if name == "sqrt" else [0.5])

    def program(x: Tensor) -> Tensor:
        return x * getattr(math, name)(x)

    with pytest.raises((TypeError, ValueError, RuntimeError)) as eagers:
        program(x)
    with pytest.raises(type(eagers.value), match=re.escape(str(eagers.value))):
        foretrace.compile(program)(x)


ROOT = math.sqrt
BY_FUNCTION = {math.sqrt: 2.0, math.exp: 3.0}
LINEAR, SEED = torch.linspace, torch.manual_seed
MAKERS: dict[Any, Any] = {torch.linspace: torch.linspace, torch.tensor: torch.tensor}


class Keeps(nn.Module):
    """Keeps a function of `math` that it names."""

    def forward(self, x: Tensor) -> Any:
        self.kept = math.sqrt
        return x * self.kept(4.0)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * (2.0 if ROOT is math.sqrt else 3.0),
        lambda x: x * BY_FUNCTION[math.sqrt],
        lambda x: x * (2.0 if ROOT in (math.exp, math.sqrt) else 3.0),
        lambda x: x * sum(map(math.sqrt, [1.0, x.abs().max().item()])),
        lambda x: x * (2.0 if LINEAR is torch.linspace else 3.0),
        lambda x: x * MAKERS[torch.linspace](0.0, 1.0, len(x)),
        lambda x: x * (2.0 if SEED is torch.manual_seed else 3.0),
        lambda x: MAKERS[torch.tensor]([x.abs().max().item(), 1.0]) * x,
    ],
)
def test_a_function_is_itself_where_it_is_not_just_called(program: Any) -> None:
    x = torch.tensor([0.5, 2.0])
    compiled = foretrace.compile(program, fullgraph=True)
    for inputs in (x, x + 1):
        assert same_bits(compiled(inputs), program(inputs))


def test_a_function_of_math_stays_itself_in_an_attribute() -> None:
    live = Keeps()
    foretrace.compile(live, fullgraph=True)(torch.ones(2))
    assert live.kept is math.sqrt
