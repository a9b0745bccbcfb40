"""What nobody reads stays in a graph where eager may raise there, and only there."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import foretrace

Program = Callable[..., Any]

FIT, OUT = torch.tensor([0, 1]), torch.tensor([0, 9])


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x + torch.rand_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def indices(x: Tensor, given: Tensor) -> Tensor:
    x.take(given)
    return x * 2


def table(x: Tensor, given: Tensor) -> Tensor:
    F.embedding(given, x)
    return x * 2


def classes(x: Tensor, given: Tensor) -> Tensor:
    F.cross_entropy(x[:2], given)
    return x * 2


def written(x: Tensor, given: Tensor) -> Tensor:
    y = x.exp()
    y[given] = 0
    return x * 2


def written_unseen(x: Tensor, given: Tensor) -> Tensor:
    y = x.exp()
    with torch.no_grad():
        y.index_fill_(0, given, 0)
    return x * 2


def probabilities(x: Tensor, given: Tensor) -> Tensor:
    F.binary_cross_entropy(given, given)
    return x * 2


def divided(x: Tensor, given: Tensor) -> Tensor:
    6 // given
    return x * 2


def inverse(x: Tensor, given: Tensor) -> Tensor:
    given.inverse()
    return x * 2


def as_many_as_the_mask(x: Tensor, given: Tensor) -> Tensor:
    x.masked_scatter(given, x[0, :2])
    return x * 2


RAISE: dict[Program, tuple[Tensor, Tensor]] = {
    indices: (FIT, torch.tensor([0, 99])),
    table: (FIT, OUT),
    classes: (FIT, OUT),
    written: (FIT, OUT),
    written_unseen: (FIT, OUT),
    probabilities: (torch.rand(3), torch.full((3,), 2.0)),
    divided: (FIT + 1, FIT),
    inverse: (torch.eye(3), torch.zeros(3, 3)),
    as_many_as_the_mask: (torch.eye(3, 4) > 1, torch.eye(3, 4) < 1),
}


@pytest.mark.parametrize("program", RAISE)
def test_eagers_errors_come(program: Program) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    fits, wrong = RAISE[program]
    with pytest.raises((RuntimeError, IndexError)) as eager:
        program(x, wrong)
    captured = foretrace.capture(program, (x, fits))
    calls = [captured.cut(kind) for kind in ("export", "aten")]
    joint, tangent = captured.cut("joint"), torch.ones(3, 4)
    calls.append(lambda *args: joint(*args, tangents=(tangent,)))
    calls.append(foretrace.compile(program, fullgraph=True))
    calls.append(foretrace.compile(program, backend=lambda module, inputs: module, fullgraph=True))
    for call in calls:
        call(x, fits)
        with pytest.raises((RuntimeError, IndexError)) as ours:
            call(x, wrong)
        assert type(ours.value) is type(eager.value)
        assert str(ours.value) == str(eager.value)


def sizes_that_meta_kernels_overlook(x: Tensor) -> Tensor:
    x.exp().index_add_(0, torch.tensor([0, 1]), x.new_ones(x.shape[0], x.shape[0])[:2])
    return x * 2


def dtypes_that_meta_kernels_overlook(x: Tensor) -> Tensor:
    torch.ones(x.shape, dtype=torch.int32).softmax(-1)
    return x * 2


def test_errors_of_types_come() -> None:
    for program in (sizes_that_meta_kernels_overlook, dtypes_that_meta_kernels_overlook):
        x = torch.randn(5, 4)
        with pytest.raises(RuntimeError) as eager:
            program(x)
        cut = foretrace.capture(program, (x,)).cut("export")
        with pytest.raises(RuntimeError) as ours:
            cut(x)
        assert str(ours.value) == str(eager.value)


def test_errors_of_open_sizes_come() -> None:
    """The sizes of the capture fit, those of a later call do not."""
    program = sizes_that_meta_kernels_overlook
    shapes = {"x": {0: torch.export.Dim.AUTO}}
    cut = foretrace.capture(program, (torch.randn(4, 4),), dynamic_shapes=shapes).cut("export")
    cut(torch.randn(4, 4))
    with pytest.raises(RuntimeError, match="source tensor shape must match"):
        cut(torch.randn(5, 4))


def test_what_cannot_raise_is_left_out() -> None:
    """Of floats, views, masks, and integers that are no indices."""

    def program(x: Tensor, given: Tensor) -> Tensor:
        (x @ x.t()).softmax(-1).sum()
        torch.cat([given, given + 1]).cumsum(0).eq(3).all()
        x.masked_fill(x > 0, 1).clone()[0].to(torch.int64)
        return x * 2

    captured = foretrace.capture(program, (torch.randn(3, 4, requires_grad=True), FIT))
    for kind in ("export", "aten"):
        assert captured.cut(kind).nodes == ("x", "given", "mul", "output")


def test_a_function_that_draws_is_applied() -> None:
    def program(x: Tensor) -> Tensor:
        Noisy.apply(x)
        return x * torch.rand_like(x)

    x = torch.randn(3)
    for kind in ("export", "aten"):
        cut = foretrace.capture(program, (x,)).cut(kind)
        torch.manual_seed(0)
        expected = program(x)
        torch.manual_seed(0)
        assert torch.equal(cut(x), expected)
