"""A captured program as a callable: for calls that the capture holds for, and no others."""

from typing import Any

from foretrace.guards.calls import CallGuards
from foretrace.runtime.compiled import Captured
from foretrace.targets.semantics import TargetSemantics


class OneProgram:
    """In the place of a capture: gives the program that there is, or refuses the call."""

    def __init__(self, guards: CallGuards, semantics: TargetSemantics) -> None:
        self.guards, self.semantics = guards, semantics

    def __call__(
        self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], again: bool
    ) -> Captured:
        """The program.

        Raises:
            Refusal: the call breaks a guard.
        """
        self.guards.inputs(args, kwargs)
        return Captured(self.guards.recorded, self.semantics)
