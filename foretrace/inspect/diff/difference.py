"""The data of a comparison: differences, each with one reason, and groups of them."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from foretrace.errors import PACKAGE_DIR, Frame, Printed
from foretrace.inspect.explain.explanation import shown_path
from foretrace.ir.program.op import Op, target_name
from foretrace.ir.program.origin import ModuleCall

Kind: TypeAlias = Literal[
    "kept", "opened", "replaced", "only left", "only right", "type", "arguments"
]
Part: TypeAlias = Literal["forward", "backward", "input", "output"]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why two cuts differ somewhere.

    Args:
        kind: "cut", "level", "keep", "table", "policy", "choice", "target", "mode", "input",
            "given", "held", "argument", "rule", "history", "loss", "unused", "program", "kernel",
            "several" (one of them), "fallback" (nothing nearer is known), or "unknown".
        text: the reason, one line.
        place: where it was decided: in foretrace, in torch, or the user's line.
        root: the reason of this reason, if it is known.
    """

    kind: str
    text: str
    place: str = ""
    root: "Reason | None" = None

    @property
    def missing(self) -> bool:
        """Whether no reason is known; a defect of foretrace."""
        return self.kind == "unknown"

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON."""
        return asdict(self)


def place_of(fn: Callable[..., Any]) -> str:
    """The place of a function: `foretrace/lowering/cuts/cut.py:49 Level.whole`."""
    code = inspect.unwrap(fn).__code__
    file = code.co_filename.removeprefix(PACKAGE_DIR)
    return f"foretrace/{file}:{code.co_firstlineno} {code.co_qualname}"


def line_of(frame: Frame) -> str:
    """`examples/attention.py:27 in Attention.forward`."""
    _, installed, inside = frame.file.rpartition("/site-packages/")
    if installed:
        return f"{inside}:{frame.line} in {frame.function}"
    return f"{shown_path(frame.file)}:{frame.line} in {frame.function}"


def lines_of(ops: Iterable[Op]) -> str:
    """The first two of the user's lines of ops."""
    frames = dict.fromkeys(op.origin.frame for op in ops if op.origin.frame is not None)
    return " | ".join([line_of(frame) for frame in frames][:2])


def op_name(op: Op) -> str:
    """`mm`; the class of a module call."""
    return op.target.class_name if isinstance(op.target, ModuleCall) else target_name(op.target)


@dataclass(frozen=True, slots=True)
class Seen:
    """A node of one of the cuts: its name, its target, the types of its results."""

    name: str
    target: str
    types: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON."""
        return {"name": self.name, "target": self.target, "types": list(self.types)}


@dataclass(frozen=True, slots=True, repr=False)
class Difference(Printed):
    """One place at which two cuts differ.

    Args:
        kind: "kept" (whole in the right cut), "opened" (whole in the left cut), "replaced",
            "only left", "only right", "type" (of results), "arguments".
        part: "forward", "backward", "input" or "output".
        what: the op of the tree, the input or the output that differs.
        left: the nodes of the left cut.
        right: the nodes of the right cut.
        reason: the reason.
        frame: the user's line.
        module: the path of module calls around it, outermost first.
        notes: details, or the choice behind it.
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
    def at_once(self) -> bool:
        """Whether it is folded with all of its reason, whatever the op."""
        whole = self.reason.kind == "cut" and self.part == "backward"
        return self.kind == "type" or self.part in ("input", "output") or whole

    @property
    def form(self) -> tuple[Any, ...]:
        """The key of equal differences at other places."""
        ends = tuple(tuple(seen.target for seen in side) for side in (self.left, self.right))
        if self.at_once:
            return (self.reason, self.kind, self.part, self.notes)
        return (self.reason, self.kind, self.part, self.what, ends, self.notes)

    def __str__(self) -> str:
        sides = {"left": self.left, "right": self.right}
        rows = [f"{self.kind}: {self.what}, {self.part}", f"  reason  {self.reason.text}"]
        for side, nodes in sides.items():
            rows.append(f"  {side:<6}  {', '.join(node.name for node in nodes) or 'nothing'}")
        if self.frame is not None:
            rows.append(f"  at      {line_of(self.frame)}")
        return "\n".join([*rows, *(f"  note    {note}" for note in self.notes)])

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON."""
        return {
            "kind": self.kind,
            "part": self.part,
            "what": self.what,
            "left": [seen.to_dict() for seen in self.left],
            "right": [seen.to_dict() for seen in self.right],
            "reason": self.reason.to_dict(),
            "at": self.frame and self.frame.to_dict(),
            "module": list(self.module),
            "notes": list(self.notes),
        }


def kind_of(left: Sequence[Op], right: Sequence[Op]) -> Kind:
    """The kind of a difference between these ops."""
    if left and right:
        return "replaced"
    return "only left" if left else "only right"


@dataclass(slots=True, eq=False)
class Found:
    """A difference during the comparison; some reasons are known only at its end."""

    kind: Kind
    part: Part
    left: tuple[Op, ...]
    right: tuple[Op, ...]
    reason: Reason | None
    about: Op
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Fold:
    """Differences that are equal but for their places."""

    differences: tuple[Difference, ...]

    @property
    def first(self) -> Difference:
        """The one that is printed."""
        return self.differences[0]


@dataclass(frozen=True, slots=True)
class Group:
    """The differences of one reason."""

    reason: Reason
    folds: tuple[Fold, ...]

    @property
    def count(self) -> int:
        """The number of differences."""
        return sum(len(fold.differences) for fold in self.folds)
