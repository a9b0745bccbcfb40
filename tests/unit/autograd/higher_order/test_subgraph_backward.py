"""`own`: each gradient that a program returns has memory of its own."""

from dataclasses import dataclass
from typing import Any

import torch

from foretrace.autograd.higher_order.subgraph_backward import own
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import RuleName
from foretrace.ir.values.value import Value
from tests.support.trees import tree

aten = torch.ops.aten
RULE = RuleName("of a test", "derived")


@dataclass
class Walk:
    """A walk that notes what is appended."""

    ops: list[Op]
    gradients: dict[Value, Value]

    def append(self, func: Any, args: Any, kwargs: Any, because: Op, rule: RuleName) -> Op:
        out = Value(args[0].type)
        self.ops.append(Op(func, args, kwargs, out, (out,), origin=because.origin))
        return self.ops[-1]


def owned(name: str | None, others: tuple[str, ...] = ()) -> tuple[Value | None, Value, list[Any]]:
    """The gradient that is asked for, what is returned of it, and what is appended."""
    values, ops = tree(
        "%x: f32[2] grad\n"
        "%y = aten.neg.default(%x): f32[2]\n"
        "%v = aten.view.default(%x, [2]): f32[2]\n"
    )
    gradient = values[name] if name else None
    walk: Any = Walk(list(ops), {values["x"]: gradient} if gradient else {})
    found = own(walk, values["x"], [values[each] for each in others], ops[0], RULE)
    return gradient, found, [op.target for op in walk.ops[len(ops) :]]


def test_what_the_program_computes_is_returned_itself() -> None:
    gradient, found, appended = owned("y")
    assert found is gradient
    assert appended == []


def test_an_operand_a_view_and_a_second_use_are_cloned() -> None:
    for name, others in (("x", ()), ("v", ()), ("y", ("y",))):
        gradient, found, appended = owned(name, others)
        assert found is not gradient
        assert appended == [aten.clone.default]


def test_where_no_gradient_arrives_zeros_are_returned() -> None:
    _, _, appended = owned(None)
    assert appended == [aten.zeros_like.default]
