"""A recorder whose program is watched: what it does itself is not."""

from contextlib import AbstractContextManager
from typing import Any

from foretrace.ir.source.call_site import Sources, function_of
from foretrace.operators.abstract_tensors.tensor_types import Types
from foretrace.operators.inference.semantics_protocol import Semantics
from foretrace.operators.schemas.cache import Cache
from foretrace.operators.schemas.dispatch_result import Outcome
from foretrace.python_state.access.monitor import AccessMonitor
from foretrace.tracer.functionalization.builder import Answers
from foretrace.tracer.recorder.recorder import Recorder

RECORD = Recorder.__torch_dispatch__
"""Not by `super()`, which takes a tenth of a microsecond at each op"""


class WatchedRecorder(Recorder):
    """Records as its base does, and lets nobody watch meanwhile."""

    above = Recorder.above + 1
    """One more frame of ours is between"""

    def __init__(
        self,
        types: Types,
        semantics: Semantics,
        sources: Sources,
        outcomes: Cache[Outcome],
        answers: Answers,
        unwatched: AccessMonitor,
    ) -> None:
        super().__init__(types, semantics, sources, outcomes, answers, unwatched)
        self.outside = unwatched

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record one call, unseen: nobody has watched since torch asked for this mode."""
        outside = self.outside
        outside.resting += 1
        try:
            return RECORD(self, func, types, args, kwargs)
        finally:
            outside.ended()()

    def will_run(self, function: Any) -> None:
        """Python of the program's that runs in the backward: what it reads is noted."""
        found = function_of(function)
        if found is not None:
            with self.outside:
                self.outside.will_run(found)

    def user_code(self) -> AbstractContextManager[None]:
        """Inside, the program's own code runs again: it is watched."""
        return self.outside.again()
