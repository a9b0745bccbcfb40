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
        return type(found) is TwoTensor and all(
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
