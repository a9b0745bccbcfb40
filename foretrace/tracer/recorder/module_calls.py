"""Record nn.Module calls: each is an op with a body; of chosen ones, inputs and outputs."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import ModuleCall, Origin
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.tracer.functionalization.autograd_leaves import value_of
from foretrace.tracer.recorder.recorder import Recorder


class ModuleCalls:
    """Opens a scope where a module is called, around its hooks and its forward."""

    def __init__(self, recorder: Recorder, paths: dict[int, str]) -> None:
        self.recorder, self.paths = recorder, paths
        self._names: dict[type, tuple[str, str]] = {}
        """of classes: alone, and with the file's"""

    def open(self, module: nn.Module) -> tuple[list[Op], ModuleCall | None]:
        """Record the body of a call of the module from now on; gives what was recorded around."""
        scope, kind = self.recorder.scope, type(module)
        around = scope.ops, scope.module
        names = self._names.get(kind)
        if names is None:
            names = self._names[kind] = kind.__name__, f"{kind.__module__}.{kind.__qualname__}"
        name, qualified = names
        mode = vars(module).get("training")
        call = ModuleCall(self.paths.get(id(module), name), name, qualified, scope.module, mode)
        body: list[Op] = []
        frame = self.recorder.sources.here(3)  # below are this method and who stands for `__call__`
        origin = Origin(frame, call, checkpoint=scope.checkpoint)
        scope.ops.append(Op(call, (), {}, None, (), origin=origin, below=body))
        scope.enter_module(call, body)
        return around


@contextmanager
def module_calls(recorder: Recorder, paths: dict[int, str]) -> Iterator[None]:
    """Record module calls inside, of this thread; replaces `nn.Module.__call__`.

    With a hook for all modules each call would go torch's long way: the time of four ops.
    """
    running = {threading.get_ident(): ModuleCalls(recorder, paths)}
    original = nn.Module.__call__

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        calls = running.get(threading.get_ident())
        if calls is None:
            return original(module, *args, **kwargs)
        watch = calls.recorder.unwatched
        watch.__enter__()
        try:
            around = calls.open(module)
            plain = torch_api.calls_forward_alone(module, original)
        finally:
            goes_on = watch.ended()
        goes_on()
        try:  # what torch does for a plain call are frames and events of no use
            return module.forward(*args, **kwargs) if plain else original(module, *args, **kwargs)
        except BaseException as error:
            calls.recorder.note_failure(error)
            raise
        finally:
            calls.recorder.scope.leave_module(*around)

    def over(before: Any) -> Any:
        nonlocal original
        original = before
        return call

    recorder.unwatched.rests_at(call.__code__)
    put = torch_api.put_module_call(over)
    try:
        yield
    finally:
        torch_api.take_module_call(put)
        running.clear()  # a reference to `call` that outlives this runs torch's own


@dataclass(slots=True, eq=False)
class CallSite:
    """One call of a submodule, with tensors as they were then; leaves are values and constants."""

    call: ModuleCall
    inputs: list[Any]
    in_spec: torch_api.TreeSpec
    outputs: list[Any] = field(default_factory=list)
    out_spec: torch_api.TreeSpec | None = None

    @property
    def values(self) -> list[Value]:
        """The values among the leaves."""
        return [leaf for leaf in (*self.inputs, *self.outputs) if isinstance(leaf, Value)]


class _Watch:
    """Hooks of one module; they change nothing."""

    def __init__(self, recorder: Recorder, sites: list[CallSite]) -> None:
        self.recorder, self.sites = recorder, sites
        self.running: list[CallSite] = []

    def enter(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """A call begins."""
        if self.recorder.scope.module is None:
            return
        leaves, spec = torch_api.tree_flatten((args, kwargs))
        self.running.append(CallSite(self.recorder.scope.module, self._seen(leaves), spec))

    def leave(self, module: nn.Module, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """A call has ended."""
        if self.running:
            site = self.running.pop()
            leaves, site.out_spec = torch_api.tree_flatten(result)
            site.outputs = self._seen(leaves)
            self.sites.append(site)

    def _seen(self, leaves: list[Any]) -> list[Any]:
        return [
            value_of(leaf, self.recorder) if isinstance(leaf, Abstract) else leaf for leaf in leaves
        ]


@contextmanager
def submodule_calls(
    module: nn.Module, paths: Sequence[str], recorder: Recorder
) -> Iterator[list[CallSite]]:
    """Note the calls of the submodules at `paths` inside; gives the list of those that ended.

    Raises:
        Refusal: there is no such submodule.
    """
    sites: list[CallSite] = []
    with ExitStack() as stack:
        for path in paths:
            submodule = dict(module.named_modules(remove_duplicate=False)).get(path)
            if submodule is None:
                raise Refusal(
                    f"the module has no submodule {path!r}",
                    kind="wrong call",
                    do="name submodules as named_modules() does",
                )
            watch = _Watch(recorder, sites)
            stack.callback(
                submodule.register_forward_pre_hook(watch.enter, with_kwargs=True).remove
            )
            stack.callback(submodule.register_forward_hook(watch.leave, with_kwargs=True).remove)
        yield sites
