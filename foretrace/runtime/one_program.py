"""A captured program as a callable: for calls that the capture holds for, and no others."""

from typing import Any

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program import Recorded
from foretrace.runtime.cache import Captured
from foretrace.runtime.guards import flat_inputs
from foretrace.targets.semantics import TargetSemantics
from foretrace.trace.structure import take_apart


class OneProgram:
    """In the place of a capture: gives the program that there is, or refuses the call."""

    def __init__(self, recorded: Recorded, semantics: TargetSemantics) -> None:
        self.recorded, self.semantics = recorded, semantics

    def __call__(
        self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], again: bool
    ) -> Captured:
        """The program.

        Raises:
            Refusal: the call breaks a guard.
        """
        flat_inputs(self.recorded, *take_apart((args, kwargs)))
        if torch_api.autocast_devices() != self.recorded.requires.autocast:
            raise Refusal(
                "guard broken: autocast is not as it was when the program was captured",
                kind="guard broken",
                do="capture under the autocast of the call, or use foretrace.compile",
            )
        return Captured(self.recorded, self.semantics, None)
