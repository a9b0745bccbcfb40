"""nn.Module calls become nodes of the tree."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from foretrace import torch_api
from foretrace.ir.program.op import ModuleCall, Op, Origin
from foretrace.tracer.recorder.recorder import Recorder


class ModuleCalls:
    """Opens a scope where a module is called, around its hooks and its forward."""

    def __init__(self, recorder: Recorder, paths: dict[int, str]) -> None:
        self.recorder, self.paths = recorder, paths
        self._names: dict[type, tuple[str, str]] = {}
        """of classes: alone, and with the file's"""

    def open(self, module: nn.Module) -> None:
        """Let what is recorded from now on be the body of a call of the module."""
        recorder, kind = self.recorder, type(module)
        names = self._names.get(kind)
        if names is None:
            names = self._names[kind] = kind.__name__, f"{kind.__module__}.{kind.__qualname__}"
        name, qualified = names
        mode = vars(module).get("training")
        call = ModuleCall(self.paths.get(id(module), name), name, qualified, recorder.module, mode)
        body: list[Op] = []
        frame = recorder.sources.here(3)  # below are this method and who stands for `__call__`
        origin = Origin(frame, call, checkpoint=recorder.checkpoint)
        recorder.scope.append(Op(call, (), {}, None, (), origin=origin, below=body))
        recorder.scope, recorder.module = body, call


@contextmanager
def module_calls(recorder: Recorder, paths: dict[int, str]) -> Iterator[None]:
    """Record module calls inside, of this thread.

    `nn.Module.__call__` is replaced: with a hook for all modules, each call would go torch's long
    way, which takes as much time as four ops.
    """
    calls, thread = ModuleCalls(recorder, paths), {threading.get_ident()}
    watch, original, torchs_own = recorder.unwatched, nn.Module.__call__, False

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() not in thread:
            return original(module, *args, **kwargs)
        around = recorder.scope, recorder.module
        watch.__enter__()
        try:
            calls.open(module)
            plain = torchs_own and torch_api.calls_forward_alone(module)
        finally:
            goes_on = watch.ended()
        goes_on()
        try:  # what torch does for a plain call are frames and events of no use
            return module.forward(*args, **kwargs) if plain else original(module, *args, **kwargs)
        except BaseException as error:
            recorder.note_failure(error)
            raise
        finally:
            recorder.scope, recorder.module = around

    def over(before: Any) -> Any:
        nonlocal original, torchs_own
        original, torchs_own = before, before is torch_api.MODULE_CALL
        return call

    watch.rests_at(call.__code__)
    put = torch_api.put_module_call(over)
    try:
        yield
    finally:
        torch_api.take_module_call(put)
        thread.clear()  # who has taken `call` meanwhile has torch's own by it
