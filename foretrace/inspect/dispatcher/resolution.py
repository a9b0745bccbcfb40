"""The result of `dispatch`: how a key set resolves, and its printed form."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from foretrace.errors import Printed
from foretrace.inspect.dispatcher.calls import Key
from foretrace.inspect.dispatcher.table import Answer, Served

LABEL: Final = 9


@dataclass(frozen=True, slots=True)
class Step:
    """One key of the set, and its kernel."""

    key: str
    served: Served
    reached: bool
    """whether the kernels above redispatch the call to it"""
    does: str
    table: Served
    """the kernel that C++ takes"""
    python: Answer
    """the kernel that torch's Python resolver takes, where the PythonDispatcher is on"""

    @property
    def agrees(self) -> bool:
        """Whether C++ and Python take the same kernel."""
        same = (self.python.rule, self.python.source) == (self.table.rule, self.table.source)
        return same and self.python.function is None

    @property
    def differs(self) -> str:
        """The difference between C++ and Python, in words."""
        if self.python.function is not None:
            return f"a kernel of Python: {self.python.function}"
        return f"{self.python.rule}, not {self.table.rule}: Python knows of more kernels"

    @property
    def place(self) -> str | None:
        """The place where the kernel is registered."""
        return None if self.served.kernel is None else self.served.kernel.place

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON."""
        return {
            "key": self.key,
            "rule": self.served.rule,
            "kernel": self.served.source,
            "registered": self.place,
            "fallthrough": self.served.falls,
            "reached": self.reached,
            "does": self.does,
            "python": {
                "agrees": self.agrees,
                "rule": self.python.rule,
                "kernel": self.python.source,
                "function": self.python.function,
            },
        }


@dataclass(frozen=True, slots=True, repr=False)
class Dispatch(Printed):
    """How the dispatcher resolves one call of an operator.

    `keys`: the key set. `steps`: the keys by priority, each with its kernel and whether the call
    reaches it.
    """

    op: str
    device: str
    requires_grad: bool
    modes: tuple[str, ...]
    keys: tuple[Key, ...]
    steps: tuple[Step, ...]
    note: str = ""

    @property
    def path(self) -> tuple[Step, ...]:
        """The steps that a call takes."""
        return tuple(step for step in self.steps if step.reached and not step.served.falls)

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON."""
        return {
            "op": self.op,
            "device": self.device,
            "requires_grad": self.requires_grad,
            "modes": list(self.modes),
            "keys": [key.to_dict() for key in self.keys],
            "steps": [step.to_dict() for step in self.steps],
            "note": self.note,
        }

    @property
    def head(self) -> str:
        """The call in words."""
        grad = "an operand requires grad" if self.requires_grad else "nothing requires grad"
        around = "".join(f", in {mode}" for mode in self.modes)
        return f"{self.op} on {self.device}, {grad}{around}"

    def rows(self) -> Iterator[tuple[str, str]]:
        """A label and a text for each line below the head."""
        wide = max((len(each) for each in self._names()), default=0)
        for label, excluded in (("keys", False), ("excluded", True)):
            for key in self.keys:
                if key.excluded == excluded:
                    yield label, f"{key.name:<{wide}}  from {', '.join(key.sources)}"
        for number, step in enumerate((each for each in self.steps if each.reached), 1):
            yield "asked", f"{number} {step.key:<{wide}}  {step.served.rule}: {step.does}"
            if step.place is not None and not step.served.falls:
                yield "", f"  {'':<{wide}}  {step.place}"
        for step in self.steps:
            if not step.reached:
                yield "not asked", f"  {step.key:<{wide}}  {step.served.rule}"
        for step in self.steps:
            if not step.agrees:
                yield "python", f"  {step.key:<{wide}}  {step.differs}"
        if self.note:
            yield "note", self.note

    def _names(self) -> Iterator[str]:
        yield from (key.name for key in self.keys)
        yield from (step.key for step in self.steps)

    def __str__(self) -> str:
        return "\n".join([self.head, *lines(self.rows())])


def lines(rows: Iterator[tuple[str, str]]) -> Iterator[str]:
    """Rows as text; a label is printed once."""
    before = None
    for label, text in rows:
        shown = "" if label == before else label
        before = label or before
        yield f"  {shown:<{LABEL}}  {text}".rstrip()
