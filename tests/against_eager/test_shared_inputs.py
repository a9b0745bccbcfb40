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


def of_counted(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    b.mul_(2)
    return a * 3, b, b[0] * 2


def of_counted_unseen(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    with torch.no_grad():
        a.add_(1)
    return a * b.sum(), b * 2, b[:1]


def of_a_history(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    first = b * 2
    a.mul_(2)
    return a * 1, first, b + 1


@pytest.mark.parametrize("program", [of_counted, of_counted_unseen, of_a_history])
@pytest.mark.parametrize("backend", ["eager", "graphs"])
@pytest.mark.parametrize(
    "detached", [Tensor.detach, lambda t: t.detach()[1:], lambda t: t[1:].detach()]
)
def test_one_that_is_detached(
    program: Callable[..., Any], backend: str, detached: Callable[[Tensor], Tensor]
) -> None:
    """A gradient goes through the other alone."""

    def facts(call: Callable[..., Any]) -> list[Any]:
        leaf = torch.arange(1.0, 13).reshape(3, 4).clone().requires_grad_()
        passed = [a := leaf * 1, detached(a)]
        results = call(*passed)
        sum(each.square().sum() for each in results if each.requires_grad).backward()
        known = [*passed, *results]
        bases = [[i for i, each in enumerate(known) if each is t._base] for t in known]
        same = [[i for i, each in enumerate(known) if each is t] for t in known]
        seen = [(t.tolist(), t.requires_grad, t._is_view(), t._version) for t in known]
        assert leaf.grad is not None
        return [seen, bases, same, leaf.grad.tolist()]

    how = {} if backend == "eager" else {"backend": lambda module, inputs: module}
    compiled = foretrace.compile(program, fullgraph=True, **how)  # type: ignore[call-overload]
    assert [facts(compiled) for _ in range(2)] == [facts(program)] * 2


def test_one_without_the_version_counter() -> None:
    """No: `.data` has one of its own. Later calls see it, too."""
    a = torch.randn(3, 4, requires_grad=True)
    with pytest.raises(foretrace.Refusal, match="shares"):
        foretrace.capture(lambda a, b: b.add_(1) * a, (a, a.data[0]))
    cut = foretrace.capture(of_counted, (a, a.detach())).cut("export")
    with pytest.raises(foretrace.Refusal, match="share no memory now, as they did"):
        cut(a, a.data)


def test_leaves_of_one_memory() -> None:
    """No: each has a history of its own."""
    memory = torch.arange(8.0)
    first, second = memory[2:].requires_grad_(), memory.view(2, 4).requires_grad_()

    def program(a: Tensor, b: Tensor) -> Tensor:
        with torch.no_grad():
            a.mul_(2)
        return b.sum() + a.sum()

    with pytest.raises(foretrace.Refusal, match="whose memory another input shares"):
        foretrace.capture(program, (first, second))


def test_views_of_a_leaf_taken_under_no_grad() -> None:
    """No: a gradient of them goes nowhere, and one of the leaf's memory would reach the leaf."""

    def program(a: Tensor, b: Tensor) -> Tensor:
        b.data.mul_(3)
        return torch.cat([a.reshape(-1), b])

    def views() -> tuple[Tensor, tuple[Tensor, Tensor]]:
        leaf = torch.ones(3, 4, requires_grad=True)
        with torch.no_grad():
            return leaf, (leaf.t(), leaf[:, 1])

    leaf, passed = views()
    program(*passed).sum().backward()
    assert leaf.grad is None
    with pytest.raises(foretrace.Refusal, match="whose memory another input shares"):
        foretrace.capture(program, views()[1])


@pytest.mark.filterwarnings("ignore:.*is not captured whole")
@pytest.mark.parametrize("give", [lambda a, new: setattr(a, "data", new), Tensor.set_])
def test_one_that_gets_other_memory(give: Callable[[Tensor, Tensor], None]) -> None:
    """No: the call would leave it in the memory of the other."""

    def program(a: Tensor, b: Tensor) -> Tensor:
        give(a, a.clone())
        b.mul_(3)
        return a * 1

    base = torch.arange(9.0).view(3, 3)
    with pytest.raises(foretrace.Refusal, match=r"\.data, and another input shares"):
        foretrace.compile(program, fullgraph=True)(base.t(), base[1:])
    assert torch.equal(base, torch.arange(9.0).view(3, 3))
    for call in (program, foretrace.compile(program)):  # which runs it as Python
        base = torch.arange(9.0).view(3, 3)
        a = base.t()
        assert torch.equal(call(a, base[1:]), torch.arange(9.0).view(3, 3).t())
        assert torch.equal(a, torch.arange(9.0).view(3, 3).t())


def writes_the_first(a: Tensor, b: Tensor) -> Tensor:
    return a.mul_(2).sum() * b


def parts_of(whole: Tensor, first: slice, second: slice) -> tuple[Tensor, Tensor]:
    return whole[first], whole[second]


APART = (slice(0, 4), slice(4, 8))


@pytest.mark.parametrize("trains", [False, True])
def test_parts_that_lie_apart(trains: bool) -> None:
    """They need not be arguments that one memory stands for; each call looks where they lie."""
    held = torch.arange(8.0)
    mine, its = parts_of(held, *APART)
    its = its.detach().requires_grad_(trains)
    expected = writes_the_first(mine.clone(), its.detach())

    def program(a: Tensor) -> Tensor:
        return writes_the_first(a, its.detach())

    compiled = foretrace.compile(program, fullgraph=True)
    assert torch.equal(compiled(mine), expected)
    assert torch.equal(mine, torch.arange(4.0) * 2)
    with pytest.raises(foretrace.Refusal, match="shares"):
        foretrace.capture(program, (held[2:6],))


def test_a_call_with_parts_that_overlap() -> None:
    def program(a: Tensor, b: Tensor) -> Tensor:
        return writes_the_first(a, b)

    whole = torch.arange(8.0)
    cut = foretrace.capture(program, (torch.ones(4), torch.ones(4))).cut("export")
    given = parts_of(whole, *APART)
    assert torch.equal(cut(*given), writes_the_first(torch.arange(4.0), torch.arange(4.0, 8.0)))
    with pytest.raises(foretrace.Refusal, match="shares"):
        cut(*parts_of(whole, slice(0, 4), slice(3, 7)))


def test_autograd_minds_a_write_that_is_counted_for_another() -> None:
    """Eager's backward raises, as `detach` leaves one version counter to both."""
    whole = torch.arange(8.0)
    first, second = whole[:4], whole[4:].detach().requires_grad_()

    def program(x: Tensor) -> Tensor:
        y = x * second
        first.add_(1)
        return y

    x = torch.ones(4, requires_grad=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        program(x).sum().backward()
    with pytest.raises(foretrace.Refusal, match="shares"):
        foretrace.capture(program, (x,))
