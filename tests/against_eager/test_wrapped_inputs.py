"""Wrapping tensors that a call takes: written to with a history, and beside plain ones."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from functorch.compile import default_partition, min_cut_rematerialization_partition
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

import foretrace
from tests.support.bits import same_bits

compilers = partial(foretrace.aot_autograd, fw_compiler=lambda graph, _: graph)
BACKENDS: dict[str, Any] = {
    "eager": "eager",
    "graphs": lambda graph, _: graph,
    "compilers": compilers(),
    "default partition": compilers(partition_fn=default_partition),
    "min cut": compilers(partition_fn=min_cut_rematerialization_partition),
}


def reads(a: Tensor, b: Tensor) -> Any:
    return (a * b + 1).relu() - b


def scales(a: Tensor, b: Tensor) -> Any:
    a.mul_(2)
    b.mul_(3)
    return a + b


def multiplies(a: Tensor, b: Tensor) -> Any:
    a.mul_(b)
    return a.sum(), b


def writes_twice(a: Tensor, b: Tensor) -> Any:
    a.add_(b).mul_(2)
    return a.relu(), a


def returns_a_view(a: Tensor, b: Tensor) -> Any:
    a.sub_(1)
    return a.t() * b


def clears(a: Tensor, b: Tensor) -> Any:
    a.zero_()
    return a + b


def under_no_grad(a: Tensor, b: Tensor) -> Any:
    with torch.no_grad():
        a.add_(1)
    return a * b


PROGRAMS = (reads, scales, multiplies, writes_twice, returns_a_view, clears, under_no_grad)


def whole(*shape: int) -> Tensor:
    """Whole numbers, so that no sum depends on its order."""
    return torch.randint(1, 4, shape).float()


def made(wraps: bool, trains: bool) -> Tensor:
    tensor = TwoTensor(whole(3, 3), whole(3, 3)) if wraps else whole(3, 3)
    return tensor.requires_grad_(trains)


def again(tensor: Tensor) -> Tensor:
    if isinstance(tensor, TwoTensor):
        parts = tensor.a.detach().clone(), tensor.b.detach().clone()
        return TwoTensor(*parts).requires_grad_(tensor.requires_grad)
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def seen(call: Callable[..., Any], given: Sequence[Tensor]) -> list[Any]:
    """What it returns, what the arguments are afterwards, and the gradients of what they are of."""
    leaves = [again(each) for each in given]
    passed = [leaf * 1 if leaf.requires_grad else leaf for leaf in leaves]
    found = call(*passed)
    results = found if isinstance(found, tuple) else (found,)
    losses = [(each * 2).sum() for each in (*results, *passed) if each.requires_grad]
    if losses:
        sum(losses[1:], losses[0]).backward()
    after = [each.requires_grad for each in (*results, *passed)]
    return [*results, *passed, *(leaf.grad for leaf in leaves if leaf.is_leaf), *after]


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, TwoTensor):
        return type(found) is type(expected) and all(
            same(getattr(found, part), getattr(expected, part)) for part in ("a", "b")
        )
    if isinstance(expected, Tensor):
        return type(found) is type(expected) and same_bits(found.detach(), expected.detach())
    return bool(found == expected)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_same_as_eager_or_refused(program: Callable[..., Any], backend: str) -> None:
    right = 0
    for wraps, trains in product(
        product((True, False), repeat=2), product((True, False), repeat=2)
    ):
        given = [made(*each) for each in zip(wraps, trains, strict=True)]
        expected = seen(program, given)
        compiled = foretrace.compile(program, backend=BACKENDS[backend], fullgraph=True)
        try:
            found = seen(compiled, given)
        except foretrace.Refusal:
            if not any(wraps):
                raise
            continue
        assert all(map(same, found, expected)), (wraps, trains)
        right += 1
    assert right >= 8


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_eager_raises_for_is_refused(backend: str) -> None:
    def squares(a: Tensor) -> Tensor:
        return a.mul_(a)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        seen(squares, [made(True, True)])
    with pytest.raises(foretrace.Refusal, match="that it reads, too"):
        seen(
            foretrace.compile(squares, backend=BACKENDS[backend], fullgraph=True),
            [made(True, True)],
        )


class Tells(TwoTensor):
    """What it gives for a sine says what autograd knows of what it holds."""

    @staticmethod
    def __tensor_unflatten__(inner: Any, _meta: Any, size: Any, stride: Any) -> "Tells":
        return Tells(inner["a"], inner["b"], size, stride)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = super().__torch_dispatch__(func, types, args, kwargs)
        if func is torch.ops.aten.sin.default:
            held = args[0].a
            asked = 2 * held.requires_grad + 3 * held.is_leaf + 5 * (held.grad_fn is None)
            return TwoTensor(found.a * asked, found.b)
        return found


def asks(a: Any, b: Tensor) -> Any:
    return a * (2 if a.a.requires_grad and a.b.is_leaf else 3) + b.sin()


def sees_memory(a: Any, b: Tensor) -> Any:
    with torch.no_grad():
        unseen = a.a * 2
    return a.b.detach() * unseen * b, a.a.argmax()


def views(a: Any, b: Tensor) -> Any:
    return a.view(9), a.t() @ b, a.detach() * 2, a


def writes_unseen(a: Any, b: Tensor) -> Any:
    with torch.no_grad():
        a.mul_(2)
    return b * 2


def asks_inside(a: Any, b: Tensor) -> Any:
    return torch.sin(a) * b


def of_leaves(call: Callable[..., Any], holds: bool, kind: type = TwoTensor) -> list[Any]:
    """What a call gives for a leaf that holds leaves, or holds none, and what it leaves."""
    held = [(torch.arange(9.0).view(3, 3) + place).requires_grad_(holds) for place in range(2)]
    wrapping, plain = kind(*held).requires_grad_(), whole(3, 3).requires_grad_()
    plain.data.fill_(2)
    found = call(wrapping, plain)
    results = found if isinstance(found, tuple) else (found,)
    sum(each.sum() for each in results if each.requires_grad).backward()
    tensors = [*results, wrapping, plain, wrapping.grad, plain.grad]
    inner = [getattr(each, name) for each in (*results, wrapping) for name in ("a", "b")
             if isinstance(each, TwoTensor)]  # fmt: skip
    facts = [(each.requires_grad, each.is_leaf, each._version) for each in (*inner, plain)]
    kept = [each is wrapping for each in results], [each.grad for each in held]
    return [*tensors, *facts, *kept]


HELD = {"reads": reads, "asks": asks, "sees memory": sees_memory, "views": views,
        "writes": writes_unseen, "asks inside": asks_inside}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", HELD)
def test_one_that_holds_leaves_is_to_its_class_what_it_is_in_eager(
    program: str, backend: str
) -> None:
    fn, kind = HELD[program], Tells if program == "asks inside" else TwoTensor
    compiled = foretrace.compile(fn, backend=BACKENDS[backend], fullgraph=True)
    for holds in (True, False, True, False):
        expected = of_leaves(fn, holds, kind)
        found = of_leaves(compiled, holds, kind)
        assert all(map(same, found, expected)), holds


def test_what_it_holds_is_the_same_leaf_in_a_later_call_or_the_program_is_captured_again() -> None:
    compiled = foretrace.compile(reads, fullgraph=True)
    plain = whole(3, 3)
    leaves = [whole(3, 3).requires_grad_() for _ in range(2)]
    compiled(TwoTensor(*leaves), plain)
    with pytest.raises(foretrace.Refusal, match="requires grad and is no leaf"):
        compiled(TwoTensor(*(each * 2 for each in leaves)), plain)
