"""What a comparison of two cuts is made of: differences, each with its one reason, and folds."""

import difflib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias

from foretrace.errors import PACKAGE_DIR, Frame, Refusal

Kind: TypeAlias = Literal[
    "kept", "opened", "replaced", "only left", "only right", "type", "arguments"
]  # fmt: skip
Part: TypeAlias = Literal["forward", "backward", "input", "output"]
NEAR = 5


@dataclass(frozen=True, slots=True)
class Reason:
    """Why two cuts differ somewhere.

    Args:
        kind: "cut", "level", "keep", "table", "policy", "choice", "target", "mode", "input",
            "argument", "rule", "history", "loss", "unused", "program", "several", or "unknown".
        text: the reason, one line.
        place: where it was decided: of our code, of torch's, or the user's line.
    """

    kind: str
    text: str
    place: str = ""

    @property
    def missing(self) -> bool:
        """Whether no reason is known; a defect of foretrace."""
        return self.kind == "unknown"

    def to_dict(self) -> dict[str, str]:
        """The same, for programs."""
        return {"kind": self.kind, "text": self.text, "place": self.place}


def place_of(fn: Callable[..., Any]) -> str:
    """Where a function of ours stands: `foretrace/passes/cut.py:49 Level.whole`."""
    code = inspect.unwrap(fn).__code__
    file = code.co_filename.removeprefix(PACKAGE_DIR)
    return f"foretrace/{file}:{code.co_firstlineno} {code.co_qualname}"


@dataclass(frozen=True, slots=True)
class Seen:
    """A node of one of the cuts: its name, what it calls, the types of what it gives."""

    name: str
    target: str
    types: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The same, for programs."""
        return {"name": self.name, "target": self.target, "types": list(self.types)}


@dataclass(frozen=True, slots=True)
class Difference:
    """One place at which two cuts differ.

    Args:
        kind: "kept" (the right one has it whole), "opened" (the left one has), "replaced",
            "only left", "only right", "type" (what it gives), "arguments" (what it gets).
        part: "forward", "backward", "input" or "output".
        what: the op of the tree that the difference is about, or the input or output.
        left: the nodes of the left cut that it is about.
        right: those of the right cut.
        reason: why.
        frame: the user's line.
        module: the path of module calls around it, outermost first.
        notes: what differs in detail, or the choice behind it.
    """

    kind: Kind
    part: Part
    what: str
    left: tuple[Seen, ...]
    right: tuple[Seen, ...]
    reason: Reason
    frame: Frame | None = None
    module: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def form(self) -> tuple[Any, ...]:
        """What equal differences at other places have in common."""
        ends = tuple(tuple(seen.target for seen in side) for side in (self.left, self.right))
        if self.kind == "type":  # what gets another type because of one input is told once
            ends, what = ((), ()), ""
        else:
            what = self.what
        if self.reason.kind == "cut" and self.part == "backward":
            ends, what = ((), ()), ""
        return (self.reason, self.kind, self.part, what, ends, self.notes)

    def to_dict(self) -> dict[str, Any]:
        """The same, for programs."""
        at = self.frame and {
            "file": self.frame.file, "line": self.frame.line, "function": self.frame.function,
            "code": self.frame.text,
        }  # fmt: skip
        return {
            "kind": self.kind, "part": self.part, "what": self.what,
            "left": [seen.to_dict() for seen in self.left],
            "right": [seen.to_dict() for seen in self.right],
            "reason": self.reason.to_dict(), "at": at, "module": list(self.module),
            "notes": list(self.notes),
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fold:
    """Equal differences, which differ in their places alone."""

    differences: tuple[Difference, ...]

    @property
    def first(self) -> Difference:
        """The one that stands for all."""
        return self.differences[0]


@dataclass(frozen=True, slots=True)
class Group:
    """All that one reason explains."""

    reason: Reason
    folds: tuple[Fold, ...]

    @property
    def count(self) -> int:
        """How many differences."""
        return sum(len(fold.differences) for fold in self.folds)


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
    measured: Any = None
    """what `run=True` found: a Measured"""

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
        return Diff(self.left, self.right, found, self.same, self.nodes, self.names)

    def rows(self) -> Iterator[Any]:
        """The lines to print: see `foretrace.alignment.printed`."""
        return iter(self._printed())

    def _printed(self) -> Sequence[Any]:
        return ()

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
