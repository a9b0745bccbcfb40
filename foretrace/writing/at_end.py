"""New contents of inputs that a graph copies there itself, for a compiler that writes them at once.

A compiler that sees the copy computes an update where it belongs. One that only returns the new
content makes a step hold what it updates twice.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from foretrace.ir.op import Op, Origin, Value
from foretrace.ir.program import Graph, Mutation, Output, Recorded
from foretrace.ir.walk import binds
from foretrace.symbols.questions import free_symbols
from foretrace.writing.calls import COPY
from foretrace.writing.memory import may_be_written
from foretrace.writing.order import MayRaise, asserts, guards_of, raises, step

NOWHERE = Origin(None, None)


def written_at_end(graph: Graph, recorded: Recorded, may_raise: MayRaise) -> Graph:
    """A forward that ends with copies of new contents, and gives the inputs in their place.

    Copied is what depends on each op that may raise: the compiler decides when it is written, and a
    call that raises is to leave it as it was. A program that asks of data in its middle copies
    nothing. Python's steps between numbers are not minded (docs/limits.md).

    Args:
        graph: a forward cut, down to leaves.
        recorded: the program.
        may_raise: tells of an operator.
    """
    if len(recorded.asked) > len(recorded.asked_before):
        return graph  # it gives up in its middle
    kept = len(graph.outputs) - len(recorded.mutations)
    outputs, copies, asked = graph.outputs[:kept], list[Op](), guards_of(recorded)

    def stops(op: Op) -> bool:
        """Whether it may raise; a guard was asked before the call."""
        return raises(op, may_raise) and not (step(op) or asserts(op, asked))

    after = _After(graph.ops, stops)
    for mutation, output in zip(recorded.mutations, graph.outputs[kept:], strict=True):
        live, new = recorded.inputs[mutation.index].value, output.value
        if not (_copied(recorded, mutation) and isinstance(new, Value) and after.all(new)):
            outputs.append(output)
            continue
        out = Value(live.type.with_grad(False))
        copies.append(Op(COPY, (live, new), {}, out, (out,), origin=NOWHERE))
        outputs.append(Output(live, output.role))
    return replace(graph, ops=[*graph.ops, *copies], outputs=outputs)


def _copied(recorded: Recorded, mutation: Mutation) -> bool:
    """Whether a plain copy at the end is what a call would do."""
    item = recorded.inputs[mutation.index]
    plain = not (mutation.hidden or mutation.rebound or recorded.requires.reshaped)
    return plain and may_be_written(item) and item.value.type.same_layout(mutation.value.type)


class _After:
    """Tells which of the ops that may raise a value depends on."""

    def __init__(self, ops: Sequence[Op], stops: Callable[[Op], bool]) -> None:
        self.of, self.every = dict[Any, int](), 0
        for op in ops:
            names = (*op.operands, *free_symbols((op.args, op.kwargs)))
            before = 0
            for name in names:
                before |= self.of.get(name, 0)
            if stops(op):
                own = 1 << self.every.bit_length()
                before, self.every = before | own, self.every | own
            self.of.update(dict.fromkeys((*op.outs, *binds(op)), before))

    def all(self, value: Value) -> bool:
        """Whether it is all of them."""
        return self.of.get(value, 0) == self.every
