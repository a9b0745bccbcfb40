"""Where an op comes from: line, module call, checkpoint; the choice and the rule behind it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from foretrace.errors import Frame
from foretrace.ir.values.value import Value


@dataclass(slots=True, eq=False)  # not frozen: a capture makes hundreds
class ModuleCall:
    """One call of an nn.Module; `path` is "" for the program's own module."""

    path: str
    class_name: str
    qualified_class: str
    outer: "ModuleCall | None" = None
    training: bool | None = None
    """the module's mode when it was called; None where a front end does not say"""

    def stack(self) -> tuple["ModuleCall", ...]:
        """The calls from the outermost to this one."""
        return (*(self.outer.stack() if self.outer else ()), self)

    def __str__(self) -> str:
        return self.path or self.class_name


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """A decision about one op: what was taken, why, and what was not and why not."""

    what: str
    value: str
    reason: str
    rejected: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """One call of `torch.utils.checkpoint`: what is computed inside is recomputed in the backward.

    `saves` is the policy of a selective one: torch's own function of a context, an operator and
    its arguments, which names those that are saved all the same. `inputs` are the tensors among the
    arguments: autograd saves them, and finds whether they were written to.
    """

    saves: Callable[..., Any] | None = None
    inputs: tuple["Value", ...] = ()


@dataclass(slots=True, eq=False)  # not frozen: a capture makes hundreds
class Origin:
    """Where an op comes from: the user's line, the module call, the grad mode it ran under."""

    frame: Frame | None
    module: ModuleCall | None
    grad_mode: bool = True
    checkpoint: Checkpoint | None = None
    """the outermost one that was running"""
    inference: bool = False
    """whether it was in torch.inference_mode()"""
    recast: tuple[str, ...] = ()
    """the types of devices for which the program itself says whether autocast is on"""


@dataclass(frozen=True, slots=True, eq=False)
class RuleName:
    """The derivative that a backward op is of: the autograd node's name, or our rule's place."""

    name: str
    kind: str
    """"derived" (asked of torch), "registered" (ours or the user's), "engine", "hook"."""
