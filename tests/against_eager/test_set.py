"""`Tensor.set_`: a tensor sees the memory of another from then on, and autograd counts a write."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import foretrace

BACKENDS = {
    "eager": "eager",
    "graphs": lambda module, inputs: module,
    "compilers": foretrace.aot_autograd(fw_compiler=lambda module, inputs: module),
}


def of_another_argument(a: Tensor, b: Tensor) -> Tensor:
    with torch.no_grad():
        a.set_(b)
        b.mul_(2)
    return a + b


def of_a_new_tensor(a: Tensor, b: Tensor) -> Tensor:
    new = torch.arange(9.0).reshape(3, 3)
    with torch.no_grad():
        a.set_(new)
    return a * b + new


def of_a_view(a: Tensor, b: Tensor) -> Tensor:
    with torch.no_grad():
        a.set_(b.t())
        b[0].zero_()
    return a * 2 + b


def of_what_is_created(a: Tensor, b: Tensor) -> Tensor:
    made = torch.empty(3, 3)
    made.set_(a.detach())
    made.mul_(3)
    return made + b


def there_and_back(a: Tensor, b: Tensor) -> Tensor:
    before = a.detach()
    with torch.no_grad():
        a.set_(b)
        a.set_(before)
        a.add_(1)
    return a * b


PROGRAMS = (of_another_argument, of_a_new_tensor, of_what_is_created)


def seen(function: Callable[..., Tensor], *, followed: bool) -> list[Any]:
    """All that a caller sees of a call, of its arguments and their gradients."""
    torch.manual_seed(0)
    leaves = [torch.randn(3, 3, requires_grad=followed) for _ in range(2)]
    a, b = (leaf * 1 for leaf in leaves)
    out = function(a, b)
    found: list[Any] = [out.detach(), a.detach().clone(), b.detach().clone()]
    found += [a.data_ptr() == b.data_ptr(), a._version > 0, b._version > 0, a.stride()]
    found += [each.requires_grad for each in (out, a, b)]
    if out.requires_grad:
        loss = (out * torch.arange(9.0).reshape(3, 3)).sum() + (a * 3).sum()
        found += torch.autograd.grad(loss, leaves)
    with torch.no_grad():
        a.add_(1)
    return [*found, a.detach().clone(), b.detach().clone()]


def check(program: Callable[..., Tensor], backend: Any, *, followed: bool) -> None:
    compiled = foretrace.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        for one, other in zip(
            seen(program, followed=followed), seen(compiled, followed=followed), strict=True
        ):
            assert torch.equal(one, other) if isinstance(one, Tensor) else one == other
    assert not compiled.recaptures


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("followed", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_as_eager(program: Callable[..., Tensor], backend: str, followed: bool) -> None:
    check(program, BACKENDS[backend], followed=followed)


@pytest.mark.parametrize("program", [of_a_view, there_and_back])
@pytest.mark.parametrize("backend", BACKENDS)
def test_of_a_view(program: Callable[..., Tensor], backend: str) -> None:
    check(program, BACKENDS[backend], followed=False)


def test_what_the_caller_has_saved_of_it_is_another_now() -> None:
    for function in (of_another_argument, foretrace.compile(of_another_argument, fullgraph=True)):
        a, b = (torch.ones(3, 3, requires_grad=True) * 1 for _ in range(2))
        saved = a * a
        function(a, b)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            saved.sum().backward()


def test_a_view_that_autograd_follows_is_refused() -> None:
    compiled = foretrace.compile(of_a_new_tensor, fullgraph=True)
    a = (torch.ones(4, 3, requires_grad=True) * 1)[1:]
    with pytest.raises(foretrace.Refusal, match="the memory of"):
        compiled(a, torch.ones(3, 3))


def of_a_view_of_it(a: Tensor) -> tuple[Tensor, ...]:
    a.data = a.detach().clone() * 3
    return (a.t() * 2,)


def more_than_one(a: Tensor) -> tuple[Tensor, ...]:
    a.data = a.data.clamp(-1, 0.5)
    return a[0] * 2, a * 2, a[1, 1:].clone()


def in_other_strides(a: Tensor) -> tuple[Tensor, ...]:
    a.data = a.detach().t().contiguous().t() * 3
    return (a * 2).t(), a


@pytest.mark.parametrize("turned", [False, True], ids=["dense", "turned"])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [of_a_view_of_it, more_than_one, in_other_strides])
def test_results_of_a_leaf_with_other_data(
    program: Callable[..., tuple[Tensor, ...]], backend: str, *, turned: bool
) -> None:
    """They have the leaf's history, and the strides of the new memory."""

    def facts(call: Callable[..., tuple[Tensor, ...]]) -> list[Any]:
        memory = torch.arange(8.0).reshape(4, 2).t() if turned else torch.arange(8.0).reshape(2, 4)
        leaf = memory.clone(memory_format=torch.preserve_format).requires_grad_()
        results = call(leaf)
        sum(each.sin().sum() for each in results).backward()
        assert leaf.grad is not None
        seen = [(r.tolist(), r.stride(), r.requires_grad, r.is_leaf) for r in (*results, leaf)]
        return [seen, leaf.grad.tolist(), leaf.grad.stride()]

    compiled = foretrace.compile(program, fullgraph=True, backend=BACKENDS[backend])
    assert [facts(compiled) for _ in range(2)] == [facts(program)] * 2


def test_a_returned_view_of_it_is_refused() -> None:
    """The memory is set after the graph: a view would see another, and lose the history."""

    def view(a: Tensor) -> Tensor:
        a.data = a.detach().clone() * 3
        return a.t()

    with pytest.raises(foretrace.Refusal, match="gives other memory") as caught:
        foretrace.compile(view, fullgraph=True)(torch.ones(2, 4, requires_grad=True))
    assert caught.value.kind == "aliased outputs"
    leaf = torch.ones(2, 4, requires_grad=True)
    with pytest.warns(UserWarning, match="not captured whole"):
        result = foretrace.compile(view)(leaf)
    assert result._base is leaf
    assert result.tolist() == torch.full((4, 2), 3.0).tolist()


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize("taken", [Tensor.detach, lambda a: a.data[0]], ids=["whole", "row"])
def test_what_is_detached_from_one_with_a_history_shares_its_memory_or_is_refused(
    taken: Callable[[Tensor], Tensor], *, leaf: bool
) -> None:
    def given(a: Tensor, b: Tensor) -> Tensor:
        a.data = b.data
        return taken(a)

    def shares(call: Callable[..., Tensor], *, followed: bool) -> bool:
        a, b = (torch.ones(3, 3, requires_grad=followed) for _ in range(2))
        a = a if leaf or not followed else a * 1
        found = call(a, b)
        return a.untyped_storage().data_ptr() == found.untyped_storage().data_ptr()

    for followed in (False, True):
        assert shares(given, followed=followed)
    compiled = foretrace.compile(given, fullgraph=True)
    assert shares(compiled, followed=False)
    with pytest.raises(foretrace.Refusal, match="gives other memory"):
        shares(compiled, followed=True)


def turned(a: Tensor, b: Tensor) -> Any:
    a.data = a.data.t()
    return a * 2 + b


def turned_and_written(a: Tensor, b: Tensor) -> Any:
    with torch.no_grad():
        a.set_(a.detach().t())
        a.mul_(b)
    return a + 1


def away_and_turned(a: Tensor, b: Tensor) -> Any:
    before = a.data
    a.data = b.data
    a.data = before.t()
    return a.detach() * b.detach()


def rows(a: Tensor, b: Tensor) -> Any:
    a.data = a.data[1:]
    return a * 2, a


def flat(a: Tensor, b: Tensor) -> Any:
    row = a.detach()[0]
    a.data = a.data.view(-1)
    row.add_(5)
    return row, a


def exchanged(a: Tensor, b: Tensor) -> Any:
    a.data, b.data = b.data.view(-1), a.data[0]
    return a.sum() + b.sum()


def grown(a: Tensor, b: Tensor) -> Any:
    a.data = torch.stack([a.data, b.data])
    return a.sum(), b * 1


def cut_and_copied(a: Tensor, b: Tensor) -> Any:
    a.set_(torch.ones(5))
    a.data = b.data[:, :2]
    a.data = a.data.contiguous()
    a.mul_(2)
    return a + 1


def made_of_another(a: Tensor, b: Tensor) -> Any:
    made = torch.empty(3)
    made.set_(a.detach().view(-1))
    made.mul_(3)
    return made + 1, b * 2


def sees(function: Callable[..., Any], call: int, *, followed: bool) -> list[Any]:
    """What a caller sees of a call and of its memory, before and after a write."""
    memory = torch.arange(18.0).view(2, 3, 3) + call
    a, b = (part.clone().requires_grad_(followed) for part in memory)
    found = function(a, b)
    every = a, b, *(found if isinstance(found, tuple) else (found,))
    losses = [each.sum() for each in every[2:] if each.requires_grad]
    if losses:
        sum(losses).backward()  # type: ignore[union-attr]
    where = [each.untyped_storage().data_ptr() for each in every]
    facts: list[Any] = [[one == other for one in where] for other in where]
    facts += [(each.tolist(), each.stride(), each.storage_offset()) for each in every]
    facts += [each.grad is not None and each.grad.tolist() for each in (a, b)]
    with torch.no_grad():
        a.add_(1)
        b.add_(2)
    return [*facts, *(each.tolist() for each in every)]


OWN = (turned, turned_and_written, away_and_turned)
OTHER_SHAPES = (rows, flat, exchanged, grown, cut_and_copied, made_of_another)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("program", "followed"),
    [(each, True) for each in OWN] + [(each, False) for each in (*OWN, *OTHER_SHAPES)],
)
def test_its_own_memory_seen_otherwise_and_memory_of_another_shape(
    program: Callable[..., Any], backend: str, *, followed: bool
) -> None:
    compiled = foretrace.compile(program, backend=BACKENDS[backend], fullgraph=True)
    for call in range(3):
        assert sees(compiled, call, followed=followed) == sees(program, call, followed=followed)
    assert not compiled.recaptures


@pytest.mark.parametrize("program", [rows, grown])
def test_of_another_shape_where_autograd_follows_is_refused(program: Callable[..., Any]) -> None:
    compiled = foretrace.compile(program, fullgraph=True)
    with pytest.raises(foretrace.Refusal, match="the memory of"):
        sees(compiled, 0, followed=True)
