"""`foretrace.diff`: compares two cuts."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from foretrace.errors import Printed, Refusal, counted, near_it
from foretrace.forks import cached_property
from foretrace.inspect.diff.compare import Comparison
from foretrace.inspect.diff.difference import Difference, Fold, Group, Reason
from foretrace.inspect.diff.inputs_outputs import end_differences, input_differences
from foretrace.inspect.diff.numeric import Call, Measured, measure
from foretrace.inspect.diff.render import FOLDS, Row, group_rows
from foretrace.inspect.diff.sides import CutLike, Side
from foretrace.ir.source.short_tracebacks import Hiding

NEAR = 5
COMMON = 20
"""Two programs are related if one node in so many of the smaller cut is in both."""


@dataclass(frozen=True, repr=False)
class Diff(Printed):
    """The differences between two cuts; true if there are any.

    Args:
        left: the label of the left cut: "joint@cpu".
        right: likewise.
        differences: in the order of the program, the forward first.
        same: the number of nodes that are equal on both sides.
        nodes: the number of nodes of each side.
        names: the nodes' names on each side.
    """

    left: str
    right: str
    differences: tuple[Difference, ...]
    same: int
    nodes: tuple[int, int]
    names: tuple[tuple[str, ...], tuple[str, ...]] = field(default=((), ()), repr=False)
    measured: Measured | None = None
    """the result of a run of both, if one was requested"""

    def __bool__(self) -> bool:
        return bool(self.differences)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The differences by reason, in the order of first appearance; equal ones are folded."""
        by_reason: dict[Reason, dict[tuple[Any, ...], list[Difference]]] = {}
        for each in self.differences:
            by_reason.setdefault(each.reason, {}).setdefault(each.form, []).append(each)
        return tuple(
            Group(reason, tuple(Fold(tuple(each)) for each in forms.values()))
            for reason, forms in by_reason.items()
        )

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """The reasons, without duplicates."""
        return tuple(group.reason for group in self.groups)

    @property
    def missing(self) -> tuple[Difference, ...]:
        """The differences without a reason, each a defect of foretrace."""
        return tuple(each for each in self.differences if each.reason.missing)

    def of(self, node: str) -> "Diff":
        """The differences that a node of either cut is in.

        Raises:
            Refusal: neither cut has a node of that name.
        """
        known = list(dict.fromkeys([*self.names[0], *self.names[1]]))
        if node not in known:
            near = near_it(difflib.get_close_matches(node, known, NEAR), known[:NEAR])
            raise Refusal(
                f"neither cut has a node {node!r}",
                kind="unknown node",
                do=(*near, "foretrace show has the names of all"),
            )
        found = tuple(
            each
            for each in self.differences
            if any(seen.name == node for seen in (*each.left, *each.right))
        )
        return replace(self, differences=found, measured=None)

    def rows(self, folds: int = FOLDS) -> Iterator[Row]:
        """The lines to print, with at most `folds` kinds of differences for each reason."""
        for group in self.groups:
            yield from group_rows(group, folds)
            yield Row("plain")
        if self.measured is not None:
            yield from self.measured.rows()
            yield Row("plain")
        yield Row("sum", text=self.summary)

    @property
    def summary(self) -> str:
        """`joint@cpu (25 ops) and joint@cuda:sm90 (5 ops): 2 differences, for 1 reason; ...`."""
        found = len(self.differences)
        same = f"{counted(self.same, 'op')} {'is' if self.same == 1 else 'are'} the same"
        both = zip((self.left, self.right), self.nodes, strict=True)
        ends = " and ".join(f"{name} ({counted(count, 'op')})" for name, count in both)
        if not found:
            return f"{ends}: no difference; {same}"
        why = f", for {counted(len(self.reasons), 'reason')}"
        return f"{ends}: {counted(found, 'difference')}{why}; {same}"

    def __str__(self) -> str:
        return "\n".join(map(str, self.rows()))

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON."""
        return {
            "left": {"cut": self.left, "nodes": self.nodes[0]},
            "right": {"cut": self.right, "nodes": self.nodes[1]},
            "same": self.same,
            "groups": [
                {
                    "reason": group.reason.to_dict(),
                    "count": group.count,
                    "folds": [
                        [each.to_dict() for each in fold.differences] for fold in group.folds
                    ],
                }
                for group in self.groups
            ],
            "measured": self.measured and self.measured.to_dict(),
        }


@Hiding()
def diff(a: CutLike, b: CutLike, *, run: Call | None = None) -> Diff:
    """Compare two cuts, and name the reason of each difference.

    They may be two cuts of one program, cuts of two captures with different targets, inputs, modes
    or dtypes, or cuts of two programs. They are aligned on their trees, from the root down.

    Args:
        a: the left one.
        b: the right one.
        run: arguments and keyword arguments of a call. Both cuts run on it, op by op, and the
            result's `measured` has the first difference in value, and its size.

    Raises:
        Refusal: their programs have nothing in common, or a cut cannot run here.
    """
    left, right = Side(a), Side(b)
    comparison = Comparison(left, right)
    ends = list(input_differences(comparison))
    comparison.run()
    _check_related(comparison)
    ends += end_differences(comparison)
    order = {"input": 0, "forward": 1, "backward": 2, "output": 3}
    found = [*ends, *_differences(comparison)]
    found.sort(key=lambda each: order[each.part])
    different = {op for each in comparison.found for op in (*each.left, *each.right)}
    same = sum(mine not in different for mine, _ in comparison.matched)
    nodes = (len(left.graph.ops), len(right.graph.ops))
    measured = None if run is None else measure(comparison, run)
    names = (left.all_names, right.all_names)
    return Diff(left.label, right.label, tuple(found), same, nodes, names, measured)


def _differences(comparison: Comparison) -> Iterator[Difference]:
    for each in comparison.found:
        frame, call = each.about.origin.frame, each.about.origin.module
        module = tuple(map(str, call.stack())) if call is not None else ()
        what = comparison.name_of(each)
        yield Difference(
            each.kind, each.part, what, comparison.left.seen(each.left),
            comparison.right.seen(each.right), each.reason or comparison.reasons.unknown(what),
            frame, module, each.notes,
        )  # fmt: skip


def _check_related(comparison: Comparison) -> None:
    """Refuse two cuts that have nothing in common.

    Raises:
        Refusal: too few nodes of one are in the other.
    """
    left, right = comparison.left, comparison.right
    smaller = min(len(left.graph.ops), len(right.graph.ops))
    if not comparison.settings.other_program or not smaller:
        return
    if len(comparison.matched) * COMMON < smaller or not comparison.matched:
        raise Refusal(
            f"the two cuts have nothing in common: {len(comparison.matched)} of the"
            f" {len(left.graph.ops)} ops of {left.program_text} and the {len(right.graph.ops)} of"
            f" {right.program_text} are the same",
            kind="nothing in common",
            do="compare two cuts of one program, or of two forms of it",
        )
