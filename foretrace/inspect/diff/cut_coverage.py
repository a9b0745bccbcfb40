"""The tree of a record with what one cut has of it: which ops are whole, which serve which."""

from collections.abc import Iterable, Iterator

from foretrace.inspect.explain.tree_path import of_history, pieces_to
from foretrace.ir.program.op import ModuleCall, Op, Value
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.walk import subgraphs_of
from foretrace.tracer.recorder.function_target import FunctionCall


class Node:
    """One op of the tree, and the ops of the cut that are it, are made of it, or serve it."""

    __slots__ = ("above", "backward", "children", "history", "op", "pieces", "whole")

    def __init__(self, op: Op, above: "Node | None") -> None:
        self.op, self.above = op, above
        self.children: list[Node] = []
        self.whole: Op | None = None
        """the op in the cut, which may return other things beside"""
        self.pieces: list[Op] = []
        """what a decomposition table made of it"""
        self.history: list[Op] = []
        """what a forward cut spells out so that it trains as the program does"""
        self.backward: list[Op] = []
        """the backward ops that serve it, in the order of the cut"""

    @property
    def module(self) -> bool:
        """Whether it is a call of a module."""
        return isinstance(self.op.target, ModuleCall)

    @property
    def by_python(self) -> bool:
        """Whether what is in it was called by the program's Python, and by no kernel."""
        called = isinstance(self.op.target, (ModuleCall, FunctionCall))
        return called or bool(subgraphs_of(self.op))

    @property
    def opened(self) -> bool:
        """Whether the cut takes it apart, be it into nothing."""
        return self.whole is None and not (self.op.leaf and not self.pieces)

    @property
    def written(self) -> "Node":
        """The op as written that it is a part of, or it itself."""
        above = self.above
        return self if above is None or above.module else above.written

    def forward_ops(self) -> Iterator[Op]:
        """What the cut has of it in the forward."""
        if self.whole is not None:
            yield self.whole
        yield from self.pieces
        yield from self.history
        for child in self.children if self.whole is None else ():
            yield from child.forward_ops()

    def backward_ops(self) -> Iterator[Op]:
        """What the cut has that serves it, or serves what it is made of, last op first."""
        for child in reversed(self.children):
            yield from child.backward_ops()
        yield from self.backward

    def held(self) -> "list[Node]":
        """The nodes of the programs that it holds."""
        return self.children if subgraphs_of(self.op) else []


class Marked:
    """The tree as one cut has it. `roots`: the ops of the program; `apart`: what is in no tree."""

    def __init__(self, recorded: Recording, graph: Graph) -> None:
        self._known: dict[tuple[int, object], Node] = {}
        self.values: set[Value] = {item.value for item in recorded.inputs}
        """all that the tree speaks of"""
        self.roots = [self._node(op, None) for op in recorded.ops]
        self.apart: list[Op] = []
        for op in with_held(graph.ops):
            self._mark(op)

    def _node(self, op: Op, above: Node | None) -> Node:
        node = Node(op, above)
        self.values.update(op.outs)
        for key in _keys(op):
            self._known.setdefault(key, node)
        below = [inner for program in subgraphs_of(op) for inner in program.ops]
        node.children = [self._node(inner, node) for inner in below or op.region or ()]
        return node

    def _mark(self, op: Op) -> None:
        whole, *pieces = pieces_to(op)
        node = self.node_of((whole.late and whole.because) or whole)
        if node is None:
            self.apart.append(op)
        elif whole.late:
            node.backward.append(op)
        elif of_history(op):
            node.history.append(op)
        elif pieces:
            node.pieces.append(op)
        else:
            node.whole = op

    def node_of(self, op: Op) -> Node | None:
        """The node of an op of the tree, or of the cut, where it may return other things beside."""
        found = (self._known.get(key) for key in _keys(op))
        return next((node for node in found if node is not None), None)


def _keys(op: Op) -> Iterator[tuple[int, object]]:
    """What tells an op from all others: itself, or its target with a part that no other has."""
    yield id(op), None
    target = id(op.target)
    for part in (op.outs, op.args, op.region):
        if part:
            yield target, id(part)
    for out in op.outs[:1]:
        yield target, out


def with_held(ops: Iterable[Op]) -> Iterator[Op]:
    """Ops, each followed by those of the programs that it holds."""
    for op in ops:
        yield op
        for program in subgraphs_of(op):
            yield from with_held(program.ops)
