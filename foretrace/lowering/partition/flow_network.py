"""The band of a program between forward and backward, as a network whose minimum cut is saved."""

from collections.abc import Iterable
from math import inf

from foretrace.ir.program.op import Op
from foretrace.ir.values.value import Value
from foretrace.lowering.cuts.dead_code import needs, values_of
from foretrace.lowering.partition.min_cut import Network, Node, minimum_cut
from foretrace.lowering.partition.placement import Sides

FEWEST = "it takes fewest bytes of all that the backward's operands can be made of"
LEAVES = "a checkpoint made it, and it is used outside of it"


class SavingNetwork:
    """What the backward uses, and all from which it could be computed by ops that may run again."""

    def __init__(self, halves: Sides) -> None:
        self.halves, self.network = halves, Network()
        self.reached: set[Value] = set()
        self.reasons: dict[Value, str] = {}
        self.copies: dict[Value, Value] = {}
        """what leaves a checkpoint, as the outside sees it: had once, though recomputed inside"""
        self.edges: list[tuple[Node, Node]] = []

    def cut(self) -> dict[Value, str]:
        """The values to save, each with the reason."""
        halves, network = self.halves, self.network
        for op in halves.late:
            network.sinks.update(self._used(op, needs(op)))
        network.sinks.update(self._used(None, values_of(halves.gradients)))
        for op in reversed(list(halves.early())):
            outs = [v for v in op.outs if v in self.reached]
            if outs:
                self._op(op, outs)
        for value in halves.aliases & halves.input_of.keys() & self.reached:
            self._source(value, value, "")
        for before, after in self.edges:
            network.edge(before, after)
        originals: dict[Node, Value] = {copy: value for value, copy in self.copies.items()}
        saved = [originals.get(node, node) for node in minimum_cut(network)]
        return {v: self.reasons.get(v, FEWEST) for v in saved if isinstance(v, Value)}

    def _used(self, op: Op | None, values: Iterable[Value]) -> list[Node]:
        """The nodes of values where an op uses them."""
        nodes: list[Node] = []
        for value in values:
            maker = self.halves.makers.get(value)
            if maker in self.halves.late or (maker is None and value not in self.halves.aliases):
                continue
            if maker is not None and self._leaves(op, value, maker):
                nodes.append(self._copy(value))
            else:
                self.reached.add(value)
                nodes.append(value)
        return nodes

    def _leaves(self, op: Op | None, value: Value, maker: Op) -> bool:
        """Whether a checkpoint that `op` is not in computed the value, by an op that runs again."""
        if maker.origin.checkpoint is None or self.halves.forced(maker):
            return False
        return op is None or not self.halves.inside(op, value)

    def _copy(self, value: Value) -> Value:
        if value not in self.copies:
            self.copies[value] = Value(value.type)
            self._source(self.copies[value], value, LEAVES)
        return self.copies[value]

    def _source(self, node: Value, value: Value, reason: str) -> None:
        """Add a value that can be computed only once."""
        self.network.node(node, self.halves.symbols.hint(value.type.bytes))
        self.network.sources.add(node)
        self.reasons[value] = reason

    def _op(self, op: Op, outs: list[Value]) -> None:
        """The op that computes a needed value: its results, and what it would need again."""
        inner = op.origin.checkpoint is not None
        reason = self.halves.forced(op) or ("" if inner else self.halves.costs(op))
        if reason:
            for value in outs:
                self._source(value, value, reason)
            return
        base = inner or self.halves.view(op)  # not worth memory: its base is saved, or it is inner
        for value in outs:
            self.network.node(value, inf if base else self.halves.symbols.hint(value.type.bytes))
        operands = self._used(op, needs(op))
        if len(outs) == 1:
            self.edges += [(v, outs[0]) for v in operands]
        else:
            self.network.node(op, inf)
            self.edges += [*((v, op) for v in operands), *((op, out) for out in outs)]
