"""Finds the differences of two aligned trees: the forward in order, then the backward."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from foretrace.inspect.diff.capture_settings import Settings
from foretrace.inspect.diff.cut_coverage import Marked, Node, with_subgraph_ops
from foretrace.inspect.diff.difference import Found, Kind, Part, Reason, kind_of, op_name
from foretrace.inspect.diff.reasons import Reasons
from foretrace.inspect.diff.sequence_alignment import running_order
from foretrace.inspect.diff.sides import Side, aspect_text, aspects
from foretrace.inspect.diff.tree_alignment import (
    Gap,
    Pair,
    argument_text,
    arguments_that_differ,
    follows_types,
    key_of,
    paired,
)
from foretrace.inspect.diff.value_causes import ByOperands, Causes, Users, Uses
from foretrace.inspect.explain.tree_path import choice_notes
from foretrace.ir.program.op import Op
from foretrace.ir.values.value import Value


class Comparison:
    """Compares two cuts: `found` are the differences, `matched` the nodes that are one op."""

    def __init__(self, left: Side, right: Side) -> None:
        self.left, self.right = left, right
        self.settings = Settings(left, right)
        self.causes = Causes(
            one_record=left.recorded is right.recorded,
            copies={**left.copies, **right.copies},
            moved=self.settings.moved,
        )
        self.reasons = Reasons(left, right, self.settings, self.causes)
        self.marked = Marked(left.recorded, left.graph), Marked(right.recorded, right.graph)
        tree = self.marked[0].values if self.causes.one_record else frozenset[Value]()
        self.by_operands = ByOperands(self.causes, Uses(left.graph), Uses(right.graph), tree)
        self.found: list[Found] = []
        self.matched: list[tuple[Op, Op]] = []
        self._late: list[tuple[Sequence[Op], Callable[[], object]]] = []
        """comparisons of the backward, and their ops: reasons follow the running order"""
        self._reason_of: dict[Node, Reason] = {}
        """the reason why the forward differs, by nodes of the tree"""

    def run(self) -> None:
        """Find the differences of ops."""
        events = list(paired(*self.marked))
        for event in events:
            if isinstance(event, Gap):
                self._gap(event)
            else:
                self._pair(event)
        for event in reversed(events):
            self._backward(event)
        self._outside()
        left, right = ([*with_subgraph_ops(side.graph.ops)] for side in (self.left, self.right))
        places = running_order(left, right, self.matched)
        for _, compare in sorted(self._late, key=lambda late: min(places[op] for op in late[0])):
            compare()
        self._settle()

    def _add(
        self, kind: Kind, part: Part, left: Iterable[Op], right: Iterable[Op],
        reason: Reason | None, about: Op, notes: tuple[str, ...] = (),
    ) -> None:  # fmt: skip
        self.found.append(Found(kind, part, tuple(left), tuple(right), reason, about, notes))

    # ---- the forward ----------------------------------------------------------------------------

    def _pair(self, pair: Pair) -> None:
        a, b = pair.left, pair.right
        if a.op is not b.op:
            self.causes.meet(a.op.operands, b.op.operands)
            self.causes.match(a.op.outs, b.op.outs)
            self.causes.match_subgraphs(a.op, b.op)
        if a.pieces or b.pieces:
            self._pieces(pair)
        elif pair.mixed:
            self._mixed(pair)
        elif a.whole is not None and b.whole is not None:
            self.matched.append((a.whole, b.whole))
            if a.op is not b.op and (reason := self._same_op(a.op, b.op, pair, (a.whole, b.whole))):
                self._reason_of[a] = self._reason_of[b] = reason
        elif a.op.leaf and b.op.leaf:
            self._other_types(a.op, b.op, pair.above)
        elif not a.module and self.causes.of_types(a.op, b.op):
            self._other_types(a.op, b.op, pair)  # before its children, which have the same results
        if a.history or b.history:
            self._sequence(a.history, b.history, "forward", pair)

    def _other_types(self, a: Op, b: Op, above: Pair | None) -> None:
        """Note reasons of the results of an op that not both cuts have whole."""
        for mine, theirs in zip(a.outs, b.outs, strict=False):
            if differ := aspects(mine.type, theirs.type, moved=self.settings.moved):
                self.causes.blame((mine, theirs), self.reasons.type(a, b, above, differ[0][0]))

    def _mixed(self, pair: Pair) -> None:
        """Add the difference of an op that is whole on one side only."""
        a, b = pair.left, pair.right
        left, right = tuple(a.forward_ops()), tuple(b.forward_ops())
        other = b if a.whole is not None else a
        if (left and right) or other.op.body == []:
            kind: Kind = "opened" if a.whole is not None else "kept"
            reason: Reason | None = self.reasons.mixed(pair)
        else:
            kind = "only left" if left else "only right"
            self._other_types(a.op, b.op, pair.above)
            reason = self.reasons.policy((*left, *right)[0]) or self.reasons.unused(
                on_left=bool(left)
            )
        self._add(kind, "forward", left, right, reason, a.op, choice_notes(other.op.choice))
        self._blame(pair, reason)

    def _pieces(self, pair: Pair) -> None:
        """Add the difference of an op that a decomposition table has opened on one side or both."""
        a, b = pair.left, pair.right
        left, right = list(a.forward_ops()), list(b.forward_ops())
        reason = self.reasons.table(a.pieces, b.pieces) or self.reasons.mixed(pair)
        self._reason_of[a] = self._reason_of[b] = reason
        if a.pieces and b.pieces:
            self._sequence(left, right, "forward", pair)
        elif left or right:
            self._add("opened" if b.pieces else "kept", "forward", left, right, reason, a.op)
            self._blame(pair, reason)

    def _blame(self, pair: Pair, reason: Reason | None) -> None:
        """Note the reason of the children's results, and of result types that differ."""
        a, b = pair.left, pair.right
        if reason is None:
            return
        self._reason_of[a] = self._reason_of[b] = reason
        inside = (v for child in (*a.children, *b.children) for v in child.op.outs)
        self.causes.blame((v for v in inside if v not in self.causes.other), reason)
        self._other_types(a.op, b.op, pair)

    def _gap(self, gap: Gap) -> None:
        left = [op for node in gap.left for op in node.forward_ops()]
        right = [op for node in gap.right for op in node.forward_ops()]
        above, nodes = gap.above, (*gap.left, *gap.right)
        notes: tuple[str, ...] = ()
        if above is None or above.left.by_python:
            reason, about = self.reasons.written(gap.left, gap.right), nodes[0].op
        else:
            reason, about, notes = self.reasons.body(above, nodes), above.left.op, _choices(above)
        if left or right:
            self._add(kind_of(left, right), "forward", left, right, reason, about, notes)
        for node in nodes:
            self._reason_of[node] = reason
        self.causes.blame_inside(nodes, reason)

    # ---- one op on both sides -------------------------------------------------------------------

    def _same_op(self, a: Op, b: Op, pair: Pair | None, nodes: tuple[Op, Op]) -> Reason | None:
        """Add the differences of two calls of one operator, and return the first reason.

        `nodes`: the same two, as the cuts have them.
        """
        found = [
            (mine, theirs, different)
            for mine, theirs in zip(a.outs, b.outs, strict=False)
            if (different := aspects(mine.type, theirs.type, moved=self.settings.moved))
        ]
        differ = [each for each in arguments_that_differ(a, b) if not self._moved(*each[1])]
        reason: Reason | None = None
        if found:
            first = found[0][2][0]
            reason = self.reasons.type(a, b, pair and pair.above, first[0])
            self.causes.blame((v for mine, theirs, _ in found for v in (mine, theirs)), reason)
            self._one("type", reason, nodes, a, (aspect_text(first),))
            differ = [each for each in differ if not any(map(follows_types, each[1]))]
        if differ:
            why = self.reasons.argument(a, b, differ)
            self._one("arguments", why, nodes, a, tuple(map(argument_text, differ)))
            return reason or why
        if reason is None and (rewired := list(self.causes.rewired(a, b))):
            reason = self.reasons.rewired(a, b)
            self._one(
                "arguments", reason, nodes, a, tuple(self._rewired_text(*each) for each in rewired)
            )
        return reason

    def _one(
        self, kind: Kind, reason: Reason, nodes: tuple[Op, Op], about: Op, notes: tuple[str, ...]
    ) -> None:
        """Add the difference of an op that both sides have."""
        part: Part = "forward" if not nodes[0].late else "backward"
        self._add(kind, part, nodes[:1], nodes[1:], reason, about, notes)

    def _moved(self, left: object, right: object) -> bool:
        """Whether both are devices, each that of its target."""
        devices = self.left.target.device, self.right.target.device
        return self.settings.moved and (left, right) == devices

    def _rewired_text(self, mine: Value, theirs: Value) -> str:
        names = self.left.name_of(mine), self.right.name_of(theirs)
        return "it gets {} on the left, {} on the right".format(*names)

    # ---- the backward ---------------------------------------------------------------------------

    def _backward(self, event: Pair | Gap) -> None:
        if isinstance(event, Gap):
            nodes = (*event.left, *event.right)
            left = [op for node in reversed(event.left) for op in node.backward_ops()]
            right = [op for node in reversed(event.right) for op in node.backward_ops()]
            above = event.above
            about = above.left.op if above and not above.left.module else nodes[0].op
            self._served(left, right, about, self._reason_of.get(nodes[0]))
        elif event.mixed or event.left.pieces or event.right.pieces:
            left, right = list(event.left.backward_ops()), list(event.right.backward_ops())
            self._served(left, right, event.left.op, self._reason_of.get(event.left))
        else:
            self._sequence(event.left.backward, event.right.backward, "backward", event)

    def _served(
        self, left: Sequence[Op], right: Sequence[Op], about: Op, reason: Reason | None
    ) -> None:
        """Compare the backward of an op that differs in the forward."""
        if Counter(map(key_of, left)) == Counter(map(key_of, right)):
            self._sequence(left, right, "backward", None, reason)
        elif left or right:
            reason = self.reasons.no_backward() or reason
            self._add(kind_of(left, right), "backward", left, right, reason, about)
            if reason is not None:
                self.causes.blame((out for op in (*left, *right) for out in op.outs), reason)

    def _sequence(
        self,
        left: Sequence[Op],
        right: Sequence[Op],
        part: Part,
        pair: Pair | None,
        reason: Reason | None = None,
    ) -> None:
        """Compare the ops that serve one op; `reason`: why the forward differs."""
        gap: tuple[list[Op], list[Op]] = ([], [])
        for a, b in [*self.by_operands(left, right), (None, None)]:
            if (a is None) != (b is None):
                gap[a is None].append(a or b)  # type: ignore[arg-type]
                continue
            if gap[0] or gap[1]:
                compare = partial(self._sequence_gap, *gap, part, pair, reason)
                self._later(part, [*gap[0], *gap[1]], compare)
            gap = ([], [])
            if a is not None and b is not None:
                self._matched(a, b, pair)

    def _matched(self, a: Op, b: Op, pair: Pair | None) -> None:
        self.matched.append((a, b))
        if a is not b:
            self.causes.match(a.outs, b.outs)
            self.causes.match_subgraphs(a, b)
            part: Part = "forward" if not a.late else "backward"
            self._later(part, [a], partial(self._same_op, a, b, pair, (a, b)))

    def _later(self, part: Part, ops: Sequence[Op], compare: Callable[[], object]) -> None:
        """Compare now, or for the backward, when all values are matched, in running order."""
        if part == "forward":
            compare()
        else:
            self._late.append((ops, compare))

    def _sequence_gap(
        self,
        left: list[Op],
        right: list[Op],
        part: Part,
        pair: Pair | None,
        known: Reason | None,
    ) -> None:
        ops = (*left, *right)
        reason = self.reasons.no_backward() if part == "backward" else None
        reason = reason or self.reasons.table(left, right) or self.reasons.of_choice(ops[0])
        if reason is None and pair is not None:
            both = pair.left.op, pair.right.op
            around = (*both[0].operands, *both[1].operands)
            reason = self._reason_of.get(pair.left) or self.causes.followed(*both)
            reason = reason or self.causes.among(v for op in ops for v in op.operands)
            reason = reason or self.causes.among(around) or self.causes.among_uses(around)
        reason = reason or known or self.reasons.rule(left, right)
        about = pair.left.op if pair is not None else ops[0]
        self._add(kind_of(left, right), part, left, right, reason, about)
        if reason is not None:
            self.causes.blame((out for op in ops for out in op.outs), reason)

    def _outside(self) -> None:
        """Compare the ops that are not in the trees: assertions, copies for the backward."""
        left, right = self.marked[0].outside, self.marked[1].outside
        for part in ("forward", "backward"):
            late = part == "backward"
            mine = [op for op in left if op.late == late]
            theirs = [op for op in right if op.late == late]
            self._sequence(mine, theirs, part, None)

    def name_of(self, found: Found) -> str:
        """The op of a difference: as written, and its part of that."""
        op = found.about
        node = self.marked[0].node_of(op) or self.marked[1].node_of(op)
        name = op_name(op)
        return (
            name if node is None or node.written is node else f"{op_name(node.written.op)} > {name}"
        )

    # ---- reasons that are known at the end ------------------------------------------------------

    def _settle(self) -> None:
        """Set missing reasons: that of an op's user, else a policy, else the settings."""
        used = Users(with_subgraph_ops([*self.left.graph.ops, *self.right.graph.ops]), self.found)
        waiting = [each for each in self.found if each.reason is None]
        for each in reversed(waiting):
            each.reason = used.reason(each)
        for each in waiting:
            if each.reason is None:
                ops = (*each.left, *each.right)
                each.reason = self.reasons.policy(ops[0]) or self.reasons.unused(
                    on_left=bool(each.left)
                )
                each.reason = each.reason or self.reasons.fallback(ops)


def _choices(above: Pair) -> tuple[str, ...]:
    """The notes of the choices behind two bodies of one op."""
    sides = (("left", above.left.op), ("right", above.right.op))
    return tuple(f"{name}: {note}" for name, op in sides for note in choice_notes(op.choice))
