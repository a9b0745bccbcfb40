"""The quickest way to call an operator is the same call."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import foretrace
from foretrace.ir.program.op import Op
from foretrace.lowering.cuts.selectors import every_op
from foretrace.lowering.emit.bindings import C_FUNCTIONS, quickest

aten = torch.ops.aten


class Calls(TorchDispatchMode):
    """Notes the operators that reach the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run it."""
        self.seen.append((func, [a for a in args if not isinstance(a, Tensor)], kwargs or {}))
        return func(*args, **(kwargs or {}))


def ops_of(fn: Callable[..., Any], *args: Any) -> list[Op]:
    """The ops that a function is recorded as."""
    return [op for op in every_op(foretrace.capture(fn, args).recorded.ops) if op.leaf]


def programs() -> dict[str, Callable[[Tensor], Any]]:
    """Calls that lead to several overloads of one name."""
    return {
        "two tensors": lambda x: x * x.sin(),
        "a number": lambda x: x * 2.5 + 1,
        "another number": lambda x: torch.add(x, x, alpha=2),
        "powers": lambda x: (x**2, 2**x, x**x),
        "sums": lambda x: (x.sum(), x.sum(1), x.sum((0, 1), keepdim=True)),
        "maxima": lambda x: (x.amax(0), x.max(0)),
        "shapes": lambda x: (x.view(6), x.transpose(0, 1), x.unsqueeze(0), x[:, 1:], x.t()),
        "clamps": lambda x: (x.clamp(0), x.clamp(min=x, max=x + 1)),
        "numbers first": lambda x: 1 - x,
        "divisions": lambda x: (x / 3, torch.div(x, 2, rounding_mode="floor")),
    }


@pytest.mark.parametrize("name", programs())
def test_reaches_the_operator(name: str) -> None:
    """Called with real tensors, an op's binding calls that operator with the op's constants."""
    x = torch.rand(2, 3)
    for op in ops_of(programs()[name], x):
        tensors = {v: torch.rand([int(n) for n in v.type.shape]) for v in op.operands}

        def real(tree: Any, tensors: Any = tensors) -> Any:
            if isinstance(tree, (list, tuple)):
                return [real(each) for each in tree]
            return tensors.get(tree, tree) if tree.__hash__ else tree

        seen = []
        for call in (quickest(op), op.target):
            with Calls() as calls:
                call(*real(op.args), **{k: real(v) for k, v in op.kwargs.items()})
            seen.append(calls.seen)
        assert seen[0] == seen[1]
        assert seen[0]


def test_common_operators_have_one() -> None:
    """Otherwise the search finds nothing and the calls are slow."""
    ops = ops_of(lambda x: (x * x).sin().view(6).sum(0), torch.rand(2, 3))
    assert [isinstance(quickest(op), C_FUNCTIONS) for op in ops] == [True] * 4
    assert {quickest(op).__name__ for op in ops} == {"mul", "sin", "view", "sum"}


def test_a_binding_that_leads_elsewhere_is_not_used() -> None:
    """`torch.add` with a number is `add.Tensor`: it is no way to call `add.Scalar`."""
    (op,) = ops_of(lambda x: aten.add.Scalar(x, 2), torch.rand(2))
    assert op.target is aten.add.Scalar
    assert quickest(op).__name__ != "add"
