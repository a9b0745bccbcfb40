"""Open sizes that stay open: each program is captured once, and run at other sizes."""

import numbers
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foretrace
from foretrace import Refusal, capture
from tests.support.compare import same_as_eager
from tests.support.exporting import as_module
from tests.support.turns import crossed

aten = torch.ops.aten
Args = tuple[Any, ...]


def inputs(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def of_steps(make: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: (x * make(x)[:, None]).sin()


FACTORIES = {
    "linspace": lambda x: torch.linspace(-1.0, 1.0, steps=x.shape[0]),
    "linspace of sizes": lambda x: torch.linspace(0, x.shape[1] - 1, x.shape[0], dtype=x.dtype),
    "linspace of tensors": lambda x: torch.linspace(x.detach()[0, 0], 3.5, x.shape[0]),
    "logspace": lambda x: torch.logspace(0.0, 1.0, x.shape[0], base=2.0, device=x.device),
    "arange": lambda x: torch.arange(x.shape[0]) / x.shape[0],
    "full": lambda x: torch.full((x.shape[0],), x.shape[1] / 2),
    "eye": lambda x: torch.eye(x.shape[0], x.shape[1]).sum(1),
    "hann": lambda x: torch.hann_window(x.shape[0] + 2, periodic=False)[1:-1],
    "kaiser": lambda x: torch.kaiser_window(x.shape[0], True, 9.0),
}


@pytest.mark.parametrize("name", FACTORIES)
def test_as_many_as_an_open_size_says(name: str) -> None:
    program = of_steps(FACTORIES[name])
    others = [(inputs(9, 7),), (inputs(2, 3),)]
    same_as_eager(program, (inputs(6, 4),), loss=None, dynamic_shapes=True, more_args=others)


def resized(mode: str, **options: Any) -> Callable[[Tensor], Tensor]:
    return lambda x: F.interpolate(x, mode=mode, **options).sin()


MODES = ["nearest", "bilinear", "bicubic", "area", "nearest-exact"]
FACTORS = [
    pytest.param(again, scale, id=f"{again}-{scale}")
    for again in (None, True)
    for scale in (2, 1.5)
]


@pytest.mark.parametrize(("mode", "again", "scale"), crossed(MODES, FACTORS))
def test_interpolation_by_a_factor(mode: str, again: bool | None, scale: float) -> None:
    program = resized(mode, scale_factor=scale, recompute_scale_factor=again)
    others = [(inputs(5, 3, 12, 10),)]
    same_as_eager(program, (inputs(2, 3, 8, 8),), loss=None, dynamic_shapes=True, more_args=others)


NETS = [
    pytest.param({}, id="plain"),
    pytest.param({"bidirectional": True, "num_layers": 2}, id="both ways"),
    pytest.param({"batch_first": True, "bias": False}, id="batch first"),
]


@pytest.mark.parametrize(("kind", "options"), crossed([nn.LSTM, nn.GRU, nn.RNN], NETS))
def test_batch_of_a_recurrent_net(kind: type[nn.Module], options: dict[str, Any]) -> None:
    made: Any = kind
    net = made(4, 5, **options)
    first = options.get("batch_first", False)

    def program(x: Tensor) -> Tensor:
        out, last = net(x)
        return out.sin().sum() + sum(t.sum() for t in torch.utils._pytree.tree_leaves(last))

    def batch(n: int) -> Args:
        return (inputs(n, 7, 4) if first else inputs(7, n, 4),)

    sizes = {"x": {0 if first else 1: torch.export.Dim("batch")}}
    same_as_eager(program, batch(3), dynamic_shapes=sizes, more_args=[batch(6), batch(2)])


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("first", [True, False])
def test_sequences_of_open_lengths(first: bool, side: str) -> None:
    def program(*rows: Tensor) -> Tensor:
        return nn.utils.rnn.pad_sequence([*rows], first, 0.5, side).sin()

    def given(*lengths: int) -> Args:
        return tuple(inputs(length, 2) for length in lengths)

    sizes = {"rows": tuple({0: torch.export.Dim(name)} for name in "abc")}
    others = [given(3, 7, 2), given(5, 5, 5)]
    same_as_eager(program, given(6, 4, 5), loss=None, dynamic_shapes=sizes, more_args=others)


def padded(x: Tensor, y: Tensor) -> Tensor:
    n = max(x.shape[0], y.shape[0])
    return F.pad(x, (0, 0, 0, n - x.shape[0])) + F.pad(y, (0, 0, 0, n - y.shape[0]))


def cut_to(x: Tensor, y: Tensor) -> Tensor:
    n = min(x.shape[0], y.shape[0])
    return (x[:n] * y[:n]).sin() * max(n, 4)


def of_data(x: Tensor, y: Tensor) -> Tensor:
    return x.sum() * max(x[x > 0].shape[0], y[y > 0].shape[0])


@pytest.mark.parametrize("program", [padded, cut_to, of_data])
def test_the_larger_of_two_sizes(program: Callable[..., Tensor]) -> None:
    """One capture for all orders, a file of torch.export's, too, which refuses to ask data."""
    sizes = tuple({0: torch.export.Dim(name)} for name in "ab")
    given = [(inputs(n, 2), inputs(m, 2)) for n, m in [(6, 4), (3, 7), (5, 5)]]
    same_as_eager(program, given[0], loss=None, dynamic_shapes=sizes, more_args=given[1:])
    if program is not of_data:
        exported = foretrace.export(as_module(program), given[0], dynamic_shapes=(sizes,))
        for args in given:
            assert torch.equal(exported.module()(*args), program(*args))


DIVIDING = {
    "cancels": lambda x: x.sum() * (x.shape[0] * 4 // x.shape[0]),
    "left over": lambda x: x.sum() + x.shape[0] * 4 % x.shape[0],
    "of itself": lambda x: x.sum() * (x.shape[0] / x.shape[0]),
    "not used": lambda x: (12 // x.shape[0], x.sum())[1],
    "of a float": lambda x: x.sum() * (1.0 / x.shape[0]),
}


@pytest.mark.parametrize("name", DIVIDING)
def test_a_size_of_0_to_divide_by_is_refused(name: str) -> None:
    """Eager raises `ZeroDivisionError`; what cancels out or is not used is in no graph."""
    program = DIVIDING[name]
    cut = capture(program, (torch.randn(3, 4),), dynamic_shapes=True).cut("aten")
    x = torch.randn(5, 4)
    assert torch.equal(cut(x), program(x))
    with pytest.raises(ZeroDivisionError):
        program(x[:0])
    with pytest.raises(Refusal, match="a dynamic size is 0"):
        cut(x[:0])


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_ctc_over_lists(reduction: str) -> None:
    def program(x: Tensor, targets: Tensor) -> Tensor:
        scores = x.log_softmax(-1)
        return F.ctc_loss(scores, targets, [8, 7], [3, 2], reduction=reduction, zero_infinity=True)

    def given(steps: int, kinds: int, most: int) -> Args:
        return inputs(steps, 2, kinds), torch.randint(1, kinds, (2, most))

    same_as_eager(
        program, given(9, 5, 3), loss=None, dynamic_shapes=True, more_args=[given(12, 4, 5)]
    )


def test_sizes_of_a_view_are_those_asked_for() -> None:
    """Windows are taken apart and put together, as Swin does: no size is made of another."""

    def program(x: Tensor) -> Tensor:
        batch, rows, columns, kinds = x.shape
        x = F.pad(x, (0, 0, 0, (4 - columns % 4) % 4, 0, (4 - rows % 4) % 4))
        high, wide = x.shape[1], x.shape[2]
        parts = x.view(batch, high // 4, 4, wide // 4, 4, kinds).transpose(2, 3).contiguous()
        found = parts.view(-1, 16, kinds).sin()
        whole = found.view(-1, high // 4, wide // 4, 4, 4, kinds).transpose(2, 3).contiguous()
        return whole.view(-1, high, wide, kinds)[:, :rows, :columns]

    example = (inputs(2, 10, 9, 3),)
    same_as_eager(
        program, example, loss=None, dynamic_shapes=True, more_args=[(inputs(3, 14, 13, 3),)]
    )
    found = capture(program, example, dynamic_shapes=True)
    views = [op.outs[0].type for op in found.recorded.ops if op.target is aten.view.default]
    assert (4, 4) in {(type.shape[2], type.shape[4]) for type in views if len(type.shape) == 6}


def by_kind(x: Tensor) -> Tensor:
    n = x.shape[0]
    match n:
        case int():
            factor = 2
        case _:
            factor = 3
    return x * factor * (5 if isinstance(n, int) else 7) * (11 if n.__class__ is int else 13)


def by_number(x: Tensor) -> Tensor:
    return x * (2 if isinstance(x.numel(), numbers.Integral) else 3)


TABLE = {f"{n}x4": float(n) for n in range(1, 20)}


def by_text(x: Tensor) -> Tensor:
    return x * TABLE[f"{x.shape[0]}x{x.shape[1]}"]


def by_text_of_all(x: Tensor) -> Tensor:
    return x * (2 if str(x.shape) == "torch.Size([7, 4])" else 3) + len(repr(x.size(0)))


def by_rounding(x: Tensor) -> Tensor:
    return x + round(x.shape[0], -1) + round(x.shape[0])


AS_INTEGERS = by_kind, by_number, by_text, by_text_of_all, by_rounding


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", AS_INTEGERS, ids=lambda program: program.__name__)
def test_a_size_is_an_int(program: Callable[[Tensor], Tensor], dynamic: bool | None) -> None:
    compiled = foretrace.compile(program, dynamic=dynamic, fullgraph=True)
    for n in (5, 6, 7, 12, 7):
        x = torch.ones(n, 4)
        assert torch.equal(compiled(x), program(x))


@pytest.mark.parametrize("program", [by_kind, by_number])
def test_its_kind_fixes_no_size(program: Callable[[Tensor], Tensor]) -> None:
    others = [(inputs(9, 4),), (inputs(2, 4),)]
    same_as_eager(program, (inputs(6, 4),), loss=None, dynamic_shapes=True, more_args=others)


def test_its_text_is_a_guard() -> None:
    cut = capture(by_text, (torch.ones(6, 4),), dynamic_shapes=True).cut("export")
    assert torch.equal(cut(torch.ones(6, 4)), by_text(torch.ones(6, 4)))
    with pytest.raises(Refusal, match="guard broken"):
        cut(torch.ones(7, 4))


@pytest.mark.parametrize(("batch", "targets"), [((), [1, 2]), ((2,), [1, 2, 2, 1])])
def test_sizes_that_a_kernel_takes_alone_are_fixed(batch: Any, targets: list[int]) -> None:
    """`ctc_loss` asks of lists how long its targets are; without a batch, too."""
    many = batch[0] if batch else 1

    def loss(x: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.ctc_loss(x.log_softmax(-1), labels, (5,) * many, (2,) * many)

    labels, sides = torch.tensor(targets), []
    for call in (loss, foretrace.compile(loss, fullgraph=True, dynamic=True)):
        x = torch.arange(15.0 * many).view(5, *batch, 3).sin().requires_grad_()
        found = call(x, labels)
        found.backward()
        sides.append((found.tolist(), x.grad.tolist()))
    assert sides[0] == sides[1]
    assert foretrace.capture(loss, (x, labels), dynamic_shapes=True).recorded.guards


@pytest.mark.parametrize("loss", ["mse_loss", "smooth_l1_loss", "huber_loss"])
def test_sizes_of_two_inputs_that_are_equal_by_a_guard(loss: str) -> None:
    """Each has symbols of its own: the gradient of a loss is contiguous, as both have one shape."""
    attend = nn.MultiheadAttention(6, 2, batch_first=True)

    def step(x: Tensor, wanted: Tensor) -> Tensor:
        lost: Tensor = getattr(nn.functional, loss)(attend(x, x, x, need_weights=False)[0], wanted)
        lost.backward()
        return lost

    sides = []
    for call in (step, foretrace.compile(step, fullgraph=True, dynamic=True)):
        torch.manual_seed(0)
        for size in (2, 5, 3):
            lost = call(torch.randn(size, 4, 6), torch.randn(size, 4, 6))
            sides.append([lost, *(p.grad.clone() for p in attend.parameters())])
            attend.zero_grad()
    for eager, here in zip(sides[:3], sides[3:], strict=True):
        assert all(map(torch.equal, eager, here))
