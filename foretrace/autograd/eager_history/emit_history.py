"""Express as ops what autograd did not see, so that a forward cut trains as the program does.

A graph has no `torch.no_grad()`. So what the program computed under it is detached where it would
be followed, and a write that autograd did not see becomes a copy with the history of what was
written over: `clone`, then `copy_` through `detach`. Both are plain aten ops, as a graph that is to
be serialized needs.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from foretrace.autograd.eager_history.history_ops import HISTORY, make_call, make_copy
from foretrace.autograd.eager_history.trained_writes import WRONG, TrainedWrites, is_hidden_write
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import Choice
from foretrace.ir.program.walk import rename
from foretrace.ir.values.value import Value, substitute
from foretrace.operators.schemas.quirks import WRONG_NOISE

aten = torch.ops.aten

HIDDEN = "autograd does not follow this write: new content, the history of what was there"
NO_GRAD = "the program ran this under torch.no_grad(), and a graph has no grad mode"
BELOW = "the program did not let autograd follow this, and a graph's operator would be"
LOOSE = "a view that is taken under no_grad requires grad, and no gradient goes through it"
COPIED = "autograd saves a copy of what an in-place op writes to"
NOISY = frozenset(map(id, WRONG_NOISE.overloads))
"""By id, as to hash an operator is Python"""


@dataclass(frozen=True, slots=True)
class EagerHistory(TrainedWrites):
    """What autograd did not see of a program, and which forms of its writes train.

    Where the grad mode around the run was off, that is no part of the program: what ran without
    another grad mode of its own is followed as the call's has it.
    """

    around: bool = True
    copied: Mapping[Op, Value] = field(default_factory=dict)
    """writes, and the operand of which autograd saves a copy"""
    visible: Collection[Value] = ()
    """values whose `requires_grad` is observable: outputs, operands of what autograd follows"""
    inside: bool = False
    """whether the ops are those of a write, which Python does not call"""

    def stops(self, op: Op) -> bool:
        """Whether a write is to be left whole for `emit_history`."""
        return is_hidden_write(op) or op in self.copied

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


def emit_history(ops: Iterable[Op], history: EagerHistory) -> Iterator[Op]:
    """The ops, each result followed by autograd exactly as in the recorded run."""
    for op in ops:
        if is_hidden_write(op):
            yield from _overwritten(op, history)
        elif history.copied and op in history.copied:
            yield from emit_history(_of_a_copy(op, history), history)
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


def _noisy(op: Op) -> Iterator[Op]:
    """`rrelu_with_noise_functional` by a write: torch's own derivative of it reads the wrong noise.

    Seen on torch 2.13: it reads the noise operand as it was, and not what was drawn. The result of
    the write is contiguous.
    """
    out, drawn = op.outs
    result = Value(out.type.contiguous().with_grad(out.type.requires_grad))
    laid = result.type.stride == out.type.stride
    args = (op.args[0], drawn, *op.args[2:])
    yield from make_copy(op, op.args[1], drawn, WRONG)
    yield make_call(op, aten.rrelu_with_noise.default, args, out if laid else result, WRONG)
    if not laid:
        empty = Value(out.type.with_grad(False))
        sizes = list(out.type.shape), list(out.type.stride)
        yield make_call(op, aten.new_empty_strided.default, (result, *sizes), empty, WRONG)
        yield make_call(op, aten.copy_.default, (empty, result), out, WRONG)


def _overwritten(op: Op, history: EagerHistory) -> Iterator[Op]:
    """`base` with other content: its history, and what the write's functional form gives."""
    (out,), base = op.outs, op.args[0]
    raw = Value(out.type.with_grad(False))
    inside = replace(history, inside=True, around=True, copied={})
    for inner in history.trained_body(op):
        yield from emit_history([rename(inner, {out: raw})], inside)
    kept, view = Value(out.type.with_grad(False)), Value(out.type.with_grad(False))
    yield from make_copy(op, base, out, HIDDEN)
    yield make_call(op, aten.detach.default, (out,), view, HIDDEN)
    yield make_call(op, aten.copy_.default, (view, raw), kept, HIDDEN)


def _with_args(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], why: str) -> Op:
    choice = Choice(HISTORY, "spelled out", why)
    return op.but(args=args, kwargs=kwargs, choice=choice, piece_of=op)
