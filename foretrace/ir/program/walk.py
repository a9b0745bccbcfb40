"""Ways through a tree of ops, a renaming of it, and its values that miss a history."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, Literal, TypeAlias

import sympy
import torch

from foretrace import torch_api
from foretrace.ir.program.op import GradientCall, Op, Subgraph
from foretrace.ir.program.origin import ModuleCall
from foretrace.ir.program.rewriter import Substitution
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.values.nested import leaves, map_tree
from foretrace.ir.values.value import Value

NO_SYMBOLS = frozenset[sympy.Symbol]()


def every_op(ops: Iterable[Op]) -> Iterator[Op]:
    """The ops, those in their own bodies and in what they hold, each before its body."""
    return _nested(ops, _inside)


def _inside(op: Op) -> Iterable[Op]:
    if type(op.target) is torch_api.OpOverload or not (subgraphs := subgraphs_of(op)):
        return op.region or ()
    return chain(*(each.ops for each in subgraphs), op.region or ())


def _nested(ops: Iterable[Op], inside: Callable[[Op], Iterable[Op]]) -> Iterator[Op]:
    """The ops and those inside of them, each before what is inside of it.

    One generator whatever the depth: nested ones would hand each op up through all of them.
    """
    pending = [iter(ops)]
    while pending:
        for op in pending[-1]:
            yield op
            if below := inside(op):
                pending.append(iter(below))
                break
        else:
            pending.pop()


def leaf_ops(ops: Iterable[Op]) -> Iterator[Op]:
    """The leaves below the ops, in the values of each call."""
    return (op for op in in_bodies(ops) if op.leaf)


def leaves_that_run(ops: Iterable[Op]) -> Iterator[Op]:
    """The leaves below the ops, and those of their subgraphs."""
    for op in leaf_ops(ops):
        yield op
        for subgraph in subgraphs_of(op):
            yield from leaves_that_run(subgraph.ops)


def called_in(ops: Iterable[Op]) -> Iterator[Op]:
    """The ops as written, those in module calls among them."""
    return (op for op in _nested(ops, _called_by) if type(op.target) is not ModuleCall)


def _called_by(op: Op) -> Iterable[Op]:
    return (op.region or ()) if type(op.target) is ModuleCall else ()


def outs_in(ops: Iterable[Op]) -> set[Value]:
    """Everything that ops make, in their bodies too."""
    return {out for op in in_bodies(ops) for out in op.outs}


def in_bodies(ops: Iterable[Op]) -> Iterator[Op]:
    """The ops and those below them, in the values of each call."""
    return _nested(ops, lambda op: op.body or ())


def subgraphs_of(op: Op) -> Sequence[Subgraph]:
    """The programs that an op holds."""
    if not op.args or type(op.target) is torch_api.OpOverload:
        return ()
    return [leaf for leaf in leaves(op.args) if type(leaf) is Subgraph]


def with_subgraphs(op: Op, change: Callable[[Subgraph], Subgraph]) -> Op:
    """The op with other programs in it; itself where it holds none."""
    if not subgraphs_of(op):
        return op
    return op.but(args=map_tree(op.args, lambda x: change(x) if type(x) is Subgraph else x))


def read_outside(ops: Iterable[Op]) -> dict[Value, Op]:
    """What ops read and do not make, in order, with the first that reads it."""
    found, shown = dict[Value, Op](), set[Value]()
    for op in every_op(ops):
        for value in op.operands:
            if value not in shown:
                found.setdefault(value, op)
        shown.update(op.outs)
        for subgraph in subgraphs_of(op):
            shown.update(subgraph.values)
    return found


def freed_in(ops: Iterable[Op]) -> frozenset[Op]:
    """The ops of which a backward of the program's own has let go what autograd had saved."""
    asked = (op.target for op in every_op(ops) if type(op.target) is GradientCall)
    return frozenset().union(*(target.freed for target in asked))


def spent_in(ops: Sequence[Op]) -> Iterator[Value]:
    """What a gradient of which would go through such an op."""
    freed, spent = freed_in(ops), set[Value]()
    for op in _as_far_as_opened(ops) if freed else ():
        on = op.origin.grad_mode and not spent.isdisjoint(op.operands)
        if op in freed or on:
            own = [out for out in op.outs if out.type.requires_grad]
            spent.update(own)
            yield from own


def _as_far_as_opened(ops: Iterable[Op]) -> Iterator[Op]:
    """The leaves in their order; of what nobody has looked into, the op itself."""
    for op in ops:
        if op.region and not op.writes:
            yield from _as_far_as_opened(op.region)
        yield op


REQUIRES_GRAD = torch.ops.aten.requires_grad_.default


def makes_leaf(op: Op) -> bool:
    """Whether the program makes a leaf of autograd by an op."""
    return op.target is REQUIRES_GRAD


MissingHistory: TypeAlias = Literal["leaf", "loose", "spent"]
"""How a value does: a result, a view that was taken under no_grad, or of what a backward has run"""


def bare_in(ops: Sequence[Op]) -> Iterator[tuple[Value, MissingHistory]]:
    """The values that require grad without a history that a gradient takes."""
    yield from ((value, "spent") for value in spent_in(ops))
    for op in called_in(ops):
        if makes_leaf(op):
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


def bound_inside(ops: Iterable[Op]) -> set[sympy.Symbol]:
    """The symbols that get their number in what ops hold: nobody outside has it."""
    subgraph = (subgraph for op in every_op(ops) for subgraph in subgraphs_of(op))
    return {symbol for each in subgraph for op in every_op(each.ops) for symbol in binds(op)}


def binds(op: Op) -> frozenset[sympy.Symbol]:
    """The symbols that get their number from what the op returns, as sizes that data decides do."""
    shown = shows(op)
    if not shown:
        return NO_SYMBOLS
    known = free_symbols((op.args, op.kwargs) if op.kwargs else op.args)
    for value in op.operands:
        known |= value.type.symbols
    return shown - known


def shows(op: Op) -> frozenset[sympy.Symbol]:
    """The symbols of numbers that data decides which what the op returns speaks of."""
    found: list[Iterable[sympy.Symbol]] = [out.type.symbols for out in op.outs if out.type.symbols]
    if op.result.__class__ is sympy.Symbol:
        found.append((op.result,))
    return frozenset(filter(torch_api.is_from_data, chain(*found))) if found else NO_SYMBOLS


class _Renaming(Substitution):
    """Copies ops with other values; those that they make are themselves, unless `env` says.

    An op that neither reads nor makes one of these values is not copied. A shared body is copied
    too: what a copied op would make of it is no part of the tree.
    """

    def op(self, op: Op) -> Op:
        """The copy, if there is one; the arguments are those of the op, if it reads none."""
        if not self.env.keys().isdisjoint(op.operands):
            return super().op(op)
        if self.env.keys().isdisjoint(op.outs):
            return op
        result, outs = self.tree(op.result), tuple(map(self.out, op.outs))
        return op.but(result=result, outs=outs, below=self.below(op))

    def out(self, value: Value) -> Value:
        """What stands for a value that an op makes."""
        return self.env.get(value, value)

    def below(self, op: Op) -> list[Op] | None:
        """The body in the values of this call."""
        body = op.body
        return self.ops(body) if body else body


def rename(op: Op, env: dict[Value, Any]) -> Op:
    """The op of a cut with other values, in its body too; itself where it has none of them."""
    return _Renaming(env).op(op)
