"""Which value of one cut is which of the other, and why a value is not what it is there."""

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence

from foretrace.inspect.diff.cut_coverage import Node, with_held
from foretrace.inspect.diff.difference import Found, Reason
from foretrace.inspect.diff.sides import aspects
from foretrace.ir.program.op import Op, Value, target_name, values_in
from foretrace.ir.program.recording import Graph
from foretrace.ir.program.walk import subgraphs_of


class Causes:
    """Follows values through both cuts: what comes of a difference has its reason."""

    def __init__(
        self, *, one_record: bool, copies: Mapping[Value, Value], moved: bool = False
    ) -> None:
        self.one_record, self.copies, self.moved = one_record, copies, moved
        self.other: dict[Value, Value] = {}
        """the counterpart of a value, in both directions"""
        self.of: dict[Value, Reason] = {}
        """why a value has another type than its counterpart, or has none"""

        self.uses: dict[Value, Reason] = {}
        """why a value is used on one side by an op that the other side has not"""

    def match(self, left: Sequence[Value], right: Sequence[Value]) -> None:
        """These are the same values, one by one, as far as both sides have them."""
        if len(left) == len(right):
            for mine, theirs in zip(left, right, strict=True):
                self.other[mine], self.other[theirs] = theirs, mine

    def match_held(self, left: Op, right: Op) -> None:
        """What the programs that two equal ops hold are given is the same, one by one."""
        for mine, theirs in zip(subgraphs_of(left), subgraphs_of(right), strict=False):
            self.match(mine.values, theirs.values)

    def meet(self, left: Sequence[Value], right: Sequence[Value]) -> None:
        """Operands of ops that are the same: what neither side has met before is the same."""
        if len(left) == len(right):
            for mine, theirs in zip(left, right, strict=True):
                if not {mine, theirs} & (self.other.keys() | self.of.keys()):
                    self.match([mine], [theirs])

    def blame(self, values: Iterable[Value], reason: Reason) -> None:
        """These values are what they are for this reason."""
        for value in values:
            self.of.setdefault(value, reason)

    def blame_inside(self, nodes: Iterable[Node], reason: Reason) -> None:
        """The same of all that ops make, and what they are made of makes."""
        for node in nodes:
            self.blame(node.op.outs, reason)
            for value in node.op.operands:
                self.uses.setdefault(value, reason)
            self.blame_inside(node.children, reason)

    def original(self, value: Value) -> Value:
        """What a copy that is made for the backward is a copy of."""
        return self.copies.get(value, value)

    def counterpart(self, value: Value) -> Value | None:
        """What the value is on the other side; in two cuts of one record, it is itself."""
        found = self.other.get(value)
        alone = found is None and value in self.of
        return value if found is None and self.one_record and not alone else found

    def knows(self, value: Value) -> bool:
        """Whether it is known which value of the other side it is."""
        return self.counterpart(self.original(value)) is not None

    def among(self, values: Iterable[Value]) -> Reason | None:
        """The first reason that one of the values has."""
        return next((self.of[value] for value in values if value in self.of), None)

    def among_uses(self, values: Iterable[Value]) -> Reason | None:
        """The first reason for which one of the values has other uses."""
        return next((self.uses[value] for value in values if value in self.uses), None)

    def of_types(self, left: Op, right: Op) -> Reason | None:
        """The reason of an operand that has another type on the other side, or is not there."""
        known = [v for v in (*left.operands, *right.operands) if v in self.of]
        others = {v: self.counterpart(v) for v in known}
        alone = [v for v in known if others[v] is None]
        apart = [
            v
            for v, other in others.items()
            if other is not None and aspects(v.type, other.type, moved=self.moved)
        ]
        return next((self.of[v] for v in (*apart, *alone)), None)

    def alike(self, left: Op, right: Op) -> bool:
        """Whether two ops get operands of equal types, but for the device."""
        both = zip(left.operands, right.operands, strict=False)
        same = not any(aspects(a.type, b.type, moved=self.moved) for a, b in both)
        return same and len(left.operands) == len(right.operands)

    def apart(self, left: Op, right: Op, tree: Collection[Value]) -> bool:
        """Whether two ops get operands that are not the same; `tree`: the values of the record."""
        if len(left.operands) != len(right.operands):
            return True
        for mine, theirs in zip(left.operands, right.operands, strict=True):
            a, b = self.original(mine), self.original(theirs)
            known = self.other.get(a) or (a if a in tree else None)
            back = self.other.get(b) or (b if b in tree else None)
            if (known is not None or back is not None) and (known is not b or back is not a):
                return True
        return False

    def rewired(self, left: Op, right: Op) -> Iterator[tuple[Value, Value]]:
        """Operands that are another value on the other side, though each has a counterpart."""
        if len(left.operands) != len(right.operands):
            return
        mine_all, theirs_all = (map(self.original, op.operands) for op in (left, right))
        for mine, theirs in zip(mine_all, theirs_all, strict=True):
            expected, back = self.counterpart(mine), self.counterpart(theirs)
            if expected is not None and back is not None and expected is not theirs:
                yield mine, theirs

    def followed(self, left: Op, right: Op) -> Reason | None:
        """The reason of an operand that autograd follows on one side alone."""
        for mine in left.operands:
            theirs = self.counterpart(mine)
            if (
                theirs is not None
                and mine in self.of
                and mine.type.requires_grad != theirs.type.requires_grad
            ):
                return self.of[mine]
        return None


class Uses:
    """What is done with each value of a cut: which call takes it, at which line and place."""

    def __init__(self, graph: Graph) -> None:
        self.of = dict[Value, Counter[Hashable]]()
        for op in with_held(graph.ops):
            frame = op.origin.frame
            for place, value in enumerate(op.operands):
                self._add(value, (target_name(op.target), frame and frame.text, place))
        for output in graph.outputs:
            for value in values_in(output.value):
                self._add(value, (output.role.kind, output.role.name))

    def _add(self, value: Value, use: Hashable) -> None:
        self.of.setdefault(value, Counter())[use] += 1

    def unlike(self, mine: Sequence[Value], other: "Uses", theirs: Sequence[Value]) -> int:
        """How many uses of some values have no counterpart among those of others."""
        none, count = Counter[Hashable](), 0
        for a, b in zip(mine, theirs, strict=False):
            one, two = self.of.get(a, none), other.of.get(b, none)
            count += ((one - two) + (two - one)).total()
        return count


class Users:
    """Which differences are about the ops that use a value."""

    def __init__(self, ops: Iterable[Op], found: Sequence[Found]) -> None:
        self.users: dict[Value, list[Op]] = {}
        for op in ops:
            for value in op.operands:
                self.users.setdefault(value, []).append(op)
        self.about = {op: each for each in found for op in (*each.left, *each.right)}

    def reason(self, of: Found) -> Reason | None:
        """That of the first op that uses what the difference is about."""
        for op in (*of.left, *of.right):
            for user in (u for out in op.outs for u in self.users.get(out, ())):
                known = self.about.get(user)
                if known is not None and known is not of and known.reason is not None:
                    return known.reason
        return None
