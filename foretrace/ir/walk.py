"""Ways through a tree of ops."""

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import sympy
import torch

from foretrace.ir.op import ModuleCall, Op, Value
from foretrace.symbols.questions import free_symbols


def every_op(ops: Iterable[Op]) -> Iterator[Op]:
    """The ops and those in their own bodies, each before what it is made of."""
    for op in ops:
        yield op
        yield from every_op(op.region or ())


def leaf_ops(ops: Iterable[Op]) -> Iterator[Op]:
    """The leaves that the ops are made of, in the words of each call."""
    for op in ops:
        if op.leaf:
            yield op
        else:
            yield from leaf_ops(op.body or ())


def called_in(ops: Iterable[Op]) -> Iterator[Op]:
    """The ops as written, those in module calls among them."""
    for op in ops:
        yield from called_in(op.region or ()) if isinstance(op.target, ModuleCall) else (op,)


def made_in(ops: Iterable[Op]) -> set[Value]:
    """Everything that ops make, in their bodies too."""
    return {out for op in in_bodies(ops) for out in op.outs}


def in_bodies(ops: Iterable[Op]) -> Iterator[Op]:
    """The ops and those that they are made of, in the words of each call."""
    for op in ops:
        yield op
        yield from in_bodies(op.body or ())


Bare: TypeAlias = Literal["leaf", "loose"]
"""How a value does: it was made so, or is a view that was taken under no_grad"""


def bare_in(ops: Iterable[Op]) -> Iterator[tuple[Value, Bare]]:
    """The values that require grad without a history that a gradient takes."""
    for op in called_in(ops):
        if op.target is torch.ops.aten.requires_grad_.default:
            yield op.outs[0], "leaf"
        elif not op.origin.grad_mode:
            kept = set(_with_history_in(op))
            yield from ((v, "loose") for v in op.outs if v.type.requires_grad and v not in kept)


def _with_history_in(op: Op) -> Iterator[Value]:
    """What keeps the history that was there: what is written, and views of it, viewed again."""
    if op.writes or op.origin.grad_mode:
        yield from op.outs
    for inner in op.region or ():
        yield from _with_history_in(inner)


def binds(op: Op) -> frozenset[sympy.Symbol]:
    """The symbols that get their number from what the op returns, as sizes that data decides do."""
    made = frozenset[sympy.Symbol]().union(*(out.type.symbols for out in op.outs))
    if isinstance(op.result, sympy.Symbol):
        made |= {op.result}
    if not made:
        return made
    given = free_symbols((op.args, op.kwargs)).union(*(v.type.symbols for v in op.operands))
    return made - given
