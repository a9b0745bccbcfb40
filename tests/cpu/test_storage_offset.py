"""Where an input begins in memory is guarded if the program reads it, and only then."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import foretrace

Program = Callable[[Tensor], Tensor]


def seen_by_strides(x: Tensor) -> Tensor:
    return x.as_strided((2,), (1,), x.storage_offset() + 1) * 2


def of_a_view(x: Tensor) -> Tensor:
    return x * x[1:].storage_offset()


def after_a_write(x: Tensor) -> Tensor:
    x.mul_(2)
    return x.as_strided((2,), (1,), 3) * 2


def written_behind_a_view(x: Tensor) -> Tensor:
    part = x.as_strided((2,), (1,), 3)
    x.mul_(2)
    return part * 2


READING: list[Program] = [
    lambda x: x * x.storage_offset(), seen_by_strides, of_a_view, after_a_write,
    written_behind_a_view,
]  # fmt: skip
NOT_READING: list[Program] = [lambda x: x[1:] * 2, lambda x: x.as_strided((2,), (1,)) * x[0]]


def part(first: int) -> Tensor:
    return torch.arange(20.0)[first : first + 4]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("fn", READING)
def test_compile_captures_again(fn: Program, dynamic: bool) -> None:
    compiled = foretrace.compile(fn, dynamic=dynamic)
    for first in (2, 3, 1):
        assert torch.equal(compiled(part(first)), fn(part(first)))


@pytest.mark.parametrize("cut", ["export", "aten"])
@pytest.mark.parametrize("fn", READING)
def test_a_cut_refuses(fn: Program, cut: str) -> None:
    run = foretrace.capture(fn, (part(2),)).cut(cut)
    assert torch.equal(run(part(2)), fn(part(2)))
    with pytest.raises(foretrace.Refusal, match="begins at element 3 of its memory"):
        run(part(3))


@pytest.mark.parametrize("fn", NOT_READING)
def test_no_guard_where_it_is_not_read(fn: Program) -> None:
    compiled = foretrace.compile(fn)
    for first in (2, 3, 0):
        assert torch.equal(compiled(part(first)), fn(part(first)))
    assert not compiled.recaptures


def test_what_kernels_read_by_strides_is_no_guard() -> None:
    """`fill_diagonal_` is an `as_strided` from where the tensor begins."""

    def fills(x: Tensor) -> Tensor:
        return x.fill_diagonal_(0) * 2

    run = foretrace.capture(fills, (torch.ones(20)[4:].view(4, 4),)).cut("aten")
    other = torch.ones(19)[3:].view(4, 4)
    assert torch.equal(run(other.clone()), fills(other))
