"""A step's one graph as three: its forward, its backward, and the update.

The ops keep their order, so that random numbers are drawn as in the program, and values keep their
identity: one that a later part reads is an output of the part that makes it.
"""

from collections.abc import Iterable
from typing import Any

import sympy

from foretrace.errors import Refusal
from foretrace.ir.program.interface import Input, Output, Role, size_input
from foretrace.ir.program.names import node_names
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.walk import binds
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.values.value import Value, values_in
from foretrace.lowering.cuts.dead_code import needs
from foretrace.lowering.partition.recompute import AGAIN
from foretrace.tracer.concrete.rng_draws import draws

PARTS = ("forward", "backward", "update")
DO = 'use cut("step"), which is one graph'


def parts_of(graph: Graph, recorded: Recording) -> tuple[Graph, Graph, Graph]:
    """The three parts, with inputs and outputs of the step and the values passed between them.

    Args:
        graph: the step; what is recomputed in it is the backward's.
        recorded: the program.

    Raises:
        Refusal: the program asks for no gradient, a backward reads what an update has computed, as
            where two models take turns, or random numbers would be drawn in another order.
    """
    sides = _sides(graph)
    ops = [[op for op in graph.ops if sides[op] == part] for part in range(len(PARTS))]
    drawn = [op for op in graph.ops if draws(op)]
    if drawn != [op for part in ops for op in part if draws(op)]:
        raise _refused("a random number is drawn after the backward that the forward reads", drawn)
    one, two, three = (_Part(graph, recorded, sides, part, ops[part]) for part in range(len(PARTS)))
    return one.graph(two, three), two.graph(three), three.graph()


def _sides(graph: Graph) -> dict[Op, int]:
    """The number of each op's part."""
    own = {op for op in graph.ops if (op.asked and op.because is not None) or _again(op)}
    if not own:
        raise _refused("the program asks for no gradient", graph.ops[:1])
    first = next(place for place, op in enumerate(graph.ops) if op in own)
    sides, after, updated = dict[Op, int](), set[Any](), set[Any]()
    for op in graph.ops:
        read = *needs(op), *free_symbols((op.args, op.kwargs))
        reads = not after.isdisjoint(read)
        if op in own:
            if not updated.isdisjoint(read):
                raise _refused("a backward reads what an update has made", [op])
            sides[op] = 1
        else:
            sides[op] = 2 if reads else 0
        if sides[op]:
            after.update((*op.outs, *binds(op)))
        if sides[op] == 2:  # noqa: PLR2004
            updated.update((*op.outs, *binds(op)))
    wanted = set[Any]()
    for place, op in reversed(list(enumerate(graph.ops))):
        if not sides[op] and place > first and wanted.isdisjoint((*op.outs, *binds(op))):
            sides[op] = 2
        if sides[op] < 2:  # noqa: PLR2004
            wanted.update((*needs(op), *free_symbols((op.args, op.kwargs))))
    return sides


def _again(op: Op) -> bool:
    return op.choice is not None and op.choice.what == AGAIN


class _Part:
    """The ops of one part, what they read of others, and the outputs of the step that it gives."""

    def __init__(
        self, step: Graph, recorded: Recording, sides: dict[Op, int], number: int, ops: list[Op]
    ) -> None:
        self.step, self.number, self.ops = step, number, ops
        self.simplify = recorded.symbols.simplify
        self.outs = {out for op in ops for out in op.outs}
        self.side = {out: sides[op] for op in step.ops for out in op.outs}
        self.names = node_names(((i.value, i.role.name) for i in step.inputs), step.ops)
        self.outputs = [o for o in step.outputs if self._mine(o.value)]
        reads = [*(v for op in ops for v in needs(op)), *self._shown()]
        self.reads = [v for v in dict.fromkeys(reads) if v not in self.outs]

    def _mine(self, tree: Any) -> bool:
        """Whether the part gives an output: the last of those that make something of it."""
        sides = [self.side[v] for v in values_in(tree) if v in self.side]
        return max(sides, default=0 if not isinstance(tree, sympy.Basic) else 2) == self.number

    def _shown(self) -> Iterable[Value]:
        return (v for output in self.outputs for v in values_in(output.value))

    @property
    def numbers(self) -> list[Any]:
        """The symbols that its ops name and that no tensor which it gets has as a size."""
        trees = [(op.args, op.kwargs) for op in self.ops] + [o.value for o in self.outputs]
        named = {s for each in free_symbols(trees) for s in self.simplify(each).free_symbols}
        there = {self.simplify(size) for value in self.reads for size in value.type.shape}
        own = {symbol for op in self.ops for symbol in binds(op)}
        return sorted(named - there - own, key=str)

    def graph(self, *later: "_Part") -> Graph:
        """The part, which also gives what later ones read."""
        input_of = {item.value: item for item in self.step.inputs}
        sizes = {item.size: item for item in self.step.inputs if item.size is not None}
        inputs = [input_of.get(v) or Input(v, self._role(v)) for v in self.reads]
        inputs += [sizes.get(n) or size_input(n, Role("saved", str(n))) for n in self.numbers]
        handed = dict.fromkeys(v for part in later for v in part.reads if v in self.outs)
        outputs = [Output(v, self._role(v)) for v in handed]
        numbers = {n for part in later for n in part.numbers} - sizes.keys()
        first = self.number == 0
        own = {symbol for op in self.ops for symbol in binds(op)}
        there = {s for v in input_of for s in v.type.symbols} if first else set[Any]()
        outputs += [
            Output(n, Role("saved", str(n))) for n in sorted(numbers & (own | there), key=str)
        ]
        return Graph(inputs, self.ops, [*self.outputs, *outputs], PARTS[self.number])

    def _role(self, value: Value) -> Role:
        return Role("gradient" if self.side[value] == 1 else "saved", self.names[value])


def _refused(what: str, near: list[Op]) -> Refusal:
    frame = near[0].origin.frame if near else None
    return Refusal(f"a step in three parts: {what}", kind="no such parts", at=frame, do=DO)
