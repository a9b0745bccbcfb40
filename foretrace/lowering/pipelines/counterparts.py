"""Values of two derivations of one program that are equal, and a graph that takes those of another.

The derivative of a backward is a graph of its own, over the inputs of the forward. What the forward
has computed and saved is there when it runs: it is taken, and neither computed nor drawn again.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias

import sympy

from foretrace.errors import Refusal
from foretrace.ir.program.equality import ValueNumbers
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph
from foretrace.ir.program.rewriter import Rewriter
from foretrace.ir.program.walk import binds, leaf_ops, rename
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value, substitute, values_in
from foretrace.lowering.cuts.dead_code import needs
from foretrace.lowering.partition.partition import SAVED_COPY, Saved
from foretrace.lowering.pipelines.passes import Context, Pass
from foretrace.tracer.concrete.rng_draws import draws

NONE: Mapping[Any, Any] = MappingProxyType({})


def original(saved: Saved) -> Any:
    """The value itself, by which the backward has it, where a copy of it is handed over."""
    op = saved.op
    copied = op is not None and op.choice is not None and op.choice.what == SAVED_COPY
    return op.args[-1] if op is not None and copied else saved.value


Numbers: TypeAlias = dict[sympy.Symbol, Any]


def counterparts(
    ops: Iterable[Op],
    others: Iterable[Op],
    inputs: Mapping[Value, Value] = NONE,
    sizes: Mapping[sympy.Symbol, int] = NONE,
) -> tuple[dict[Value, Value], Numbers]:
    """For each value of `ops`, the equal one among `others`; for each number of both, one of these.

    It is what the same call of equal operands gives; a draw is equal to the one of its place. Each
    derivation has symbols of its own for the numbers that a formula computes in Python of those
    that data decides.

    Args:
        ops: those of one derivation.
        others: those of another.
        inputs: for an input of `ops`, that of `others`.
        sizes: what symbols of `others` are in `ops`.
    """
    calls, known, found = _Calls(), dict[int, Op](), dict[Value, Value](inputs)
    same: Numbers = dict(sizes)
    calls.known.update((own, calls.of(one)) for own, one in inputs.items())
    for op, number in calls.numbered(others, same):
        first = known.setdefault(number, op)
        if isinstance(op.result, sympy.Symbol):
            same[op.result] = first.result
        found.update((out, out) for out in op.outs)
        if first is not op:
            calls.equate(op, first)
    for op, number in calls.numbered(ops, same):
        other = known.get(number)
        if other is None or len(other.outs) != len(op.outs) or not found.keys().isdisjoint(op.outs):
            continue
        if isinstance(op.result, sympy.Symbol):
            same[op.result] = other.result
        found.update(zip(op.outs, other.outs, strict=True))
        calls.equate(op, other)
    return found, same


class _Calls(ValueNumbers):
    """Numbers the calls of two derivations."""

    def numbered(self, ops: Iterable[Op], same: Numbers) -> Iterator[tuple[Op, int]]:
        """Each op with its number; a draw has one of its place among equal ones.

        Args:
            ops: those of one derivation.
            same: for symbols, what they are in the other; it may learn more meanwhile.
        """
        drawn, copies = Counter[Any](), WithNumbers(same)
        for op in ops:
            arguments, target = (op.args, op.kwargs), op.target
            if draws(op):
                drawn[target] += 1
                target = target, drawn[target]
            yield op, self.call(target, copies.tree(arguments) if same else arguments)

    def equate(self, op: Op, other: Op) -> None:
        """Give the results of one op the numbers of those of another."""
        pairs = zip(op.outs, other.outs, strict=True)
        self.known.update((out, self.of(its)) for out, its in pairs)


class WithNumbers(Rewriter):
    """Copies ops of the same values with other symbols."""

    def __init__(self, numbers: Numbers) -> None:
        super().__init__()
        self.numbers = numbers

    def leaf(self, leaf: Any) -> Any:
        """A number by its other symbol."""
        if not isinstance(leaf, sympy.Basic):
            return leaf
        found = leaf.xreplace(self.numbers)
        return int(found) if isinstance(found, sympy.Integer) else found

    def out(self, value: Value) -> Value:
        """The value itself, or one whose sizes have the other symbols."""
        other = self.type(value.type)
        return value if other is value.type else super().out(value)

    def type(self, type: TensorType) -> TensorType:
        """The type with the other symbols."""
        if type.symbols.isdisjoint(self.numbers):
            return type
        shape, stride, offset = self.tree((type.shape, type.stride, type.offset))
        return type.but(shape=shape, stride=stride, offset=offset)

    def below(self, op: Op) -> list[Op] | None:
        """The body in the values of this call."""
        body = op.body
        return self.ops(body) if body else body


class Taking:
    """What a graph takes of what an earlier one has computed, by the one pass that is here.

    Args:
        others: the ops that have run.
        inputs: for an input of the graph, that of the earlier one.
        saved: for a value of `others` that is there, the input of the graph that has it.
        sizes: what the symbols of the earlier graph were.
    """

    def __init__(
        self,
        others: Sequence[Op],
        inputs: Mapping[Value, Value],
        saved: Mapping[Value, Value],
        sizes: Mapping[sympy.Symbol, int],
    ) -> None:
        self._others, self._inputs, self._sizes = others, inputs, sizes
        self._saved = saved
        self.ops: Sequence[Op] = ()
        """those of the graph, as if it took nothing"""
        self.there: Mapping[Value, Value] = NONE
        """for a value of these, the input that has it"""
        self.read: set[Value] = set()
        """the inputs that the graph reads"""
        self.lost: Collection[Value] = ()
        """inputs that were written to since the others ran"""

    @property
    def passes(self) -> tuple[Pass]:
        """The pass."""
        return (Pass("take saved", "Take what the forward has saved.", self._take),)

    def _take(self, graph: Graph, _: Context) -> Graph:
        meant, _numbers = counterparts(graph.ops, self._others, self._inputs, self._sizes)
        there = {own: self._saved[one] for own, one in meant.items() if one in self._saved}
        outputs = [replace(o, value=substitute(o.value, there)) for o in graph.outputs]
        wanted: set[Any] = {*values_in([o.value for o in outputs])}
        kept = list[Op]()
        for op in reversed(graph.ops):
            if wanted.isdisjoint(op.outs) and wanted.isdisjoint(binds(op)):
                continue
            kept.append(rename(op, {v: there[v] for v in there if v not in op.outs}))
            wanted.update(needs(kept[-1]), free_symbols((op.args, op.kwargs)))
        drawn = next((leaf for leaf in leaf_ops(kept) if draws(leaf)), None)
        if drawn is not None:
            raise _drawn(drawn)
        self.read.update(item.value for item in graph.inputs if item.value in wanted)
        if not self.ops:  # of the first; later ones are for some of the tangents
            self.ops, self.there = graph.ops, there
        return replace(graph, ops=kept[::-1], outputs=outputs)


def _drawn(op: Op) -> Refusal:
    return Refusal(
        "a gradient of a gradient needs random numbers that the forward drew and did not save",
        kind="double backward",
        at=op.origin.frame,
        do=('use backend="eager", which torch differentiates again', 'or policy="save_all"'),
    )
