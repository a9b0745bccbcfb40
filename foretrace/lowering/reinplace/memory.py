"""The memory of a graph's values: which of them share it, and which may be written."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from foretrace import torch_api
from foretrace.autograd.eager_history.version_counters import view_positions_of
from foretrace.ir.program.interface import Input
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.tensor_effects import Reshape
from foretrace.ir.values.value import Value, values_in


@dataclass(slots=True, eq=False)
class Memory:
    """One memory: the current values in it, and whether it may be written."""

    writable: bool
    members: list[Value] = field(default_factory=list)
    of_input: bool = False


class Sharing:
    """Knows which values share memory by each op; computed once."""

    def __init__(self) -> None:
        self._known: dict[Op, Mapping[Value, list[Value]]] = {}

    def of(self, op: Op) -> Mapping[Value, list[Value]]:
        """For each result of the op, the operands whose memory it may share."""
        known = self._known.get(op)
        if known is None:
            known = self._known[op] = shared_by(op)
        return known

    def beside(self, values: Iterable[Value], ops: Iterable[Op]) -> set[Value]:
        """The values that may share the memory of these inputs, with these."""
        found = set(values)
        for op in ops:
            if op.writes:
                found.update(() if found.isdisjoint(op.operands) else op.outs)
            else:
                pairs = self.of(op).items()
                found.update(out for out, bases in pairs if not found.isdisjoint(bases))
        return found


class Memories:
    """The memory of each value, while ops are called one after the other.

    `of`: by value. `same`: by new content that an op has written, the value that was there first.
    """

    def __init__(self, graph: Graph, recorded: Recording, sharing: Sharing) -> None:
        self.sharing, self.same = sharing, dict[Value, Value]()
        self.last: dict[Value, float] = {}
        """the place of the op that reads a value last"""
        written = {m.index for m in recorded.mutations if not m.rebound}
        written -= {each.index for each in recorded.effects_of(Reshape)}
        self.of = {
            item.value: Memory(index in written and may_be_written(item), [item.value], True)
            for index, item in enumerate(graph.inputs)
        }

    def read_by(self, ops: Iterable[Op], graph: Graph, unread: Collection[Op]) -> None:
        """Note which op reads a value last; outputs are read at the end."""
        for place, op in enumerate(ops):
            if op not in unread:
                self.last.update(dict.fromkeys(op.operands, place))
        for output in graph.outputs:
            self.last.update(dict.fromkeys(values_in(output.value), inf))

    def add_results(self, op: Op) -> None:
        """Add an op's results, in new memory or in that of their base."""
        for value, shown in self.sharing.of(op).items():
            bases = [self.of[base] for base in shown if base in self.of]
            if len({id(base) for base in bases}) == 1:
                bases[0].members.append(value)
                self.of[value] = bases[0]
                continue
            for base in bases:  # in one of them, and nobody knows which
                base.writable = False
            self.of[value] = Memory(not bases and _plain(value), [value])

    def free(self, into: Iterable[Value], place: int) -> bool:
        """Whether values lie in distinct memory that nothing reads after an op."""
        found = [self.of.get(value) for value in into]
        if len({id(memory) for memory in found}) < len(found):
            return False
        return all(
            memory is not None
            and memory.writable
            and all(self.last.get(member, -1) <= place for member in memory.members)
            for memory in found
        )

    def fits(self, op: Op, into: Value) -> bool:
        """Whether an op's new content has the layout of the memory."""
        (new,), old = op.outs, op.operands[0]
        return new.type.same_layout(old.type) and self.of.get(old) is self.of[into]

    def take(self, op: Op, into: Value) -> None:
        """Note that an op's new content is in the memory from now on."""
        (new,), old = op.outs, op.operands[0]
        memory = self.of[new] = self.of[into]
        self.same[new] = self.same.get(old, old)
        memory.members = [new]


def may_be_written(item: Input) -> bool:
    """Whether memory of an input may be written while the graph runs, as by `copy_` at its end."""
    leaf = item.leaf or not item.value.type.requires_grad
    return leaf and _plain(item.value) and not item.memory and item.number is None


def _plain(value: Value) -> bool:
    type = value.type
    return not (type.wrapped or type.sparse or type.lazy)


def shared_by(op: Op) -> Mapping[Value, list[Value]]:
    """By what an op makes, the operands in whose memory it may lie; none: in memory of its own."""
    found: dict[Value, list[Value]] = {out: [] for out in op.outs}
    if op.below is None:
        if op.target in torch_api.DRAWN_AGAIN:  # and what it runs is an operator of that kind
            return found
        if not isinstance(op.target, torch_api.OpOverload) or op.target.namespace != "aten":
            return {out: list(op.operands) for out in op.outs}
        for place, base, _ in view_positions_of(op):
            found[op.outs[place]] = [base]
        return found
    shared = op.definition
    if shared is None or op.region is not None:  # that may give values of its insides, too
        inside = _inside(op.region or (), op.operands)
        return {out: inside.get(out, []) for out in op.outs}
    inside = _inside(shared.ops, shared.params)
    of = dict(zip(shared.params, op.operands, strict=True))
    pairs = zip(op.outs, shared.outs, strict=True)
    return {out: [of[base] for base in inside.get(own, [])] for out, own in pairs}


def _inside(ops: Iterable[Op], params: Iterable[Value]) -> dict[Value, list[Value]]:
    known: dict[Value, list[Value]] = {param: [param] for param in params}
    for op in ops:
        for out, bases in shared_by(op).items():
            known[out] = list(dict.fromkeys(b for base in bases for b in known.get(base, [base])))
    return known
