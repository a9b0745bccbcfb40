"""The result of `dispatch_trace`: the kernels that a program ran, and their printed form."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from foretrace.errors import Frame, Printed, Refusal
from foretrace.inspect.dispatcher.table import Served

NEAR: Final = 6
UNSEEN: Final = "   (not asked)"
"""The mark of a backend that BackendSelect chose itself"""


@dataclass(slots=True, eq=False, repr=False)
class Ran(Printed):
    """One kernel that ran, for a call of an operator or a redispatch."""

    op: str
    key: str
    how: Literal["call", "redispatch"]
    depth: int
    served: Served
    frame: Frame | None
    """the user's line"""
    node: str | None
    """the autograd node that was running, in a backward"""
    seen: bool = True
    """False: BackendSelect chose the backend itself"""
    raised: bool = False
    inside: list["Ran"] = field(default_factory=list)
    """what ran inside, in order"""

    def __str__(self) -> str:
        """The line of torch's own debug trace (TORCH_SHOW_DISPATCH_TRACE)."""
        what = f"[{self.how}] op=[{self.op}], key=[{self.key}]"
        raised = "   raised" if self.raised else ""
        return f"{' ' * (self.depth + 1)}{what}{'' if self.seen else UNSEEN}{raised}"

    def every(self) -> Iterator["Ran"]:
        """This kernel and those inside it, in order."""
        yield self
        for each in self.inside:
            yield from each.every()

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON."""
        at = self.frame
        return {
            "op": self.op,
            "key": self.key,
            "how": self.how,
            "depth": self.depth,
            "rule": self.served.rule,
            "kernel": self.served.source,
            "registered": None if self.served.kernel is None else self.served.kernel.place,
            "at": at and {"file": at.file, "line": at.line, "function": at.function},
            "node": self.node,
            "seen": self.seen,
            "raised": self.raised,
        }


@dataclass(frozen=True, slots=True, repr=False)
class DispatchTrace(Printed):
    """The calls of a program in the order in which they began, nested as they ran.

    `result` is the program's result; `str()` is torch's debug trace, with the user's line above its
    calls.
    """

    calls: tuple[Ran, ...]
    result: Any = None

    @property
    def rows(self) -> tuple[Ran, ...]:
        """Every kernel, in the order in which they began."""
        return tuple(row for call in self.calls for row in call.every())

    def lines(self) -> Iterator[str]:
        """The lines to print."""
        before: tuple[Frame | None, str | None] = (None, None)
        for row in self.rows:
            where = (row.frame, row.node)
            if row.depth == 0 and where != before:
                before = where
                yield f"# {_where(row)}"
            yield str(row)

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON."""
        return {"rows": [row.to_dict() for row in self.rows]}


class ProgramRaised(Refusal):
    """The program raised while it was traced; `trace` has the kernels before that."""

    def __init__(self, error: BaseException, at: Frame | None, trace: DispatchTrace) -> None:
        said = str(error).partition("\n")[0]
        last = [str(row) for row in trace.rows[-NEAR:]]
        super().__init__(
            f"the program raised {type(error).__name__}: {said}",
            at=at,
            near=last,
            kind="program raised",
            do="mend it: it has to run by itself; the trace so far is in `.trace`",
        )
        self.trace = trace

    def to_dict(self) -> dict[str, object]:
        """A dict for JSON, with the trace."""
        return {**super().to_dict(), "trace": self.trace.to_dict()}


def _where(row: Ran) -> str:
    here = f"{Path.cwd()}/"
    line = "no line of yours" if row.frame is None else str(row.frame).removeprefix(here)
    if row.node is None:
        return line
    return f"{row.node}, in a backward" + (f" that is asked for at {line}" if row.frame else "")
