"""The counterparts of values in the other cut, and the reasons why values differ."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence

from foretrace.inspect.diff.cut_coverage import Node, with_subgraph_ops
from foretrace.inspect.diff.difference import Found, Reason
from foretrace.inspect.diff.sequence_alignment import by_rules
from foretrace.inspect.diff.sides import aspects
from foretrace.inspect.diff.tree_alignment import constants, fit, key_of
from foretrace.ir.program.op import Op, target_name
from foretrace.ir.program.recording import Graph
from foretrace.ir.program.walk import subgraphs_of
from foretrace.ir.values.value import Value, values_in


class Causes:
    """Follows values through both cuts: results of a difference have its reason."""

    def __init__(
        self, *, one_record: bool, copies: Mapping[Value, Value], moved: bool = False
    ) -> None:
        self.one_record, self.copies, self.moved = one_record, copies, moved
        self.other: dict[Value, Value] = {}
        """the counterpart of a value, in both directions"""
        self.of: dict[Value, Reason] = {}
        """why a value has another type than its counterpart, or has none"""

        self.uses: dict[Value, Reason] = {}
        """why a value is used on one side by an op that the other side lacks"""

    def match(self, left: Sequence[Value], right: Sequence[Value]) -> None:
        """Record that these are the same values, if their numbers are equal."""
        if len(left) == len(right):
            for mine, theirs in zip(left, right, strict=True):
                self.other[mine], self.other[theirs] = theirs, mine

    def match_subgraphs(self, left: Op, right: Op) -> None:
        """Record that the values of two equal ops' subgraphs are the same."""
        for mine, theirs in zip(subgraphs_of(left), subgraphs_of(right), strict=False):
            self.match(mine.values, theirs.values)

    def meet(self, left: Sequence[Value], right: Sequence[Value]) -> None:
        """Record that operands of equal ops are the same, if neither side knows them."""
        if len(left) == len(right):
            for mine, theirs in zip(left, right, strict=True):
                if not {mine, theirs} & (self.other.keys() | self.of.keys()):
                    self.match([mine], [theirs])

    def blame(self, values: Iterable[Value], reason: Reason) -> None:
        """Record the reason of values."""
        for value in values:
            self.of.setdefault(value, reason)

    def blame_inside(self, nodes: Iterable[Node], reason: Reason) -> None:
        """Record the reason of all results of nodes and their children."""
        for node in nodes:
            self.blame(node.op.outs, reason)
            for value in node.op.operands:
                self.uses.setdefault(value, reason)
            self.blame_inside(node.children, reason)

    def original(self, value: Value) -> Value:
        """The value of which a value is a saved copy, or itself."""
        return self.copies.get(value, value)

    def counterpart(self, value: Value) -> Value | None:
        """The value on the other side; in two cuts of one recording, itself."""
        found = self.other.get(value)
        alone = found is None and value in self.of
        return value if found is None and self.one_record and not alone else found

    def knows(self, value: Value) -> bool:
        """Whether the counterpart is known."""
        return self.counterpart(self.original(value)) is not None

    def among(self, values: Iterable[Value]) -> Reason | None:
        """The first reason of the values."""
        return next((self.of[value] for value in values if value in self.of), None)

    def among_uses(self, values: Iterable[Value]) -> Reason | None:
        """The first reason of other uses of the values."""
        return next((self.uses[value] for value in values if value in self.uses), None)

    def of_types(self, left: Op, right: Op) -> Reason | None:
        """The reason of an operand with another type, or no counterpart, on the other side."""
        known = [v for v in (*left.operands, *right.operands) if v in self.of]
        others = {v: self.counterpart(v) for v in known}
        alone = [v for v in known if others[v] is None]
        retyped = [
            v
            for v, other in others.items()
            if other is not None and aspects(v.type, other.type, moved=self.moved)
        ]
        return next((self.of[v] for v in (*retyped, *alone)), None)

    def equal_types(self, left: Op, right: Op) -> bool:
        """Whether two ops have operands of equal types, but for the device."""
        both = zip(left.operands, right.operands, strict=False)
        same = not any(aspects(a.type, b.type, moved=self.moved) for a, b in both)
        return same and len(left.operands) == len(right.operands)

    def different(self, left: Op, right: Op, tree: Collection[Value]) -> bool:
        """Whether two ops have operands that are not the same; `tree`: values of one recording."""
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
        """The operands that are not each other's counterparts, though both have one."""
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
    """The uses of each value of a cut: by which op, at which line and position."""

    def __init__(self, graph: Graph) -> None:
        self.of = dict[Value, Counter[Hashable]]()
        for op in with_subgraph_ops(graph.ops):
            frame = op.origin.frame
            for place, value in enumerate(op.operands):
                self._add(value, (target_name(op.target), frame and frame.text, place))
        for output in graph.outputs:
            for value in values_in(output.value):
                self._add(value, (output.role.kind, output.role.name))

    def _add(self, value: Value, use: Hashable) -> None:
        self.of.setdefault(value, Counter())[use] += 1

    def unlike(self, mine: Sequence[Value], other: "Uses", theirs: Sequence[Value]) -> int:
        """The number of uses of values that the other values do not have."""
        none, count = Counter[Hashable](), 0
        for a, b in zip(mine, theirs, strict=False):
            one, two = self.of.get(a, none), other.of.get(b, none)
            count += ((one - two) + (two - one)).total()
        return count


class Users:
    """The differences of ops that use a value."""

    def __init__(self, ops: Iterable[Op], found: Sequence[Found]) -> None:
        self.users: dict[Value, list[Op]] = {}
        for op in ops:
            for value in op.operands:
                self.users.setdefault(value, []).append(op)
        self.about = {op: each for each in found for op in (*each.left, *each.right)}

    def reason(self, of: Found) -> Reason | None:
        """The reason of the first op that uses a difference's results."""
        for op in (*of.left, *of.right):
            for user in (u for out in op.outs for u in self.users.get(out, ())):
                known = self.about.get(user)
                if known is not None and known is not of and known.reason is not None:
                    return known.reason
        return None


class ByOperands:
    """Pairs the ops of two sequences by their operands.

    Args:
        causes: the counterparts that are known; each pair adds its results.
        left: the uses of the left cut's values.
        right: the uses of the right cut's values.
        tree: the values of the tree, if both cuts are of one recording.
    """

    def __init__(self, causes: Causes, left: Uses, right: Uses, tree: Collection[Value]) -> None:
        self.causes, self.left, self.right, self.tree = causes, left, right, tree

    def __call__(
        self, left: Sequence[Op], right: Sequence[Op]
    ) -> Iterator[tuple[Op | None, Op | None]]:
        """The pairs in any order, then the ops without a counterpart."""
        results = [{out for op in ops for out in op.outs} for ops in (left, right)]

        def within(rule: Callable[[Op, Op], bool]) -> Callable[[Op, Op], bool]:
            return lambda a, b: rule(a, b) and _equal_sources(a, b, *results)

        rules = (self._known_operands, self._same_call, self._may_be_equal)
        over, waiting = dict.fromkeys(left), dict.fromkeys(right)
        for a, b in by_rules(left, right, list(map(within, rules)), self._score):
            del over[a], waiting[b]
            self.causes.match(a.outs, b.outs)
            yield a, b
        yield from ((a, None) for a in over)
        yield from ((None, b) for b in waiting)

    def _score(self, a: Op, b: Op) -> tuple[int, int]:
        """The score of two ops, then that of the uses of their results."""
        return fit(a, b), -self.left.unlike(a.outs, self.right, b.outs)

    def _known_operands(self, a: Op, b: Op) -> bool:
        """Whether two ops have equal operands, of which one at least is known."""
        known = not a.operands or any(map(self.causes.knows, a.operands))
        return known and self._may_be_equal(a, b)

    def _may_be_equal(self, a: Op, b: Op) -> bool:
        return not self.causes.different(a, b, self.tree)

    def _same_call(self, a: Op, b: Op) -> bool:
        """Whether it is the same call of another tensor, which differs for a reason of its own."""
        same = key_of(a) == key_of(b) and constants(a) == constants(b)
        return same and not any(self.causes.rewired(a, b))


def _equal_sources(a: Op, b: Op, left: Collection[Value], right: Collection[Value]) -> bool:
    """Whether each operand is a result of both sequences, or of neither."""
    both = zip(a.operands, b.operands, strict=False)
    return all((mine in left) == (theirs in right) for mine, theirs in both)
