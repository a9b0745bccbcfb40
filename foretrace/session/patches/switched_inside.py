"""Where the program switches torch's ambient state itself: what is not as it was is known."""

from collections.abc import Callable
from functools import partial
from typing import Any

from foretrace import torch_api
from foretrace.tracer.functionalization.run_state import Switched
from foretrace.tracer.recorder.dispatch import switched_refusal
from foretrace.tracer.recorder.recorder import Recorder


class Switches:
    """Stands in for the bindings that switch it, and notes in the recorder what is switched."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self._before: dict[str, Any] = {}

    def stand_ins(self, device: str) -> dict[str, Callable[..., Any]]:
        """By name, for those that may change what kernels for the device do."""
        return {
            name: partial(self._set, row, original)
            for name, (row, _, original) in torch_api.SETTERS.items()
            if row.device in ("", device)
        }

    def _set(
        self, row: torch_api.Row, original: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        switched, before = self.recorder.switched, self._before.setdefault(row.name, row.read())
        result = original(*args, **kwargs)
        if row.read() == before:
            switched.pop(row.name, None)
        else:
            switched[row.name] = Switched(row, before)
        return result

    def check(self, what: str) -> None:
        """Check that nothing is switched that may change the kernels of what comes.

        Raises:
            Refusal: it is.
        """
        for switched in self.recorder.switched.values():
            if switched.row.inside == "refused":
                raise self.recorder.refused(switched_refusal(switched, what))
