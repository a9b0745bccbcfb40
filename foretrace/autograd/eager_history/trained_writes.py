"""Writes in a forward cut that trains: forms whose derivative is that of the program's write.

The functional form of a write may have no derivative in torch, or another one. Then the write runs
in place on a copy, through a view of a copy, or as a copy over what was there.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from foretrace import torch_api
from foretrace.autograd.derivatives.rule import TypedCall
from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.autograd.eager_history.history_ops import make_call, make_copy
from foretrace.autograd.eager_history.version_counters import written_operand
from foretrace.autograd.eager_history.view_writes import through_views, writes_through_views
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op, Write
from foretrace.ir.program.walk import rename
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value, map_values
from foretrace.operators.schemas.quirks import SCATTERED, overload
from foretrace.operators.schemas.schema import schema_of

aten = torch.ops.aten

WRONG = "torch's own derivative of it is wrong for what it writes over, or there is none"
NO_FORMULA = "the form that returns the new value has no derivative in torch, or another one"
REPLACED = "the write leaves nothing of what it writes over but the history, and zeros go back"

VIEWS: dict[Any, Any] = {
    scatter: overload(f"aten::{view}") for scatter, view in SCATTERED.overloads.items()
}
"""The views that a scatter writes through, with the scatter's arguments but its source."""


@dataclass(frozen=True, slots=True)
class TrainedWrites:
    """The bodies of writes, where autograd follows the graph."""

    semantics: TargetSemantics
    """which calls autograd refuses, and by which formula it follows the others"""

    def trained_body(self, op: Op) -> Iterator[Op]:
        """The body of an op; a write whose functional form has no derivative is a copy in it.

        That is one to a part of what autograd follows: its gradient is laid out as the whole was,
        that of a scatter as it comes. A scatter of the program's own stays: its derivative is what
        eager has. And it is one that leaves nothing of a followed tensor but its history, such as
        `y.copy_(c)`: eager's gradient goes on as zeros.
        """
        if not op.writes:
            yield from op.body or ()
            return
        if writes_through_views(op):
            yield from through_views(op, self.semantics.inference.infer)
            return
        followed, laid = _followed_in(op), dict[Value, Value]()
        for each in op.body or ():
            inner = _relaid(each, laid)
            seen = not is_hidden_write(op) and not followed.isdisjoint(inner.operands)
            if inner.target in VIEWS and (seen or self.refused(inner, followed)):
                yield from _scattered(inner, self.semantics)
            elif _is_in_place(op) and (_draws(op, inner) or self._differs(op, inner)):
                yield from _in_place(op, inner, laid)
                if _is_whole(op, inner):
                    return  # the rest lays the functional form out as what was written
            elif _leaves_history(op, inner):
                yield from _copied_over(op, inner)
            elif _is_copy(inner):
                yield make_call(op, aten.copy_.default, inner.args, inner.outs[0], NO_FORMULA)
            else:
                yield inner

    def _differs(self, op: Op, inner: Op) -> bool:
        """Whether a write of a followed tensor has another derivative than its functional form.

        The functional form may have none (`zero` of complex numbers), and integers have none.
        """
        target, _ = op.called
        form = schema_of(target).functional
        if form is None or form.call is not inner.target or form.dropped or form.order:
            return False
        if not inner.leaf or len(inner.outs) > 1:
            return False
        followed = bool(inner.operands[0].type.requires_grad)
        if inner.outs and not inner.outs[0].type.differentiable:
            return any(value.type.requires_grad for value in inner.operands)
        return followed and (self.refused(inner) or self._own_formula(target, inner))

    def _own_formula(self, writes: Any, form: Op) -> bool:
        """Whether an operator that writes has another derivative than its functional form.

        So has elu_, which knows its result alone.
        """
        args, kwargs = map_values((form.args, form.kwargs), lambda v: v.type)
        node = self.semantics.derivatives.node
        itself = node(TypedCall(writes, args, kwargs, frozenset({0})))
        return itself != node(TypedCall(form.target, args, kwargs))

    def refused(self, op: Op, followed: Collection[Value] = ()) -> bool:
        """Whether torch's autograd raises when the op runs, so that it can have no history.

        One that holds programs makes their derivatives when it runs, which may have none.
        `followed`: values that it follows, whatever their types.
        """
        if isinstance(op.target, torch_api.HigherOrderOperator):
            return True

        def type_of(value: Value) -> TensorType:
            return value.type.with_grad(True) if value in followed else value.type

        try:
            self.semantics.followed(op.target, *map_values((op.args, op.kwargs), type_of))
        except (RuntimeError, NotImplementedError) as error:
            if isinstance(error, Refusal):
                raise
            return True
        return False


def _is_in_place(op: Op) -> bool:
    """Whether it is a write that gives back the one tensor that it writes to, and no more."""
    target, _ = op.called
    if not (op.writes and hasattr(target, "overloadpacket")):
        return False
    schema = schema_of(target)
    return schema.returns.written and not schema.returns.several and not schema.outs


def _draws(op: Op, inner: Op) -> bool:
    """Whether this is the functional form of filling a followed tensor with what is drawn.

    Some functional forms have no derivative (`normal_functional`); that of the write is zero.
    """
    target, _ = op.called
    if not hasattr(inner.target, "overloadpacket"):
        return False
    drawn = schema_of(target).draws_over and schema_of(inner.target).random
    return drawn and bool(inner.args[0].type.requires_grad)


def _in_place(op: Op, inner: Op, laid: dict[Value, Value]) -> Iterator[Op]:
    """The write itself, on a copy, which has the layout of what is written.

    `laid` learns what lies as the copy, and not as the functional form, where a view was written.
    """
    (out,), old = op.outs if _is_whole(op, inner) else inner.outs, inner.args[0].type
    if out not in op.outs and out.type.stride != old.stride:
        laid[out] = out = Value(out.type.but(stride=old.stride))
    done, args = Value(out.type), (out, *inner.args[1:])
    yield from make_copy(op, inner.args[0], out, NO_FORMULA)
    yield make_call(op, op.called[0], args, done, NO_FORMULA, inner.kwargs)


def _is_whole(op: Op, inner: Op) -> bool:
    """Whether an op in the body of a write computes the new content of what is written itself."""
    return not isinstance(op.target, Write) and inner.args[0] is op.args[0]


def _relaid(op: Op, laid: dict[Value, Value]) -> Op:
    """The op over operands that are laid out otherwise, with a link to itself in the tree."""
    other = rename(op, laid)
    return op if other is op else other.but(piece_of=op)


def _leaves_history(op: Op, last: Op) -> bool:
    """Whether a write gives a followed tensor content that does not come of it."""
    if op.outs != last.outs or is_hidden_write(op) or not isinstance(op.args[0], Value):
        return False
    if not all(value.type.requires_grad for value in (op.args[0], *op.outs)):
        return False
    others = set(op.operands) - {op.args[0], written_operand(op)}
    return _followed_in(op, others).isdisjoint(op.outs)


def _followed_in(op: Op, but: Collection[Value] = ()) -> set[Value]:
    """What autograd follows in the body of a write, whose types say so of its operands only.

    `but`: what is not looked at.
    """
    ahead = {value: value.type.requires_grad and value not in but for value in op.operands}
    for inner in op.body or ():
        known = (ahead.get(value, value.type.requires_grad) for value in inner.operands)
        ahead.update(dict.fromkeys(inner.outs, any(known)))
    return {value for value, followed in ahead.items() if followed}


def _is_copy(op: Op) -> bool:
    return op.target is aten.copy.default


def _copied_over(op: Op, last: Op) -> Iterator[Op]:
    (out,) = op.outs
    new, done = Value(out.type.with_grad(False)), Value(out.type)
    if _is_copy(last):
        new = last.args[1]
    else:
        yield rename(last, {out: new})
    yield from make_copy(op, op.args[0], out, REPLACED)
    yield make_call(op, aten.copy_.default, (out, new), done, REPLACED)


def is_hidden_write(op: Op) -> bool:
    """A write that leaves the history of a followed tensor as it was."""
    target = op.target
    if not isinstance(target, Write) or target.followed:
        return False
    return bool(op.args[0].type.requires_grad)


def _scattered(op: Op, semantics: TargetSemantics) -> Iterator[Op]:
    """A scatter by a copy into a view, which has a derivative for every dtype and layout."""
    base, source, *where = op.args
    (out,) = op.outs
    seen: Any = semantics.infer(VIEWS[op.target], (out.type, *where), {})
    type = seen.with_grad(out.type.requires_grad)
    part, done = Value(type), Value(type)
    yield from make_copy(op, base, out, WRONG)
    yield make_call(op, VIEWS[op.target], (out, *where), part, WRONG)
    yield make_call(op, aten.copy_.default, (part, source), done, WRONG)
