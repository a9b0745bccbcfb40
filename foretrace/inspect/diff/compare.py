"""Walk two aligned trees and name every difference: the forward in order, then the backward."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

from foretrace.inspect.diff.capture_settings import Settings
from foretrace.inspect.diff.cut_coverage import Marked, Node, with_held
from foretrace.inspect.diff.difference import Found, Kind, Part, Reason, kind_of, op_name
from foretrace.inspect.diff.reasons import Reasons
from foretrace.inspect.diff.sequence_alignment import by_rules, running_order
from foretrace.inspect.diff.sides import Side, aspect_text, aspects
from foretrace.inspect.diff.tree_alignment import (
    Gap,
    Pair,
    argument_text,
    arguments_that_differ,
    constants,
    fit,
    follows_types,
    key_of,
    paired,
)
from foretrace.inspect.diff.value_causes import Causes, Users, Uses
from foretrace.inspect.explain.tree_path import choice_notes
from foretrace.ir.program.op import Op, Value


class Comparison:
    """One comparison of two cuts: what is found, and which nodes are the same op."""

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
        self.uses = Uses(left.graph), Uses(right.graph)
        self.found: list[Found] = []
        self.matched: list[tuple[Op, Op]] = []
        self._late: list[tuple[Sequence[Op], Callable[[], object]]] = []
        """what is compared of the backward, and when it ran: causes go from first to last"""
        self._reason_of: dict[Node, Reason] = {}
        """by nodes of the tree, why the forward differs there"""

    def run(self) -> None:
        """Find all that differs in the ops."""
        events = list(paired(*self.marked))
        for event in events:
            if isinstance(event, Gap):
                self._gap(event)
            else:
                self._pair(event)
        for event in reversed(events):
            self._backward(event)
        self._apart()
        left, right = ([*with_held(side.graph.ops)] for side in (self.left, self.right))
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
            self.causes.match_held(a.op, b.op)
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
            self._other_types(a.op, b.op, pair)  # before what it is made of, which gives the same
        if a.history or b.history:
            self._sequence(a.history, b.history, "forward", pair)

    def _other_types(self, a: Op, b: Op, above: Pair | None) -> None:
        """An op that not both cuts have whole: what is made of it may differ for its reason."""
        for mine, theirs in zip(a.outs, b.outs, strict=False):
            if differ := aspects(mine.type, theirs.type, moved=self.settings.moved):
                self.causes.blame((mine, theirs), self.reasons.type(a, b, above, differ[0][0]))

    def _mixed(self, pair: Pair) -> None:
        """Whole on one side; on the other it is taken apart, or not there."""
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
        """What a decomposition table has opened, on one side or on both."""
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
        """What is inside, and types that are others, are so for this reason."""
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
        """What differs between two calls of one operator; the reason, if something does.

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
        self, kind: Kind, reason: Reason, nodes: tuple[Op, Op], about: Op, told: tuple[str, ...]
    ) -> None:
        """One op that both have."""
        part: Part = "forward" if not nodes[0].late else "backward"
        self._add(kind, part, nodes[:1], nodes[1:], reason, about, told)

    def _moved(self, left: object, right: object) -> bool:
        """Whether both are devices, and each that of its target."""
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
        """The backward of what differs in the forward."""
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
        """Ops that serve one op, on both sides in order; `reason`: why the forward differs."""
        gap: tuple[list[Op], list[Op]] = ([], [])
        for a, b in [*self._by_operands(left, right), (None, None)]:
            if (a is None) != (b is None):
                gap[a is None].append(a or b)  # type: ignore[arg-type]
                continue
            if gap[0] or gap[1]:
                compare = partial(self._sequence_gap, *gap, part, pair, reason)
                self._later(part, [*gap[0], *gap[1]], compare)
            gap = ([], [])
            if a is not None and b is not None:
                self._matched(a, b, pair)

    def _by_operands(
        self, left: Sequence[Op], right: Sequence[Op]
    ) -> Iterator[tuple[Op | None, Op | None]]:
        """The same ops on the same values, in whatever order; what is left over comes last."""
        made = [{out for op in ops for out in op.outs} for ops in (left, right)]

        def within(rule: Callable[[Op, Op], bool]) -> Callable[[Op, Op], bool]:
            return lambda a, b: rule(a, b) and _made_alike(a, b, *made)

        rules = (self._on_the_same, self._same_call, self._on_what_may_be_the_same)
        over, waiting = dict.fromkeys(left), dict.fromkeys(right)
        for a, b in by_rules(left, right, list(map(within, rules)), self._score):
            del over[a], waiting[b]
            self.causes.match(a.outs, b.outs)
            yield a, b
        yield from ((a, None) for a in over)
        yield from ((None, b) for b in waiting)

    def _score(self, a: Op, b: Op) -> tuple[int, int]:
        """How well two ops fit, and then how well the ops that use what they make."""
        return fit(a, b), -self.uses[0].unlike(a.outs, self.uses[1], b.outs)

    def _on_the_same(self, a: Op, b: Op) -> bool:
        """Whether two ops get the same values, of which one at least is known to be."""
        known = not a.operands or any(map(self.causes.knows, a.operands))
        return known and self._on_what_may_be_the_same(a, b)

    def _on_what_may_be_the_same(self, a: Op, b: Op) -> bool:
        tree = self.marked[0].values if self.causes.one_record else ()
        return not self.causes.apart(a, b, tree)

    def _same_call(self, a: Op, b: Op) -> bool:
        """Whether it is the same call of another tensor, which differs for a reason of its own."""
        same = key_of(a) == key_of(b) and constants(a) == constants(b)
        return same and not any(self.causes.rewired(a, b))

    def _matched(self, a: Op, b: Op, pair: Pair | None) -> None:
        self.matched.append((a, b))
        if a is not b:
            self.causes.match(a.outs, b.outs)
            self.causes.match_held(a, b)
            part: Part = "forward" if not a.late else "backward"
            self._later(part, [a], partial(self._same_op, a, b, pair, (a, b)))

    def _later(self, part: Part, ops: Sequence[Op], compare: Callable[[], object]) -> None:
        """Compare what is of the backward when all values are matched, in the backward's order."""
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

    def _apart(self) -> None:
        """What the cuts have that is in no tree: assertions, copies for the backward."""
        left, right = self.marked[0].apart, self.marked[1].apart
        for part in ("forward", "backward"):
            late = part == "backward"
            mine = [op for op in left if op.late == late]
            theirs = [op for op in right if op.late == late]
            self._sequence(mine, theirs, part, None)

    def name_of(self, found: Found) -> str:
        """The op that a difference is about: as written, and which part of that it is."""
        op = found.about
        node = self.marked[0].node_of(op) or self.marked[1].node_of(op)
        name = op_name(op)
        return (
            name if node is None or node.written is node else f"{op_name(node.written.op)} > {name}"
        )

    # ---- reasons that are known at last ---------------------------------------------------------

    def _settle(self) -> None:
        """What is there for others' sake is there for their reason; else what went in differs."""
        used = Users(with_held([*self.left.graph.ops, *self.right.graph.ops]), self.found)
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


def _made_alike(a: Op, b: Op, left: Collection[Value], right: Collection[Value]) -> bool:
    """Whether what two ops of two sequences get is made in these, or in neither."""
    both = zip(a.operands, b.operands, strict=False)
    return all((mine in left) == (theirs in right) for mine, theirs in both)


def _choices(above: Pair) -> tuple[str, ...]:
    """The choices behind two bodies of one op."""
    sides = (("left", above.left.op), ("right", above.right.op))
    return tuple(f"{name}: {note}" for name, op in sides for note in choice_notes(op.choice))
