"""A forward that autograd does not follow, with the program's in-place writes.

In a record new content is a new value. Called so, a step would hold what it updates twice, until
its end. Here the operator in place is called, as the program did, where nothing reads the memory
afterwards as it was: neither the value that is written over, nor a view of it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from foretrace.ir.program.interface import Output
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.walk import rename, subgraphs_of
from foretrace.ir.values.value import Value, substitute, values_in
from foretrace.lowering.cuts.cut import Level, flatten
from foretrace.lowering.reinplace.in_place_calls import (
    COPY,
    Called,
    InPlaceCalls,
    called,
    counterpart,
    on_lists,
)
from foretrace.lowering.reinplace.memory import Memories, Sharing
from foretrace.lowering.reinplace.order import MayRaise, ordered


@dataclass(frozen=True, slots=True, eq=False)
class InPlace:
    """A graph whose ops write; those that write have no results.

    `same`: by new content, the value whose memory has it.
    """

    graph: Graph
    same: dict[Value, Value]


def as_values(graph: Graph, level: Level) -> Graph:
    """A cut in which ops that write are whole, with the forms of them that return new content."""
    level = replace(level, writes=False)
    opened = (flatten((op,), level) if op.writes else (op,) for op in graph.ops)
    return replace(graph, ops=[op for ops in opened for op in ops])


def written_in_place(
    graph: Graph, recorded: Recording, level: Level, may_raise: MayRaise
) -> InPlace:
    """The graph as it is run.

    Args:
        graph: a forward cut in which ops that write are whole (`Level.writes`).
        recorded: the program.
        level: the cut's.
        may_raise: whether an operator's call may raise, of data.
    """
    writing = _Writing(graph, recorded, level, may_raise)
    ops = list(writing.ops())
    same = writing.memories.same
    if any(map(writing.shows_input, graph.outputs)):
        return InPlace(as_values(graph, level), {})
    outputs = [replace(o, value=substitute(o.value, same)) for o in graph.outputs]
    return InPlace(replace(graph, ops=ops, outputs=outputs), same)


class _Writing:
    """Goes through a graph once, in the order in which it runs."""

    def __init__(
        self, graph: Graph, recorded: Recording, level: Level, may_raise: MayRaise
    ) -> None:
        self.graph, self.level = graph, replace(level, writes=False)
        self.callable, self.lists, sharing = InPlaceCalls(graph), on_lists(graph), Sharing()
        self.memories = Memories(graph, recorded, sharing)
        mine = (value for value, memory in self.memories.of.items() if memory.writable)
        inputs = sharing.beside(mine, graph.ops)
        self.order = ordered(graph, recorded, inputs, self.lists, sharing, may_raise)
        copies = {copy for _, copies in self.lists.values() for copy in copies}
        self.memories.read_by(self.order.ops, graph, copies)

    def ops(self) -> Iterator[Op]:
        """The ops that run; those that write have no outs."""
        done = set[Op]()
        for place, op in enumerate(self.order.ops):
            into, copies = self.lists.get(op, ((), ()))
            if op in done:
                pass
            elif into and self._list(op, into, copies, place):
                done.update(copies)
                yield self._now(op, (counterpart(op.target), op.args, op.kwargs))
            elif op.writes and self._one(op, place):
                yield self._now(op, called(op))
            else:
                yield from map(self._renamed, self._opened(op))
            if place == self.order.until:
                yield from self._caught_up(place)

    def _caught_up(self, place: int) -> Iterator[Op]:
        """Writes of earlier results into inputs, which are allowed from now on."""
        for op in self.order.ops[: place + 1]:
            if op not in self.order.values or not op.writes or len(op.outs) != 1:
                continue
            old, new = op.operands[0], op.outs[0]
            memory = self.memories.of.get(old)
            if not (memory and memory.of_input and self.memories.free([old], place)):
                continue
            if self.memories.fits(op, old):
                yield self._now(op, (COPY, (old, new), {}))
                self.memories.take(op, old)

    def _opened(self, op: Op) -> Iterator[Op]:
        for each in flatten((op,), self.level) if op.writes else (op,):
            self.memories.add_results(each)
            yield each

    def _one(self, op: Op, place: int) -> bool:
        """Whether an op writes in place; its result is then the memory's content."""
        if op in self.order.values or not self.callable.of(op):
            return False
        into = values_in(called(op)[1])[0]
        if not (self.memories.free([into], place) and self.memories.fits(op, into)):
            return False
        self.memories.take(op, into)
        return True

    def _list(self, op: Op, into: Sequence[Value], copies: Sequence[Op], place: int) -> bool:
        """The same of an operator on lists, whose results are copied into what it is to write."""
        if not self.order.values.isdisjoint((op, *copies)) or not self.memories.free(into, place):
            return False
        over = [values_in(called(copy)[1])[0] for copy in copies]
        if not all(map(self.memories.fits, copies, over)):
            return False
        for copy, each in zip(copies, over, strict=True):
            self.memories.take(copy, each)
        return True

    def _renamed(self, op: Op) -> Op:
        same = self.memories.same
        if same.keys().isdisjoint(op.operands):
            return op
        if op.region or subgraphs_of(op):
            return rename(op, same)
        args, kwargs = substitute((op.args, op.kwargs), same)
        return op.but(args=args, kwargs=kwargs)

    def _now(self, op: Op, call: Called) -> Op:
        func, args, kwargs = call
        args, kwargs = substitute((args, kwargs), self.memories.same)
        return Op(
            func, args, kwargs, None, (), origin=op.origin, because=op.because, rule=op.rule,
            choice=op.choice, asked=op.asked,
        )  # fmt: skip

    def shows_input(self, output: Output) -> bool:
        """Whether an output that is no input would become one by writing in place."""
        if output.role.kind == "mutation" or not output.computed:
            return False
        memories = (self.memories.of.get(value) for value in values_in(output.value))
        return any(m is not None and m.of_input and m.writable for m in memories)
