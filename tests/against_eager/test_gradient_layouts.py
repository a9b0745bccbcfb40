"""Gradients to the last bit for operands and for gradients that lie in memory in any order.

A sum runs in the order of memory, so the last bit of a gradient tells whether each step of the
backward has eager's layout.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import foretrace
from tests.support.pairs import PairCut
from tests.support.turns import crossed

AUTO = torch.export.Dim.AUTO
SHAPE = (7, 5, 6)
ORDERED = ["in order", "turned", "rotated"]
LAYOUTS = [*ORDERED, "with gaps", "expanded"]


def in_layout(tensor: Tensor, layout: str) -> Tensor:
    """The same numbers (of "expanded": those of the first row) in another order of memory."""
    if layout == "turned":
        order = list(reversed(range(tensor.dim())))
        return tensor.permute(order).contiguous().permute(order)
    if layout == "rotated":
        return tensor.movedim(0, -1).contiguous().movedim(-1, 0)
    if layout == "with gaps":
        return torch.stack([tensor, tensor], -1)[..., 0]
    return tensor[:1].expand(tensor.shape) if layout == "expanded" else tensor


def written(x: Tensor, w: Tensor) -> Tensor:
    y = x * 0.1
    y.add_(w)
    return y.transpose(0, -1)


def written_in_part(x: Tensor, w: Tensor) -> Tensor:
    y, z = x + w, torch.stack([x, x], -1)[..., 1]
    y[:, 0] = z[:, 0] = x[:, 1]
    return torch.cat([y, z])


def seen_again(x: Tensor, w: Tensor) -> Tensor:
    y = x + w
    rows, turned = y.reshape(SHAPE), y.transpose(0, 1)
    y.mul_(x.sigmoid())
    return torch.cat([rows, turned.mT.reshape(SHAPE)])


def taken(x: Tensor, w: Tensor) -> Tensor:
    rows = torch.arange(6).view(3, 2).t()
    return x[rows] * w


PROGRAMS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, w: x.permute(2, 1, 0) - (w.sum() * w)[:, None, None],
    lambda x, w: torch.addcmul(x, x * w, x),
    lambda x, w: torch.polar(x, x * w),
    lambda x, w: F.layer_norm(x, (6,), w, w),
    lambda x, w: F.linear(x.transpose(0, 1), torch.outer(w, w), w),
    lambda x, w: torch.bmm(x, x.mT).softmax(1) + w[:5],
    lambda x, w: torch.cat([x, w.expand(7, 2, 6)], 1).cumsum(1),
    lambda x, w: torch.where(x > 0, x, w).reshape(5, -1),
    lambda x, w: F.elu(x + w).swapaxes_(0, -1),
    written, written_in_part, seen_again, taken,
]  # fmt: skip


def tangents(out: Tensor) -> list[Tensor]:
    """One for each layout, and one that lies as the output."""
    numbers = torch.randn(out.shape, dtype=out.dtype)
    return [torch.empty_like(out).copy_(numbers), *(in_layout(numbers, each) for each in LAYOUTS)]


def by_cut(cut: Any) -> Callable[..., tuple[Tensor, ...]]:
    def gradients(args: tuple[Tensor, ...], tangent: Tensor) -> tuple[Tensor, ...]:
        _, found = cut(*args, tangents=[tangent])
        return tuple(found.values())

    return gradients


def by_autograd(fn: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    return lambda args, tangent: torch.autograd.grad(fn(*args), args, tangent)


def routes(fn: Callable[..., Tensor], args: Any, shapes: Any) -> list[Callable[..., Any]]:
    program = foretrace.capture(fn, args, dynamic_shapes=shapes)
    compiled = foretrace.compile(
        fn, backend=lambda graph, inputs: graph, dynamic=bool(shapes), fullgraph=True
    )
    cuts = [program.cut("joint"), PairCut(*program.pair())]
    return [*map(by_cut, cuts), by_autograd(compiled), by_autograd(program.cut("export"))]


def differing(
    fn: Callable[..., Tensor], args: tuple[Tensor, ...], tangents: list[Tensor], shapes: Any = None
) -> list[Any]:
    """The routes, and the strides of the tangent, by which a gradient is not eager's."""
    eager = by_autograd(fn)
    return [
        (place, tangent.stride())
        for place, route in enumerate(routes(fn, args, shapes))
        for tangent in tangents
        if not all(map(torch.equal, eager(args, tangent), route(args, tangent)))
    ]


@pytest.mark.parametrize(("number", "layout"), crossed(range(len(PROGRAMS)), LAYOUTS))
def test_operands_and_tangents_in_any_layout(number: int, layout: str) -> None:
    torch.manual_seed(0)
    fn, x = PROGRAMS[number], in_layout(torch.randn(SHAPE), layout).detach().requires_grad_()
    args = x, torch.randn(6, requires_grad=True)
    assert not differing(fn, args, tangents(fn(*args).detach()))


@pytest.mark.parametrize(("number", "layout"), crossed(range(3), ORDERED))
def test_tangents_in_any_layout_with_open_sizes(number: int, layout: str) -> None:
    torch.manual_seed(0)
    fn, x = PROGRAMS[number], in_layout(torch.randn(SHAPE), layout).detach().requires_grad_()
    args, out = (x, torch.randn(6, requires_grad=True)), fn(x, torch.ones(6)).detach()
    without_gaps = [t for t in tangents(out) if t.stride()[-1] != 2]
    assert not differing(fn, args, without_gaps, {"x": {0: AUTO, 1: AUTO}, "w": None})


def spread(fn: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor) -> Tensor:
    return fn(x, w.expand(x.shape) * 1)


PUT_OFF: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda x, w: torch.complex(x * 2, w).conj(),
    lambda x, w: torch.complex(x, x * w).mH,
    lambda x, w: torch.complex(x * w, w).conj().imag,
    lambda x, w: (torch.complex(x, w) * 1j).conj() * 2,
]


@pytest.mark.parametrize("shapes", [None, {"x": {0: AUTO}, "w": None}])
def test_tangents_that_are_conjugated_or_negated_later_or_not(shapes: Any) -> None:
    torch.manual_seed(0)
    args = torch.randn(4, 6, requires_grad=True), torch.randn(4, 6, requires_grad=True)
    args = args if shapes is None else (args[0], torch.randn(6, requires_grad=True))
    for number, fn in enumerate(
        PUT_OFF if shapes is None else [partial(spread, f) for f in PUT_OFF]
    ):
        plain = fn(*args).detach().resolve_conj().resolve_neg()
        given = [plain, plain.conj(), torch._neg_view(plain), plain.mT.clone().mT]
        wrong = differing(fn, args, given, shapes)
        assert not wrong, (number, wrong)


def test_a_backend_gets_one_backward_for_each_layout() -> None:
    seen = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        seen.append((type(graph).__name__, inputs[-1].stride()))
        return graph

    compiled = foretrace.compile(PROGRAMS[0], backend=backend, fullgraph=True)
    args = torch.randn(SHAPE), torch.randn(6, requires_grad=True)
    for _ in range(2):
        compiled(*args).sum().backward()
        compiled(*args).square().sum().backward()
    assert [name for name, _ in seen] == ["Forward", "Backward", "Backward"]
    assert [stride for _, stride in seen[1:]] == [(0, 0, 0), PROGRAMS[0](*args).stride()]


MOVED: tuple[Callable[[Any, Tensor], Any], ...] = (
    lambda w, new: w.set_(new), lambda w, new: setattr(w, "data", new),
    lambda w, new: w.set_(new).sum(),
)  # fmt: skip


@pytest.mark.parametrize("move", MOVED)
@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("backend", ["eager", "graphs"])
def test_a_gradient_lies_as_its_leaf_does_by_then(backend: str, used: bool, move: Any) -> None:
    def program(x: Tensor) -> list[Any]:
        w = torch.nn.Parameter(torch.ones(4, 4))
        if used:
            w.sum()
        with torch.no_grad():
            move(w, torch.linalg.qr(x).Q)
        (w.tril() * x).sum().backward()
        found: list[Any] = [w.grad, w.detach()]
        w.grad = None
        (w.tril() @ x).sum().backward()
        return [*found, w.grad]

    graphs: Any = foretrace.aot_autograd(fw_compiler=lambda module, _: module)
    x = torch.randn(4, 4)
    compiled = foretrace.compile(
        program, backend=graphs if backend == "graphs" else "eager", fullgraph=True
    )
    for one, other in zip(compiled(x), program(x), strict=True):
        assert one.stride() == other.stride()
        assert torch.equal(one, other)
