"""Open ops by a decomposition table: each decomposition runs once for operands of equal types.

It runs over stand-ins and is recorded as a body, as a composite's own kernel is while a program is
recorded; so what it calls is opened in turn, until no op that is left has an entry. The graph is
never run again.

A decomposition may give a result in another layout than its operator does. Then what reads the
result is typed again, as it would be if the graph were run with the table; outputs, and what reads
a value that it cannot take so, get the layout that they had.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import sympy
import torch

from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.autograd.eager_history.op_facts import locate
from foretrace.errors import Refusal
from foretrace.ir.program.names import calls_target
from foretrace.ir.program.op import Op, Subgraph
from foretrace.ir.program.origin import Choice
from foretrace.ir.program.recording import Graph
from foretrace.ir.program.rewriter import copy_ops
from foretrace.ir.program.walk import binds, leaf_ops, subgraphs_of, with_subgraphs
from foretrace.ir.values.nested import pairs
from foretrace.ir.values.tensor_type import Size, TensorType
from foretrace.ir.values.value import Value, values_in
from foretrace.lowering.cuts.dead_code import live, needs, values_of
from foretrace.lowering.cuts.decomposition_tracer import TABLE_ENTRY, Entries, EntryRecorder, Table
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.schemas.schema import schema_of
from foretrace.tracer.functionalization.out_variants import ITSELF
from foretrace.tracer.functionalization.written_layout import lay_out

aten = torch.ops.aten

FORWARD = ("export", "aten")
RELAID = Choice("layout", "another", "the decomposition table gave an operand in another layout")
ASKS = Choice("decomposition", "whole", "the table's entry asks for a number that data decides")
RESTORED = Choice("layout", "restored", "the decomposition table gave another layout")


def decompose(
    graph: Graph,
    table: Table,
    semantics: TargetSemantics,
    keep: Callable[[Op], bool] = lambda _: False,
) -> Graph:
    """The graph with every op opened that the table has an entry for, recursively.

    Args:
        graph: a cut, forward or backward or both.
        table: decompositions in torch's form; one that returns NotImplemented leaves the op.
        semantics: what operators mean on the cut's target.
        keep: ops to leave whole although the table has an entry.

    Raises:
        Refusal: the table is none, or a decomposition raises or asks for the data of a tensor.
    """
    trains = graph.kind in FORWARD
    walk = _Decomposition(
        Entries(table, semantics),
        lambda op: keep(op) or (trains and _is_for_autograd(op)),
        frozenset((*(v for op in graph.ops for v in needs(op)), *values_of(graph.outputs))),
    )
    ops = list(walk.opened(graph.ops))
    results = values_of(graph.outputs)
    ops.extend(walk.restored(results))
    return replace(graph, ops=live(ops, results, semantics))


def _is_for_autograd(op: Op) -> bool:
    """Whether a forward cut has the op for autograd, so that it trains as the program does.

    See `autograd/eager_history/emit_history.py`.
    """
    follows = FOR_AUTOGRAD.get(op.target)
    return follows is not None and (not follows or any(v.type.requires_grad for v in op.operands))


FOR_AUTOGRAD: Mapping[Any, bool] = MappingProxyType(
    {aten.copy_.default: False, aten.detach.default: True}
)
"""What emits a history; whether it does so only of what requires grad"""


class _Decomposition:
    """One pass over a graph; each decomposition is recorded once."""

    def __init__(
        self, entries: Entries, keep: Callable[[Op], bool], used: frozenset[Value]
    ) -> None:
        self.entries, self.keep, self.used = entries, keep, used
        self.recorder = EntryRecorder(entries)
        self.plain = EntryRecorder(Entries({}, entries.target))
        self.relaid: dict[Value, tuple[Value, Op]] = {}
        """what stands for a value that came in another layout, and the op that returned it"""

    def opened(self, ops: Iterable[Op]) -> Iterator[Op]:
        """The ops of a graph, or of an op that was kept whole, opened by the table."""
        for op in ops:
            yield from self._one(op)

    def _one(self, op: Op) -> Iterator[Op]:
        if subgraphs_of(op):
            yield from self.restored(op.operands)
            yield with_subgraphs(op, self._inside)
        elif op.choice is ITSELF:
            yield from self.opened(self._functional_form(op))
        elif self._opens_write(op):
            yield from self._written(op)
        else:
            yield from self._opened(op)

    def _inside(self, subgraph: Subgraph) -> Subgraph:
        """A subgraph of an op, opened by the table."""
        results = values_in(subgraph.result)
        self.used |= {*results, *(v for op in subgraph.ops for v in needs(op))}
        ops = list(self.opened(subgraph.ops))
        return replace(subgraph, ops=(*ops, *self.restored(results)))

    def _opened(self, op: Op) -> Iterator[Op]:
        relaid = [v for v in needs(op) if v in self.relaid]
        entry = self._has_entry(op)
        if not entry and not (relaid and self._may_be_typed_again(op)):
            yield from self.restored(relaid)
            yield op if calls_target(op) else self._kept(op)
            return
        try:
            result = self._recorded(op)
        except (RuntimeError, ValueError) as error:
            if self.recorder.types.symbols.floats.among((op.args, op.kwargs)):
                yield from self.restored(relaid)
                yield op.but(below=None, choice=ASKS)
                return
            if not relaid:
                raise locate(error, op) if isinstance(error, Refusal) else error from None
            yield from self.restored(relaid)
            yield from self._one(op)
            return
        if isinstance(result, Choice):
            yield from self.restored(relaid)
            yield op.but(below=None, choice=result)
        elif result[0].leaf or not entry:
            yield from _typed_again(op, result) if relaid else [op]
        else:
            body = result[0].body or () if len(result) == 1 else result
            yield from self._pieces(op.but(below=list(body), choice=TABLE_ENTRY), op)

    def _has_entry(self, op: Op) -> bool:
        """Whether the table opens an op; not one whose results have sizes that data decides.

        These are the program's symbols, and an entry would give others.
        """
        return op.target in self.entries.table and not self.keep(op) and not binds(op)

    def _opens_write(self, op: Op) -> bool:
        entry = self._has_entry(op)
        return entry and len(op.outs) == 1 and self._writes(op)

    def _written(self, op: Op) -> Iterator[Op]:
        """An in-place op by its entry, then a copy into the memory that others read."""
        (old,) = schema_of(op.target).written_now(op.args, op.kwargs)
        new = Value(op.outs[0].type)
        self.used |= {new}
        unchanged = Op(op.target, op.args, op.kwargs, new, (new,), origin=op.origin)
        result = [*self._opened(unchanged), *self.restored([new])]
        if result == [unchanged]:
            yield op
            return
        yield from result
        args = (old, new)
        yield Op(aten.copy_.default, args, {}, op.result, op.outs, origin=op.origin, piece_of=op)

    def _functional_form(self, op: Op) -> Iterator[Op]:
        """An `out=` op as its functional form, and a copy in the layout of `out`."""
        functional = schema_of(op.target).functional
        if functional is None:
            raise AssertionError(op)
        with self.plain.scope.inner() as ops:
            result = self.plain.call(functional.call, *functional.arguments(op.args, op.kwargs))
            news = [
                self._fitted(new, out.type)
                for new, out in zip(values_in(result.result), op.outs, strict=True)
            ]
        for each in copy_ops(ops, dict(zip(news, op.outs, strict=True)), op):
            each.choice, each.piece_of = each.choice or TABLE_ENTRY, op
            yield from leaf_ops((each,))

    def _fitted(self, new: Value, like: TensorType) -> Value:
        if new.type.shape != like.shape:
            new = self.plain.call(aten.view.default, (new, list(like.shape))).outs[0]
        if new.type.dtype != like.dtype:
            new = self.plain.call(aten._to_copy.default, (new,), {"dtype": like.dtype}).outs[0]
        return lay_out(self.plain, like, new)

    def _pieces(self, op: Op, shown: Op) -> Iterator[Op]:
        """The op, or the leaves below it, which are then pieces of `shown`."""
        if op.leaf or self.keep(op):
            yield op
            return
        for inner in op.body or ():
            inner.piece_of = shown
            yield from self._pieces(inner, inner)

    def _kept(self, op: Op) -> Op:
        """An op that is whole, with the table's entries opened in its body."""
        body = list(self.opened(list(leaf_ops(op.body or ()))))
        return op.but(below=[*body, *self.restored(op.outs)])

    def _writes(self, op: Op) -> bool:
        """Whether the op writes: others read the memory, not its result."""
        return bool(schema_of(op.target).written_now(op.args, op.kwargs))

    def _may_be_typed_again(self, op: Op) -> bool:
        operator = hasattr(op.target, "overloadpacket") and calls_target(op)
        return operator and not self._writes(op)

    # ---- one call -----------------------------------------------------------------------------

    def _recorded(self, op: Op) -> list[Op] | Choice:
        """The op, recorded with the table, in the graph's own values; or why it stays as it is."""
        actual = {v: self.relaid[v][0] if v in self.relaid else v for v in op.operands}
        stood = {v: Value(now.type.with_grad(False)) for v, now in actual.items()}
        stand_ins = {v: self.recorder.abstract(each) for v, each in stood.items()}
        env = {stood[v]: now for v, now in actual.items()}
        with self.recorder.scope.inner() as ops:
            answer = self.recorder.run(op.target, op.args, op.kwargs, stand_ins)
        relaid = {}
        for value, tensor in pairs(op.result, answer):
            result = tensor.ft_value if isinstance(tensor, Abstract) else None
            if value not in op.outs:
                continue
            if result is None or not self._fits(result.type, value.type):
                if value in self.used:
                    return _misfit(value, result)
                continue
            result = self._own(op, result, env, ops)
            if self._same_layout(result.type, value.type):
                env[result] = value
            else:
                env[result] = relaid[value] = Value(result.type)
        copies = copy_ops(ops, env, op)
        if any(v in self.relaid for v in actual) or not ops[0].leaf:
            self.relaid.update((value, (now, op)) for value, now in relaid.items())
        return copies

    def _own(self, op: Op, result: Value, taken: Container[Value], ops: list[Op]) -> Value:
        """A result as a new value, where the decomposition returned an existing one."""
        if result not in taken:
            return result
        views = schema_of(op.target).viewed
        with self.plain.scope.inner() as more:
            result = self.plain.call(
                aten.alias.default if views else aten.clone.default, (result,)
            ).outs[0]
        ops += more
        return result

    def restored(self, values: Sequence[Value]) -> Iterator[Op]:
        """The ops that restore the layout of values."""
        for value in values:
            if value not in self.relaid:
                continue
            now, maker = self.relaid.pop(value)
            with self.plain.scope.inner() as ops:
                result = lay_out(self.plain, value.type, now)
            for op in copy_ops(ops, {result: value}, maker):
                op.choice, op.piece_of = RESTORED, maker
                yield from self._one(op)

    # ---- types --------------------------------------------------------------------------------

    def _fits(self, result: TensorType, wanted: TensorType) -> bool:
        """Whether a decomposition's result equals the operator's in type, but for the layout."""
        same = (result.dtype, result.lazy, len(result.shape)) == (
            wanted.dtype,
            wanted.lazy,
            len(wanted.shape),
        )
        return same and all(map(self._equal, result.shape, wanted.shape))

    def _same_layout(self, result: TensorType, wanted: TensorType) -> bool:
        """Whether the strides are equal where they matter."""
        triples = zip(wanted.shape, result.stride, wanted.stride, strict=True)
        return all(size == 1 or self._equal(mine, theirs) for size, mine, theirs in triples)

    def _equal(self, mine: Size, theirs: Size) -> bool:
        """Whether two sizes are equal by the guards so far."""
        simplify = self.recorder.types.symbols.simplify
        return mine == theirs or simplify(sympy.sympify(mine - theirs)) == 0


def _misfit(value: Value, result: Value | None) -> Choice:
    what = repr(result.type) if result is not None else "nothing"
    reason = f"the table's entry gives {what} where the operator gives {value.type!r}"
    return Choice("decomposition", "whole", reason, (("opened", "what reads it would be wrong"),))


def _typed_again(op: Op, result: list[Op]) -> list[Op]:
    result[0].choice, result[0].piece_of = result[0].choice or RELAID, op
    return result
