"""Dead code elimination: the ops that outputs need, the values that an op needs and returns."""

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache

import torch

from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.autograd.eager_history.trained_writes import is_hidden_write
from foretrace.ir.program.interface import Output
from foretrace.ir.program.op import Op
from foretrace.ir.program.walk import binds, every_op, makes_leaf, subgraphs_of
from foretrace.ir.values.value import Value, values_in
from foretrace.operators.schemas.schema import schema_of

PRINT = torch.ops.higher_order.print


def values_of(outputs: Iterable[Output]) -> list[Value]:
    """The tensors among outputs."""
    return [v for output in outputs for v in values_in(output.value)]


def live(ops: list[Op], results: Iterable[Value], semantics: TargetSemantics) -> list[Op]:
    """The ops on which a result depends, and those with effects: draws, checks, errors."""
    wanted, kept = set(results), []
    fixed, data = cache(lambda: _fixed(ops)), semantics.symbols.data
    for op in reversed(ops):
        outs = op.outs if op.below is None else all_outs(op)
        used = not wanted.isdisjoint(outs) or effectful(op, semantics, fixed)
        if used or (data and not op.late and not data.isdisjoint(binds(op))):
            kept.append(op)
            wanted.update(op.operands if op.below is None else needs(op))
    return kept[::-1]


def without_unread(ops: list[Op], wanted: list[Value], semantics: TargetSemantics) -> list[Op]:
    """The ops without writes that autograd does not see and no result reads, and their readers.

    Written out, each would be an op in place, which stays whoever reads it.
    """
    if not any(map(is_hidden_write, ops)):
        return ops
    read, gone, left = set(live(ops, wanted, semantics)), set[Value](), list[Op]()
    for op in ops:
        if op not in read and (is_hidden_write(op) or not gone.isdisjoint(needs(op))):
            gone.update(all_outs(op))
        else:
            left.append(op)
    return left


def needs(op: Op) -> Collection[Value]:
    """The values from outside that an op, or its body, uses."""
    if op.region is None:
        return op.operands
    outs_inside: set[Value] = set()
    found: list[Value] = list(op.operands)
    for inner in op.region:
        found += [v for v in needs(inner) if v not in outs_inside]
        outs_inside.update(all_outs(inner))
    return list(dict.fromkeys(v for v in found if v not in outs_inside))


def all_outs(op: Op) -> Collection[Value]:
    """All results of an op, and of the ops in its body."""
    return {*op.outs, *_ordered(op)} if op.region else op.outs


def _fixed(ops: Iterable[Op]) -> set[Value]:
    """The values that depend on no input, such as indices of a view."""
    found = set[Value]()
    for op in every_op(ops):
        operator = hasattr(op.target, "overloadpacket") and not schema_of(op.target).random
        if operator and found.issuperset(needs(op)):
            found.update(op.outs)
    return found


def effectful(op: Op, semantics: TargetSemantics, fixed: Callable[[], set[Value]]) -> bool:
    """Whether the op, or something in it, draws random numbers, writes, checks, or may raise.

    The ops of the backward may raise only as the forward does, and an op with indices that are
    fixed in every run or in none.
    """
    if not op.leaf:
        return any(effectful(inner, semantics, fixed) for inner in op.template or ())
    if not hasattr(op.target, "overloadpacket") or makes_leaf(op):
        if op.target is PRINT:
            return True
        nested = (inner for subgraph in subgraphs_of(op) for inner in subgraph.ops)
        return any(effectful(inner, semantics, fixed) for inner in nested)
    schema = schema_of(op.target)
    if schema.random or schema.writes or not schema.returns.something:
        return True
    if op.late or not semantics.may_raise(op):
        return False
    return not any(v in fixed() for v in op.operands if not v.type.differentiable)


def with_saved(ops: list[Op], results: Iterable[Value]) -> list[Op]:
    """Let ops that were kept whole return their inner values that are used."""
    if all(op.region is None for op in ops):
        return ops
    used = {v for op in ops for v in needs(op)} | set(results)
    return [op if op.region is None else _returning(op, used) for op in ops]


def _returning(op: Op, used: set[Value]) -> Op:
    outs_inside = all_outs(op)
    returned = [v for v in values_in(op.result) if v in outs_inside]
    extra = [v for v in _ordered(op) if v in used and v not in op.outs]
    outs = tuple(dict.fromkeys((*returned, *(v for v in op.outs if v in used), *extra)))
    if outs == op.outs:
        return op
    return op.but(outs=outs)


def _ordered(op: Op) -> Iterator[Value]:
    for inner in op.region or ():
        yield from inner.outs
        yield from _ordered(inner)
