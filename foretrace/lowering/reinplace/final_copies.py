"""New contents of inputs that a graph copies there itself, for a compiler that writes them at once.

A compiler that sees the copy computes an update where it belongs. One that only returns the new
content makes a step hold what it updates twice.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from foretrace.ir.program.interface import Mutation
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import Choice, Origin
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.tensor_effects import Reshape
from foretrace.ir.program.walk import binds
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.values.value import Value
from foretrace.lowering.reinplace.in_place_calls import COPY
from foretrace.lowering.reinplace.memory import may_be_written
from foretrace.lowering.reinplace.order import MayRaise, asserts, guards_of, raises

aten = torch.ops.aten
NOWHERE = Origin(None, None)


def written_at_end(
    graph: Graph, recorded: Recording, may_raise: MayRaise
) -> tuple[Graph, frozenset[int]]:
    """A forward that copies new contents itself at its end; and the inputs that it writes.

    Copied is what depends on each op that may raise: the compiler decides when it is written, and a
    call that raises is to leave it as it was. A program that asks of data in its middle copies
    nothing.

    Args:
        graph: a forward cut, down to leaves.
        recorded: the program.
        may_raise: whether an op may raise.
    """
    if len(recorded.asked) > len(recorded.asked_before):
        return graph, frozenset()  # it gives up in its middle
    kept = len(graph.outputs) - len(recorded.mutations)
    outputs, copies, asked = graph.outputs[:kept], list[Op](), guards_of(recorded)

    def stops(op: Op) -> bool:
        """Whether the op may raise; a guard was checked before the call."""
        return raises(op, may_raise) and not asserts(op, asked)

    after, written = _After(graph.ops, stops), set[int]()
    for mutation, output in zip(recorded.mutations, graph.outputs[kept:], strict=True):
        live, new = recorded.inputs[mutation.index].value, output.value
        if not (_copied(recorded, mutation) and isinstance(new, Value) and after.all(new)):
            outputs.append(output)
            continue
        out = Value(live.type.with_grad(False))
        copies.append(Op(COPY, (live, new), {}, out, (out,), origin=NOWHERE))
        written.add(mutation.index)
    return replace(graph, ops=[*graph.ops, *copies], outputs=outputs), frozenset(written)


def losses_first(graph: Graph) -> Graph:
    """A step whose gradients depend on the numbers of their losses, and not on their types alone.

    No gradient reads a loss, so that a compiler may compute it after the update, and with it what
    only it needs and may raise: a class that is not there. The gradient of a loss by itself is 1 if
    it equals itself, and 1 if it does not.
    """
    return replace(graph, ops=[each for op in graph.ops for each in _after_its_loss(op)])


def _after_its_loss(op: Op) -> Iterator[Op]:
    if op.target is not aten.ones_like.default or not op.outs[0].type.differentiable:
        yield op
        return
    (loss, *_), (out,) = op.args, op.outs
    one, same = Value(out.type), Value(out.type.but(dtype=torch.bool))
    choice = Choice("order", "after the loss", "what raises is to raise before the update")

    def piece(func: Any, args: tuple[Any, ...], value: Value) -> Op:
        return Op(func, args, {}, value, (value,), origin=op.origin, choice=choice, piece_of=op)

    yield op.but(outs=(one,), result=one)
    yield piece(aten.eq.Tensor, (loss, loss), same)
    yield piece(aten.where.self, (same, one, one), out)


def _copied(recorded: Recording, mutation: Mutation) -> bool:
    """Whether a plain copy at the end does what the call does."""
    item = recorded.inputs[mutation.index]
    plain = not (mutation.hidden or mutation.rebound or recorded.effects_of(Reshape))
    return plain and may_be_written(item) and item.value.type.same_layout(mutation.value.type)


class _After:
    """Knows which of the ops that may raise a value depends on."""

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
