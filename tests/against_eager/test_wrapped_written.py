"""Writes to tensors of classes that wrap others: to the last bit, also in what they leave."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor

import foretrace
from foretrace.runtime.calls.run_cut import run_pair
from tests.support.wrapped import Masked, aten, differences, made_alike, nested, two


class Writing(Masked):
    """Its in-place operators leave the mask."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (aten.mul_.Tensor, aten.fill_.Scalar):
            func(args[0].held, *args[1:])
            return args[0]
        return super().__torch_dispatch__(func, types, args, kwargs)


class Beside(Masked):
    """It computes by writing to a wrapping tensor of its own."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.sin.default:
            both = TwoTensor(args[0].held.clone(), args[0].held.exp())
            both.mul_(2)
            return cls(both.a * both.b, args[0].mask)
        return super().__torch_dispatch__(func, types, args, kwargs)


def of_masked(kind: type[Masked]) -> Masked:
    return kind(torch.randn(3, 4), torch.rand(3, 4) > 0.5)


def added(w: Any) -> Any:
    w.add_(1)
    return w * 2


def given_back(w: Any) -> Any:
    return w.add_(1)


def of_two(w: Any, v: Any) -> Any:
    y = w * v
    w.mul_(y)
    w.add_(v)
    y += w
    return y, w.a * 2


def taken_apart(w: Any) -> Any:
    y = w * 2
    before, held = y.a * 1, y.a
    y.add_(1)
    return before, held, y.b * 1, y


def of_what_it_holds(x: Tensor, y: Tensor) -> Any:
    held = x * 2
    both = TwoTensor(held, y.clone())
    both.add_(1)
    return held, held[0] * 2, both


def of_inputs(x: Tensor, y: Tensor) -> Any:
    both = TwoTensor(x, y)
    both.add_(1)
    return both * 2


def inside_each_other(w: Any) -> Any:
    y = w * 2
    inner = y.a.a * 1
    y.add_(1)
    y.mul_(y)
    w.add_(1)
    return inner, y.a.b * 2, y.b * 2, y


def drawn(w: Any) -> Any:
    return torch.empty_like(w).normal_() + torch.rand_like(w)


def rectified(w: Any) -> Any:
    y = w * 2
    F.relu_(y)
    return F.relu(w, inplace=True), y.clamp_(0, 1)


def dropped(w: Any) -> Any:
    return F.dropout(F.dropout(w * 2, 0.3), 0.5) * w


def tripled(m: Any) -> Any:
    m.mul_(3)
    return m * 1


def sine(m: Any) -> Any:
    return m.sin(), m * 2


def saved(x: Tensor) -> Any:
    """Autograd counts no write to what is held: its backward finds what is there then."""
    both = TwoTensor(x.detach() * 1, x.detach() * 2)
    y = x * both.a
    both.mul_(3)
    return y.sin()


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], list[Any]]]] = {
    "added": (added, lambda: [two(3, 4)]),
    "given back": (given_back, lambda: [two(3, 4)]),
    "of two": (of_two, lambda: [two(3, 4), two(3, 4)]),
    "taken apart": (taken_apart, lambda: [two(3, 4)]),
    "of what it holds": (of_what_it_holds, lambda: [torch.randn(3, 4), torch.randn(3, 4)]),
    "of inputs": (of_inputs, lambda: [torch.randn(3, 4), torch.randn(3, 4)]),
    "inside each other": (inside_each_other, lambda: [nested(3, 4)]),
    "drawn": (drawn, lambda: [two(3, 4)]),
    "rectified": (rectified, lambda: [two(3, 4)]),
    "dropped": (dropped, lambda: [two(3, 4, grad=True)]),
    "tripled": (tripled, lambda: [of_masked(Writing)]),
    "sine": (sine, lambda: [of_masked(Beside)]),
    "saved": (saved, lambda: [torch.randn(3, 4, requires_grad=True)]),
}
ROUTES: dict[str, Callable[[Any, Any], Callable[..., Any]]] = {
    "export": lambda fn, args: foretrace.capture(fn, args, verify=True).cut("export"),
    "compile": lambda fn, args: foretrace.compile(fn, fullgraph=True),
    "a backend": lambda fn, args: foretrace.compile(
        fn, backend=lambda module, _: module, fullgraph=True
    ),
}


def flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


def gradients(result: Any, args: list[Any]) -> list[Any]:
    of = [each for each in args if each.requires_grad]
    outputs = [each for each in flat(result) if each.requires_grad]
    if not of or not outputs:
        return []
    return list(torch.autograd.grad(outputs, of, list(map(torch.ones_like, outputs))))


def fresh(args: list[Any]) -> list[Any]:
    return [
        made_alike(each.detach(), torch.clone).requires_grad_(each.requires_grad) for each in args
    ]


def ran(fn: Callable[..., Any], args: list[Any]) -> list[Any]:
    """What a call gives, and what it leaves in its arguments."""
    torch.manual_seed(5)
    result = fn(*args)
    found = [*flat(result), *gradients(result, args), *(each.detach() for each in args)]
    kept = [place for place, each in enumerate(flat(result)) if any(each is a for a in args)]
    return [*found, torch.tensor(kept)]


@pytest.fixture(params=PROGRAMS)
def subject(request: pytest.FixtureRequest) -> tuple[Callable[..., Any], list[Any]]:
    torch.manual_seed(0)
    fn, build = PROGRAMS[request.param]
    return fn, build()


@pytest.mark.parametrize("route", ROUTES)
def test_as_eager(subject: tuple[Callable[..., Any], list[Any]], route: str) -> None:
    fn, args = subject
    run = ROUTES[route](fn, tuple(fresh(args)))
    for _ in range(2):
        assert differences(ran(fn, fresh(args)), ran(run, fresh(args))) == []


def test_leaf_ops_joint_and_pair(subject: tuple[Callable[..., Any], list[Any]]) -> None:
    fn, args = subject
    program = foretrace.capture(fn, tuple(fresh(args)), verify=True)
    with torch.no_grad():
        assert differences(ran(fn, fresh(args)), ran(program.cut("aten"), fresh(args))) == []
    if not any(each.requires_grad for each in args):
        return
    expected = ran(fn, fresh(args))[1:2]
    tangents = [torch.ones_like(each) for each in flat(fn(*fresh(args)))]
    torch.manual_seed(5)
    _, got = program.cut("joint")(*fresh(args), tangents=tangents)
    assert differences(expected, list(got.values())) == []
    torch.manual_seed(5)
    _, got = run_pair(*program.pair(), tuple(fresh(args)), {}, tangents)
    assert differences(expected, list(got.values())) == []


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(4, 8), nn.Linear(8, 4), nn.LayerNorm(4)
        self.drop = nn.Dropout(0.5)
        for layer in (self.up, self.down, self.norm):
            for name, tensor in list(layer.named_parameters()):
                both = TwoTensor(tensor.detach().clone(), tensor.detach() * 3)
                setattr(layer, name, nn.Parameter(both))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x + self.down(self.drop(F.gelu(self.up(x)))))
        return out


def test_a_network_in_training_with_dropout() -> None:
    net = Mlp().train()
    compiled, x = foretrace.compile(net, fullgraph=True), torch.randn(3, 4)
    for seed in range(2):
        found = []
        for fn in (net, compiled):
            torch.manual_seed(seed)
            out = fn(x)
            grads = torch.autograd.grad(out, list(net.parameters()), torch.ones_like(out))
            found.append([out, *grads])
        assert differences(*found) == []


class Average(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", two(3, 4))

    def forward(self, x: Any) -> Any:
        self.mean = self.mean * 0.9 + x * 0.1
        return x - self.mean


class Kept(Average):
    def forward(self, x: Any) -> Any:
        self.mean.mul_(0.9).add_(x)
        return x - self.mean


@pytest.mark.parametrize("kind", [Average, Kept])
def test_a_buffer_of_each_call(kind: type[Average]) -> None:
    eager = kind()
    ours = copy.deepcopy(eager)
    compiled = foretrace.compile(ours, fullgraph=True)
    for _ in range(3):
        x = two(3, 4)
        assert differences(eager(x), compiled(x)) == []
        assert differences(eager.mean, ours.mean) == []
    assert compiled.recaptures == []


def test_autograd_is_asked_of_a_stand_in() -> None:
    def asks(w: Any) -> Any:
        made, other = w * 2, (w.detach() * 1)
        other.add_(1)
        return made * (2 if made.is_leaf else 3) * (2 if w.is_leaf else 3) * (2 + other._version)

    for grad in (False, True):
        w = two(3, 4, grad=grad)
        cut = foretrace.capture(asks, (w,)).cut("export")
        assert differences(asks(w), cut(w)) == []


def halves(*, trains: bool) -> tuple[Any, ...]:
    """A tensor, and two views of one memory that have no element in common."""
    base = two(4, 3).requires_grad_(trains)
    made = base + 1
    return base, made[:2], made[2:]


def both_written(a: Any, b: Any) -> Any:
    a.mul_(3)
    b.mul_(2)
    return a.clone() + b.clone()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("trains", [False, True])
def test_parts_of_one_memory_are_written(*, trains: bool, backend: str) -> None:
    """What they hold begins in the midst of it; the new content in memory of its own."""
    compiled = foretrace.compile(both_written, backend=backend, fullgraph=True)
    for _ in range(2):
        found = []
        for call in (compiled, both_written):
            torch.manual_seed(0)
            base, *parts = halves(trains=trains)
            result = call(*parts)
            grads = torch.autograd.grad(result.sum(), base) if trains else ()
            found.append([result.detach(), *grads, *(each.detach() for each in parts)])
        assert differences(*found) == []
    assert not compiled.recaptures


@pytest.mark.filterwarnings("ignore:.*is not captured whole")
def test_parts_that_overlap_are_no_inputs_of_one_graph() -> None:
    compiled = foretrace.compile(both_written, backend="eager")
    torch.manual_seed(0)
    _, *parts = halves(trains=False)
    compiled(*parts)
    made = two(4, 3)
    overlapping = made[:2], made[1:3]
    expected = made_alike(made, torch.clone)
    want = both_written(expected[:2], expected[1:3])
    assert differences([want, expected], [compiled(*overlapping), made]) == []
