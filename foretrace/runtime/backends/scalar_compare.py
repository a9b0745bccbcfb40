"""Numbers that data decides, compared as numbers where a record compares tensors of them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import sympy
import torch

from foretrace.ir.program.op import Op
from foretrace.ir.values.value import Value
from foretrace.lowering.cuts.runtime_asserts import ASSERT_NUMBER
from foretrace.lowering.emit.python_code import Straight
from foretrace.tracer.data_dependence.value_guards import ASSERT

aten = torch.ops.aten
ASSERTIONS = frozenset({ASSERT, ASSERT_NUMBER})

RELATIONS: Mapping[Any, str] = MappingProxyType({
    aten.eq.Scalar: "==", aten.ne.Scalar: "!=", aten.lt.Scalar: "<",
    aten.le.Scalar: "<=", aten.gt.Scalar: ">", aten.ge.Scalar: ">=",
})  # fmt: skip
"""What Python writes for a comparison of a tensor of one float64 with a number"""
LARGEST: Final = 1 << 53
"""Up to here each integer is a float"""


@dataclass(frozen=True, slots=True)
class Relation:
    """A comparison of a number that data decides with another: what its tensors would say."""

    number: sympy.Symbol
    sign: str
    other: float
    negated: bool

    def text(self, straight: Straight) -> str:
        """As Python asks it."""
        text = f"({straight.tree(self.number)} {self.sign} {straight.tree(self.other)})"
        return f"(not {text})" if self.negated else text


def with_relations(ops: Sequence[Op]) -> list[Op]:
    """The ops with numbers compared as numbers, without the tensors that only served that."""
    makers = {out: op for op in ops for out in op.outs}
    related = [_as_relation(op, makers) if op.target in ASSERTIONS else op for op in ops]
    unread = unread_in(related, set(makers.values()))
    return [op for op in related if op not in unread]


def unread_in(ops: Sequence[Op], among: Collection[Op], results: Iterable[Value] = ()) -> set[Op]:
    """The ops among some whose results no remaining op reads and the graph does not return."""
    found, read = set[Op](), set(results)
    for op in reversed(ops):
        if op in among and read.isdisjoint(op.outs):
            found.add(op)
        else:
            read.update(op.operands)
    return found


def _as_relation(op: Op, makers: Mapping[Value, Op]) -> Op:
    relation = _relation(op.args[0], makers) if isinstance(op.args[0], Value) else None
    if relation is None:
        return op
    return op.but(args=(relation, *op.args[1:]))


def _relation(asked: Value, makers: Mapping[Value, Op]) -> Relation | None:
    maker = makers.get(asked)
    negated = maker is not None and maker.target is aten.logical_not.default
    if maker is not None and negated:
        maker = makers.get(maker.args[0])
    if maker is None or maker.target not in RELATIONS:
        return None
    scalar, other = makers.get(maker.args[0]), maker.args[1]
    exact = type(other) is float or (type(other) is int and abs(other) <= LARGEST)
    if scalar is None or scalar.target is not aten.scalar_tensor.default or not exact:
        return None
    number, double = scalar.args[0], scalar.outs[0].type.dtype is torch.float64
    if not (double and isinstance(number, sympy.Symbol)):
        return None
    return Relation(number, RELATIONS[maker.target], other, negated)
