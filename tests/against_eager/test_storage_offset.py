"""Where an input begins in memory is guarded if the program reads it, and only then."""

from collections.abc import Callable
from typing import Any

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
    compiled = foretrace.compile(fn, dynamic=dynamic, fullgraph=True)
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
    compiled = foretrace.compile(fn, fullgraph=True)
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


def writes_to_a_part(x: Tensor) -> Tensor:
    first = x.unsafe_chunk(2)[0]
    first[:, 1] += 1
    return x * 2


def viewed_before(x: Tensor) -> Tensor:
    part = x[:2][:, 1:]
    x[:, 0] += 1
    return part * 2


def writes_to_a_view_of_a_part(x: Tensor) -> tuple[Tensor, Tensor]:
    part = x[:2]
    column = part[:, 1:]
    part[:, 0].mul_(2)
    return column * 2, x.exp()


def writes_by_strides(x: Tensor) -> tuple[Tensor, Tensor]:
    part = x[2:].as_strided((2, 2), (4, 1), x.storage_offset() + 9)
    x.select(1, 1).mul_(3)
    part.sin_()
    return part * 2, x.as_strided((2, 3), (1, 5), x.storage_offset()).exp()


def silently(x: Tensor) -> tuple[Tensor, Tensor]:
    part = x[1:, 1:]
    with torch.no_grad():
        x[:, 1].mul_(2)
    part[0] += 1
    return part.as_strided((2,), (1,), x.storage_offset() + 6) * 2, x.clone()


TRAINED = [
    writes_to_a_part, viewed_before, writes_to_a_view_of_a_part, writes_by_strides, silently,
]  # fmt: skip


def trained_part(first: int) -> tuple[Tensor, Tensor]:
    """A leaf, and what begins at that element of memory and has its history."""
    leaf = torch.arange(40.0, requires_grad=True)
    return leaf, (leaf * 1)[first : first + 16].view(4, 4)


def with_gradient(fn: Callable[[Tensor], object], first: int) -> list[Tensor]:
    leaf, x = trained_part(first)
    outs = fn(x)
    results = list(outs) if isinstance(outs, tuple) else [outs]
    (gradient,) = torch.autograd.grad(sum(out.sum() for out in results), leaf)
    return [*results, gradient]


@pytest.mark.parametrize("entry", ["export", "aten", "compile", "joint"])
@pytest.mark.parametrize("fn", TRAINED)
def test_views_of_written_memory_that_begins_later(fn: Program, entry: str) -> None:
    """The graph's copies begin elsewhere than the input, and it counts from where they do."""
    if entry == "compile":
        taken: Callable[[Tensor], object] = foretrace.compile(fn, fullgraph=True)
    else:
        program = foretrace.capture(fn, (trained_part(16)[1],))
        taken = program.compile("eager") if entry == "joint" else program.cut(entry)
    for first in (16, 16, 0, 5) if entry == "compile" else (16, 16):
        pairs = zip(with_gradient(taken, first), with_gradient(fn, first), strict=True)
        assert all(torch.equal(mine, eager) for mine, eager in pairs)
    if entry != "compile":
        with pytest.raises(foretrace.Refusal, match="begins at element 3 of its memory"):
            taken(trained_part(3)[1])


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo looks at it
def test_dynamo_does_not_look_where_an_input_begins() -> None:
    compiled = torch.compile(viewed_before, backend="foretrace")
    pairs = zip(with_gradient(compiled, 16), with_gradient(viewed_before, 16), strict=True)
    assert all(torch.equal(mine, eager) for mine, eager in pairs)
    with pytest.raises(foretrace.Refusal, match="begins at element 3 of its memory"):
        compiled(trained_part(3)[1])


@pytest.mark.parametrize("backend", ["eager", lambda graph, inputs: graph])
@pytest.mark.parametrize("first", [0, 1, 2])
def test_strides_of_a_written_part(first: int, backend: Any) -> None:
    """Seen from where the part begins, by a view that autograd follows, too."""

    def program(a: Tensor) -> Tensor:
        a.add_(a)
        return a.as_strided((2,), (1,), a.storage_offset() + 1)

    found = []
    for call in (program, foretrace.compile(program, backend=backend, fullgraph=True)):
        w = torch.arange(16.0).view(4, 4).requires_grad_()
        result = call((w * 1)[first:])
        result.sum().backward()
        found.append((result.tolist(), w.grad.tolist()))
    assert found[0] == found[1]
