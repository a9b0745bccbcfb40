"""The tree of a recording, marked with the ops of one cut."""

from collections.abc import Iterable, Iterator

from foretrace.inspect.explain.tree_path import of_history, pieces_to
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import ModuleCall
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.walk import subgraphs_of
from foretrace.ir.values.value import Value
from foretrace.tracer.recorder.function_target import FunctionCall


class Node:
    """One op of the tree, with the ops of the cut that are it, its pieces, or its backward."""

    __slots__ = ("above", "backward", "children", "history", "op", "pieces", "whole")

    def __init__(self, op: Op, above: "Node | None") -> None:
        self.op, self.above = op, above
        self.children: list[Node] = []
        self.whole: Op | None = None
        """the op in the cut, which may have other results"""
        self.pieces: list[Op] = []
        """the ops by which a decomposition table replaced it"""
        self.history: list[Op] = []
        """the ops that a forward cut has only for autograd"""
        self.backward: list[Op] = []
        """the backward ops that serve it, in the order of the cut"""

    @property
    def module(self) -> bool:
        """Whether it is a module call."""
        return isinstance(self.op.target, ModuleCall)

    @property
    def by_python(self) -> bool:
        """Whether Python called its children, and no kernel."""
        called = isinstance(self.op.target, (ModuleCall, FunctionCall))
        return called or bool(subgraphs_of(self.op))

    @property
    def opened(self) -> bool:
        """Whether the cut decomposes it, possibly into nothing."""
        return self.whole is None and not (self.op.leaf and not self.pieces)

    @property
    def written(self) -> "Node":
        """The op as written of which it is a part, or itself."""
        above = self.above
        return self if above is None or above.module else above.written

    def forward_ops(self) -> Iterator[Op]:
        """The ops of the cut's forward for it."""
        if self.whole is not None:
            yield self.whole
        yield from self.pieces
        yield from self.history
        for child in self.children if self.whole is None else ():
            yield from child.forward_ops()

    def backward_ops(self) -> Iterator[Op]:
        """The ops of the cut's backward for it and its children, last op first."""
        for child in reversed(self.children):
            yield from child.backward_ops()
        yield from self.backward

    def in_subgraphs(self) -> "list[Node]":
        """The nodes of its subgraphs."""
        return self.children if subgraphs_of(self.op) else []


class Marked:
    """The tree, marked with one cut. `roots`: the program's ops; `outside`: ops not in the tree."""

    def __init__(self, recorded: Recording, graph: Graph) -> None:
        self._known: dict[tuple[int, object], Node] = {}
        self.values: set[Value] = {item.value for item in recorded.inputs}
        """all values of the tree"""
        self.roots = [self._node(op, None) for op in recorded.ops]
        self.outside: list[Op] = []
        for op in with_subgraph_ops(graph.ops):
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
            self.outside.append(op)
        elif whole.late:
            node.backward.append(op)
        elif of_history(op):
            node.history.append(op)
        elif pieces:
            node.pieces.append(op)
        else:
            node.whole = op

    def node_of(self, op: Op) -> Node | None:
        """The node of an op of the tree, or of the cut, where it may have other results."""
        found = (self._known.get(key) for key in _keys(op))
        return next((node for node in found if node is not None), None)


def _keys(op: Op) -> Iterator[tuple[int, object]]:
    """What identifies an op: its id, or its target with a part that no other op has."""
    yield id(op), None
    target = id(op.target)
    for part in (op.outs, op.args, op.region):
        if part:
            yield target, id(part)
    for out in op.outs[:1]:
        yield target, out


def with_subgraph_ops(ops: Iterable[Op]) -> Iterator[Op]:
    """The ops, each followed by those of its subgraphs."""
    for op in ops:
        yield op
        for program in subgraphs_of(op):
            yield from with_subgraph_ops(program.ops)
