"""What a comparison of two cuts comes to."""

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from foretrace.alignment.difference import Difference, Fold, Group, Reason
from foretrace.alignment.measured import Measured
from foretrace.alignment.printed import FOLDS, Row, group_rows, many
from foretrace.errors import Refusal

NEAR = 5


@dataclass(frozen=True)
class Diff:
    """What two cuts have in common, and where they differ; true where they do.

    Args:
        left: what the left cut is: "joint@cpu".
        right: likewise.
        differences: each place, in the order of the program, the forward first.
        same: how many nodes are the same on both sides.
        nodes: how many each side has.
        names: the nodes' names on each side.
    """

    left: str
    right: str
    differences: tuple[Difference, ...]
    same: int
    nodes: tuple[int, int]
    names: tuple[tuple[str, ...], tuple[str, ...]] = field(default=((), ()), repr=False)
    measured: Measured | None = None
    """what a run of both found, if one was asked for"""

    def __bool__(self) -> bool:
        return bool(self.differences)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """By reason, in the order in which reasons first appear; what repeats is folded."""
        by_reason: dict[Reason, dict[tuple[Any, ...], list[Difference]]] = {}
        for each in self.differences:
            by_reason.setdefault(each.reason, {}).setdefault(each.form, []).append(each)
        return tuple(
            Group(reason, tuple(Fold(tuple(each)) for each in forms.values()))
            for reason, forms in by_reason.items()
        )

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Each reason once."""
        return tuple(group.reason for group in self.groups)

    @property
    def missing(self) -> tuple[Difference, ...]:
        """Those without a reason, each a defect of foretrace."""
        return tuple(each for each in self.differences if each.reason.missing)

    def of(self, node: str) -> "Diff":
        """The differences that a node of either cut is in.

        Raises:
            Refusal: neither cut has a node of that name.
        """
        known = list(dict.fromkeys([*self.names[0], *self.names[1]]))
        if node not in known:
            near = difflib.get_close_matches(node, known, NEAR) or known[:NEAR]
            raise Refusal(
                f"neither cut has a node {node!r}", kind="unknown node",
                do=(f"near it are {', '.join(near)}", "foretrace show has the names of all"),
            )  # fmt: skip
        found = tuple(
            each for each in self.differences
            if any(seen.name == node for seen in (*each.left, *each.right))
        )  # fmt: skip
        return replace(self, differences=found, measured=None)

    def rows(self, folds: int = FOLDS) -> Iterator[Row]:
        """The lines to print; of each reason at most so many kinds of differences."""
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
        same = f"{many(self.same, 'op')} {'is' if self.same == 1 else 'are'} the same"
        both = zip((self.left, self.right), self.nodes, strict=True)
        ends = " and ".join(f"{name} ({many(count, 'op')})" for name, count in both)
        if not found:
            return f"{ends}: no difference; {same}"
        why = f", for {many(len(self.reasons), 'reason')}"
        return f"{ends}: {many(found, 'difference')}{why}; {same}"

    def __str__(self) -> str:
        return "\n".join(map(str, self.rows()))

    def to_dict(self) -> dict[str, Any]:
        """The same, for programs."""
        return {
            "left": {"cut": self.left, "nodes": self.nodes[0]},
            "right": {"cut": self.right, "nodes": self.nodes[1]},
            "same": self.same,
            "groups": [
                {
                    "reason": group.reason.to_dict(),
                    "count": group.count,
                    "folds": [[each.to_dict() for each in fold.differences] for fold in group.folds],
                }
                for group in self.groups
            ],
            "measured": self.measured and self.measured.to_dict(),
        }
