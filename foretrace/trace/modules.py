"""nn.Module calls become nodes of the tree."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from foretrace.ir.op import ModuleCall, Op, Origin
from foretrace.trace.recorder import Recorder


class ModuleCalls:
    """Opens a scope at the entry of each module call and closes it at the exit."""

    def __init__(self, recorder: Recorder, paths: dict[int, str]) -> None:
        self.recorder, self.paths, self.thread = recorder, paths, threading.get_ident()
        self._open: list[tuple[list[Op], ModuleCall | None, nn.Module]] = []

    def enter(self, module: nn.Module, args: Any) -> None:
        """A module's forward is about to run."""
        if threading.get_ident() != self.thread:
            return
        with self.recorder.unwatched:
            self._enter(module)

    def _enter(self, module: nn.Module) -> None:
        recorder = self.recorder
        kind = type(module)
        qualified = f"{kind.__module__}.{kind.__qualname__}"
        path = self.paths.get(id(module), kind.__name__)
        call = ModuleCall(path, kind.__name__, qualified, recorder.module)
        body: list[Op] = []
        origin = Origin(recorder.sources.here(), call, checkpoint=recorder.checkpoint)
        recorder.scope.append(Op(call, (), {}, None, (), origin=origin, below=body))
        self._open.append((recorder.scope, recorder.module, module))
        recorder.scope, recorder.module = body, call

    def leave(self, module: nn.Module, args: Any, result: Any) -> None:
        """A module's forward has ended, also by an exception."""
        if threading.get_ident() != self.thread:
            return
        error = sys.exc_info()[1]
        if error is not None:
            self.recorder.note_failure(error)
        while self._open:
            scope, outer, opened = self._open.pop()
            self.recorder.scope, self.recorder.module = scope, outer
            if opened is module:
                return


@contextmanager
def module_calls(recorder: Recorder, paths: dict[int, str]) -> Iterator[None]:
    """Record module calls inside; the hooks are gone afterwards."""
    calls = ModuleCalls(recorder, paths)
    before = register_module_forward_pre_hook(calls.enter)
    after = register_module_forward_hook(calls.leave, always_call=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()
