"""Let a forward cut train eagerly as the program does: spell out what autograd did not see.

A graph has no `torch.no_grad()`. So what the program computed under it is detached where it would
be followed, and a write that autograd did not see becomes a copy with the history of what was
written over: `clone`, then `copy_` through `detach`. Both are plain aten ops, as a graph that is to
be serialized needs.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from foretrace import torch_api
from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.autograd.eager_history.history_ops import HISTORY, make_call, make_copy
from foretrace.autograd.eager_history.version_counters import written_operand
from foretrace.autograd.eager_history.view_writes import through_views, writes_through_views
from foretrace.errors import Refusal
from foretrace.ir.program.op import Choice, Op, Value, Write, map_values, substitute
from foretrace.ir.program.rewrite import rename
from foretrace.ir.program.tensor_type import TensorType
from foretrace.operators.schemas.quirks import SCATTERED, WRONG_NOISE, overload
from foretrace.operators.schemas.schema import schema_of

aten = torch.ops.aten

HIDDEN = "autograd does not follow this write: new content, the history of what was there"
NO_GRAD = "the program ran this under torch.no_grad(), and a graph has no grad mode"
BELOW = "the program did not let autograd follow this, and a graph's operator would be"
LOOSE = "a view that is taken under no_grad requires grad, and no gradient goes through it"
COPIED = "autograd saves a copy of what an in-place op writes to"
WRONG = "torch's own derivative of it is wrong for what it writes over, or there is none"
NO_FORMULA = "the form that returns the new value has no derivative in torch, or another one"
REPLACED = "the write leaves nothing of what it writes over but the history, and zeros go back"

VIEWS: dict[Any, Any] = {
    scatter: overload(f"aten::{view}") for scatter, view in SCATTERED.overloads.items()
}
"""The views that a scatter writes through, with the scatter's arguments but its source."""
NOISY = frozenset(map(id, WRONG_NOISE.overloads))
"""By id, as to hash an operator is Python"""


@dataclass(frozen=True, slots=True)
class EagerHistory:
    """What a forward cut has to spell out.

    Where the grad mode around the run was off, that is no part of the program: what ran without
    another grad mode of its own is followed as the call's has it.
    """

    semantics: TargetSemantics
    """what tells which calls autograd refuses, and by which formula it follows the others"""
    around: bool = True
    copied: Mapping[Op, Value] = field(default_factory=dict)
    """writes, and the operand of which autograd saves a copy"""
    visible: Collection[Value] = ()
    """values whose `requires_grad` can be told: outputs, operands of what autograd follows"""
    inside: bool = False
    """whether the ops are those of a write, which Python does not call"""

    def stops(self, op: Op) -> bool:
        """Whether a write is to be left whole for `spell_history`."""
        return is_hidden_write(op) or op in self.copied

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
            yield from through_views(op)
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
            elif inner.target is aten.copy.default:
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
        itself = node(writes, args, kwargs, frozenset({0}))
        return itself != node(form.target, args, kwargs, frozenset())

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

    def escapes(self, op: Op) -> bool:
        """Whether eager would follow a result that was not followed in the run.

        A view that was taken under no_grad requires grad, but no gradient goes through it. What
        Python calls below autograd (randint_like) a graph's operator would have followed.
        """
        known = self.semantics.derivatives.below_autograd
        below = bool(known) and op.target in known and not self.inside
        if (op.origin.grad_mode or not self.around) and not below:
            return False
        return any(v.type.requires_grad for v in op.operands) and any(
            out.type.differentiable for out in op.outs
        )


def spell_history(ops: Iterable[Op], history: EagerHistory) -> Iterator[Op]:
    """The ops, each result followed by autograd exactly as in the recorded run."""
    for op in ops:
        if is_hidden_write(op):
            yield from _overwritten(op, history)
        elif history.copied and op in history.copied:
            yield from spell_history(_of_a_copy(op, history), history)
        elif id(op.target) in NOISY:
            for piece in _noisy(op):
                seen = history.escapes(piece)
                yield from _detached(piece, history.visible) if seen else [piece]
        elif history.escapes(op):
            refused = op.leaf and history.refused(op)
            yield from _of_detached(op) if refused else _detached(op, history.visible)
        elif _without_gradient(op) and history.refused(op):
            yield from _of_detached(op)
        else:
            yield op


def _is_in_place(op: Op) -> bool:
    """Whether it is a write that gives back the one tensor that it writes to, and no more."""
    target, _ = op.called
    if not (op.writes and hasattr(target, "overloadpacket")):
        return False
    schema = schema_of(target)
    return schema.returns_written and not schema.multiple and not schema.outs


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
    given = set(op.operands) - {op.args[0], written_operand(op)}
    return _followed_in(op, given).isdisjoint(op.outs)


def _followed_in(op: Op, but: Collection[Value] = ()) -> set[Value]:
    """What autograd follows in the body of a write, of which types tell only what goes in.

    `but`: what is not looked at.
    """
    ahead = {value: value.type.requires_grad and value not in but for value in op.operands}
    for inner in op.body or ():
        known = (ahead.get(value, value.type.requires_grad) for value in inner.operands)
        ahead.update(dict.fromkeys(inner.outs, any(known)))
    return {value for value, followed in ahead.items() if followed}


def _copied_over(op: Op, last: Op) -> Iterator[Op]:
    (out,) = op.outs
    new, done = Value(out.type.with_grad(False)), Value(out.type)
    if last.target is aten.copy.default:
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


def _of_a_copy(op: Op, history: EagerHistory) -> Iterator[Op]:
    """The functional form of a write, of a copy of what it writes to: autograd saves one, too."""
    old = history.copied[op]
    copy = Value(old.type)
    yield from make_copy(op, old, copy, COPIED)
    for inner in history.trained_body(op):
        first = inner.args[:1] == (old,)
        args = (copy, *inner.args[1:])
        yield _with_args(inner, args, inner.kwargs, COPIED) if first else inner


def _without_gradient(op: Op) -> bool:
    """Whether an op under no_grad gives what has no gradient, of what does.

    torch's autograd may refuse such a call: a sum of numbers as a bool.
    """
    hidden = op.leaf and not op.origin.grad_mode and any(v.type.requires_grad for v in op.operands)
    return hidden and not any(out.type.differentiable for out in op.outs)


def _detached(op: Op, visible: Collection[Value]) -> Iterator[Op]:
    raw = {out: Value(out.type, out.hint) for out in op.outs if out.type.differentiable}
    yield rename(op, raw)
    why = NO_GRAD if not op.origin.grad_mode else BELOW
    for out, before in raw.items():
        if not (out.type.requires_grad and out in visible):
            yield make_call(op, aten.detach.default, (before,), out, why)
            continue
        loose = Value(out.type.with_grad(False))
        yield make_call(op, aten.detach.default, (before,), loose, LOOSE)
        yield make_call(op, aten.requires_grad_.default, (loose,), out, LOOSE)


def _of_detached(op: Op) -> Iterator[Op]:
    """An op that torch's autograd refuses to follow, of operands that it does not."""
    bare = {v: Value(v.type.with_grad(False)) for v in op.operands if v.type.requires_grad}
    for value, detached in bare.items():
        yield make_call(op, aten.detach.default, (value,), detached, NO_GRAD)
    args, kwargs = substitute((op.args, op.kwargs), bare)
    yield _with_args(op, args, kwargs, NO_GRAD)


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


def _noisy(op: Op) -> Iterator[Op]:
    """`rrelu_with_noise_functional` by a write: torch's own derivative of it reads the wrong noise.

    Seen on torch 2.13: it reads the noise that was given, and not what was drawn. What the write
    gives lies in order.
    """
    out, drawn = op.outs
    made = Value(out.type.contiguous().with_grad(out.type.requires_grad))
    laid = made.type.stride == out.type.stride
    args = (op.args[0], drawn, *op.args[2:])
    yield from make_copy(op, op.args[1], drawn, WRONG)
    yield make_call(op, aten.rrelu_with_noise.default, args, out if laid else made, WRONG)
    if not laid:
        empty = Value(out.type.with_grad(False))
        sizes = list(out.type.shape), list(out.type.stride)
        yield make_call(op, aten.new_empty_strided.default, (made, *sizes), empty, WRONG)
        yield make_call(op, aten.copy_.default, (empty, made), out, WRONG)


def _overwritten(op: Op, history: EagerHistory) -> Iterator[Op]:
    """`base` with other content: its history, and what the write's functional form gives."""
    (out,), base = op.outs, op.args[0]
    raw = Value(out.type.with_grad(False))
    inside = replace(history, inside=True, around=True, copied={})
    for inner in history.trained_body(op):
        yield from spell_history([rename(inner, {out: raw})], inside)
    kept, view = Value(out.type.with_grad(False)), Value(out.type.with_grad(False))
    yield from make_copy(op, base, out, HIDDEN)
    yield make_call(op, aten.detach.default, (out,), view, HIDDEN)
    yield make_call(op, aten.copy_.default, (view, raw), kept, HIDDEN)


def _with_args(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], why: str) -> Op:
    choice = Choice(HISTORY, "spelled out", why)
    return op.but(args=args, kwargs=kwargs, choice=choice, piece_of=op)
