"""Ops that stand for an op of the tree in a graph that trains as the program does."""

from collections.abc import Iterator
from typing import Any

import torch

from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import Choice
from foretrace.ir.program.walk import makes_leaf
from foretrace.ir.values.value import Value

aten = torch.ops.aten

HISTORY = "history"
"""The choice that an op carries which the program did not call"""
LEAF_GRADIENT = "the graph gives the gradient of a leaf that the program makes"
WRITTEN = "the program wrote to this memory since, and the backward is to find what is there"


def make_copy(because: Op, old: Value, out: Value, why: str) -> Iterator[Op]:
    """A copy in the strides that are asked: kernels round otherwise where elements lie otherwise.

    Raises:
        Refusal: several elements share one place, and a copy would separate them.
    """
    if old.type.overlapping:
        raise Refusal(
            "a graph that trains needs a copy of what overlaps itself",
            kind="overlapping memory",
            at=because.origin.frame,
            do="change the shape of a clone, or write to one",
        )
    if old.type.dense and old.type.stride == out.type.stride:
        yield make_call(because, aten.clone.default, (old,), out, why)
        return
    raw, sizes = Value(out.type.with_grad(False)), (list(out.type.shape), list(out.type.stride))
    yield make_call(because, aten.new_empty_strided.default, (old, *sizes), raw, why)
    yield make_call(because, aten.copy_.default, (raw, old), out, why)


def make_call(
    because: Op,
    func: object,
    args: tuple[Any, ...],
    out: Value,
    why: str,
    kwargs: dict[str, Any] | None = None,
) -> Op:
    """An op that stands for an op of the tree, and why it is there."""
    choice = Choice(HISTORY, "spelled out", why)
    return Op(
        func, args, kwargs or {}, out, (out,), origin=because.origin, choice=choice,
        piece_of=because,
    )  # fmt: skip


def left_in_memory(value: Value, now: Value | None, because: Op) -> Iterator[Op]:
    """Leave in a value's memory what the program has left there, for the backward to find.

    Where autograd's version counter has counted the write (`now` is None), a backward has to meet
    the write itself, as in eager.
    """
    view, done = Value(value.type.with_grad(False)), Value(value.type.with_grad(False))
    target = aten.detach.default if now is None else aten.data.default
    yield make_call(because, target, (value,), view, WRITTEN)
    content = view if now is None else now
    yield make_call(because, aten.copy_.default, (view, content), done, WRITTEN)


def unmark(op: Op) -> Op:
    """The op that creates a leaf as a `detach`, for a graph that computes its own gradients.

    A leaf of the backward stays: an op there needs it.
    """
    leaf = makes_leaf(op) and not op.late
    return (
        make_call(op, aten.detach.default, op.args[:1], op.outs[0], LEAF_GRADIENT) if leaf else op
    )
