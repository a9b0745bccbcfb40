"""Arguments that share memory, one of which is written to: recorded over their memory."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import foretrace
from tests.support.bits import differences

CASES: list[tuple[Callable[..., Any], Callable[[], tuple[Tensor, ...]]]] = []


def case(make: Callable[[], tuple[Tensor, ...]]) -> Callable[[Any], Any]:
    def add(program: Callable[..., Any]) -> Callable[..., Any]:
        CASES.append((program, make))
        return program

    return add


def whole_and_row() -> tuple[Tensor, ...]:
    a = torch.randn(3, 4)
    return a, a[0]


def transposed() -> tuple[Tensor, ...]:
    a = torch.randn(3, 4)
    return a, a.t(), a.view(-1)[2:7]


def overlapping() -> tuple[Tensor, ...]:
    a = torch.randn(10)
    return a[:6], a[3:], torch.randn(2)


@case(whole_and_row)
def written_whole(a: Tensor, row: Tensor) -> Tensor:
    a.add_(1)
    return row * 2


@case(whole_and_row)
def written_part(a: Tensor, row: Tensor) -> tuple[Tensor, ...]:
    row.mul_(3)
    return a.sum(), row, a


@case(transposed)
def written_by_turns(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    a[0] += 1
    b[1].mul_(2)
    c.zero_()
    return a @ b + c.sum()


@case(overlapping)
def copied(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
    a[:2].copy_(c)
    b.copy_(b.flip(0))
    return a * 1, b[1:]


@case(overlapping)
def swapped(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    b.data.add_(a[0])
    return b, a


@pytest.mark.parametrize(("program", "make"), CASES)
def test_as_eager(program: Callable[..., Any], make: Callable[[], tuple[Tensor, ...]]) -> None:
    """What is returned, what the arguments hold, and that they are handed back themselves."""
    example = make()
    before = [each.clone() for each in example]
    captured = foretrace.capture(program, example, verify=True)
    assert not [*differences(before, [*example], "after the capture")]
    compiled = foretrace.compile(program, fullgraph=True)
    ways: list[Callable[..., Any]] = [
        captured.cut("export"), captured.cut("aten"), captured.compile(), compiled, compiled,
        foretrace.compile(program, backend="aot_eager", fullgraph=True),
    ]  # fmt: skip
    for way in ways:
        theirs = make()
        copies = dict[int, Tensor]()
        for each in theirs:  # the same views of copies
            memory = each.untyped_storage()
            base = copies.setdefault(memory.data_ptr(), torch.empty(0).set_(memory.clone()))
            assert base.untyped_storage().nbytes() == memory.nbytes()
        mine = tuple(
            copies[each.untyped_storage().data_ptr()].as_strided(
                each.shape, each.stride(), each.storage_offset()
            ) for each in theirs
        )  # fmt: skip
        expected, found = program(*theirs), way(*mine)
        assert not [*differences(expected, found, "result")]
        assert not [*differences([*theirs], [*mine], "argument")]
        pairs = zip(_leaves(expected), _leaves(found), strict=True)
        for one, other in pairs:
            assert [one is each for each in theirs] == [other is each for each in mine]
            shared = [
                one.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for x in theirs
            ]
            assert shared == [
                other.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() for x in mine
            ]
    assert not compiled.recaptures


def _leaves(result: Any) -> list[Tensor]:
    return [*result] if isinstance(result, tuple) else [result]


def trains(a: Tensor, row: Tensor, w: Tensor) -> Tensor:
    row.mul_(2)
    return (a * w).sum() + (row * w).sum()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_gradients(backend: str) -> None:
    """They are of what is read after the write."""
    w, compiled = (
        torch.randn(4, requires_grad=True),
        foretrace.compile(trains, backend=backend, fullgraph=True),
    )
    for _ in range(2):
        a = torch.randn(3, 4)
        given = [a.clone() for _ in range(4)]
        (expected,) = torch.autograd.grad(trains(given[0], given[0][1], w), w)
        (found,) = torch.autograd.grad(compiled(given[1], given[1][1], w), w)
        program = foretrace.capture(trains, (given[2], given[2][1], w), verify=True)
        _, gradients = program.cut("joint", loss=0)(given[2], given[2][1], w)
        for gradient in (found, gradients["w"]):
            assert gradient is not None
            assert torch.equal(gradient, expected)
        assert torch.equal(given[0], given[1])
        assert torch.equal(given[0], given[2])
    assert not compiled.recaptures


def test_no_memory_in_common() -> None:
    """Another capture; a cut refuses."""
    compiled = foretrace.compile(written_whole, fullgraph=True)
    cut = foretrace.capture(written_whole, whole_and_row()).cut("aten")
    for make in (whole_and_row, lambda: (torch.zeros(3, 4), torch.zeros(4)), whole_and_row):
        args = make()
        expected = args[1].clone() + (1 if make is whole_and_row else 0)
        assert torch.equal(compiled(*args), expected * 2)
    with pytest.raises(foretrace.Refusal, match="share no memory"):
        cut(torch.zeros(3, 4), torch.zeros(4))


def test_one_that_requires_grad() -> None:
    """No: gradients go through each by its own way."""
    a = torch.randn(3, 4, requires_grad=True)
    with pytest.raises(foretrace.Refusal, match="shares"):
        foretrace.capture(lambda a, b: b.data.add_(1) * a, (a, a.detach()[0]))
