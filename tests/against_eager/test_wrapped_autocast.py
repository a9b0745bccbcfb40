"""Tensors of classes that wrap others under autocast, around and inside: to the last bit."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor

import foretrace
from foretrace.runtime.calls.run_cut import run_pair
from tests.support.wrapped import Int8, aten, differences, two


class Castable(Int8):
    """Its casts dequantize; its products are made by a composite, which autocast knows."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten._to_copy.default:
            return args[0].dequantized().to(kwargs["dtype"])
        if func is aten.mm.default and not isinstance(args[0], cls):
            return F.linear(args[0], args[1].dequantized().t())
        return super().__torch_dispatch__(func, types, args, kwargs)


def bare(x: Tensor, w: Any) -> Tensor:
    return x @ w.t()


def shared(x: Tensor, w: Any, b: Any) -> Any:
    y = F.linear(F.linear(x, w, b).relu(), w.t())
    with torch.no_grad():
        offset = F.linear(x, w)
    return (y - F.linear(offset, w.t())).sin() * w.sum()


def inside(x: Tensor, w: Any, b: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        y = F.linear(x, w, b)
        with torch.autocast("cpu", enabled=False):
            z = F.linear(x, w, b)
    with torch.autocast("cpu", torch.bfloat16):
        return F.softmax(y, 1) * z + F.linear(x, w)


def normed(x: Any, w: Any, b: Any) -> Any:
    y = F.layer_norm(F.linear(x, w, b), (5,))
    return F.gelu(y) @ w + F.dropout(x, 0.5)


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def fixed(*shape: int) -> Tensor:
    return torch.randn(*shape)


Made = Callable[[], list[Any]]
THREE: Made = lambda: [leaf(3, 4), two(5, 4, grad=True), two(5, grad=True)]  # noqa: E731
PROGRAMS: dict[str, tuple[Callable[..., Any], Made, bool]] = {
    "bare": (bare, lambda: [leaf(3, 4), Castable.of(torch.randn(5, 4))], True),
    "bare, off": (bare, lambda: [leaf(3, 4), Castable.of(torch.randn(5, 4))], False),
    "trained": (
        bare, lambda: [leaf(3, 4), nn.Parameter(Castable.of(torch.randn(5, 4)))], True),
    "shared": (shared, THREE, True),
    "shared, two": (
        shared, lambda: [two(3, 4, grad=True), two(5, 4, grad=True), two(5, grad=True)], True),
    "inside": (inside, THREE, False),
    "inside, around": (inside, THREE, True),
    "normed": (normed, lambda: [two(3, 4, grad=True), two(5, 4, grad=True), two(5)], True),
    "not followed": (shared, lambda: [fixed(3, 4), two(5, 4), two(5)], True),
}  # fmt: skip


def called(fn: Callable[..., Any], args: list[Any], *, on: bool) -> Any:
    torch.manual_seed(3)
    with torch.autocast("cpu", torch.bfloat16, enabled=on):
        return fn(*args)


def gradients(result: Any, args: list[Any]) -> list[Any]:
    of = [each for each in args if each.requires_grad]
    if not of:
        return []
    return list(torch.autograd.grad(result, of, torch.ones_like(result), allow_unused=True))


@pytest.fixture(params=PROGRAMS)
def subject(request: pytest.FixtureRequest) -> tuple[Callable[..., Any], list[Any], bool]:
    torch.manual_seed(0)
    fn, build, on = PROGRAMS[request.param]
    return fn, build(), on


Subject = tuple[Callable[..., Any], list[Any], bool]


@pytest.mark.parametrize("route", ["export", "compile", "a backend"])
def test_as_eager(subject: Subject, route: str) -> None:
    fn, args, on = subject
    with torch.autocast("cpu", torch.bfloat16, enabled=on):
        if route == "export":
            run: Any = foretrace.capture(fn, tuple(args), verify=True).cut("export")
        else:
            backend: Any = "eager" if route == "compile" else lambda module, _: module
            run = foretrace.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        eager, found = called(fn, args, on=on), called(run, args, on=on)
        assert differences(eager, found) == []
        assert differences(gradients(eager, args), gradients(found, args)) == []


def test_joint_and_pair(subject: Subject) -> None:
    fn, args, on = subject
    if not any(each.requires_grad for each in args):
        return
    with torch.autocast("cpu", torch.bfloat16, enabled=on):
        program = foretrace.capture(fn, tuple(args), verify=True)
    eager = called(fn, args, on=on)
    tangents, expected = [torch.ones_like(eager)], gradients(eager, args)
    joint, pair = program.cut("joint"), program.pair()

    def by_pair(*args: Any) -> Any:
        return run_pair(*pair, args, {}, tangents)

    for run in (lambda *args: joint(*args, tangents=tangents), by_pair):
        result, got = called(run, args, on=on)
        assert differences(eager.detach(), result) == []
        assert differences(expected, list(got.values())) == []


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.up = nn.Embedding(10, 4), nn.Linear(4, 8)
        self.norm, self.drop = nn.LayerNorm(8), nn.Dropout(0.5)
        for layer in (self.table, self.up, self.norm):
            for name, tensor in list(layer.named_parameters()):
                both = TwoTensor(tensor.detach().clone(), tensor.detach() * 3)
                setattr(layer, name, nn.Parameter(both))
        self.out = nn.Linear(4, 10, bias=False)
        self.out.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.norm(self.drop(F.gelu(self.up(self.table(ids)))))
        out: Tensor = self.out(hidden[..., :4])
        return out


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_tied_network_in_training(dynamic: bool | None) -> None:
    net = Net().train()
    compiled = foretrace.compile(net, fullgraph=True, dynamic=dynamic)
    for rows in (3, 5, 2):
        ids, found = torch.randint(0, 10, (rows, 6)), []
        for fn in (net, compiled):
            out = called(fn, [ids], on=True)
            found.append(torch.autograd.grad(out, list(net.parameters()), torch.ones_like(out)))
            found[-1] = (out, *found[-1])
        assert differences(*found) == []
