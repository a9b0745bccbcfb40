"""Calls of chosen submodules: what went in and what came out, as it was at that moment."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.op import ModuleCall, Value
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.tracer.functionalization.autograd_leaves import value_of
from foretrace.tracer.recorder.recorder import Recorder


@dataclass(slots=True, eq=False)
class CallSite:
    """One call; leaves are values and constants."""

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
        if self.recorder.module is None:
            return
        leaves, spec = torch_api.tree_flatten((args, kwargs))
        self.running.append(CallSite(self.recorder.module, self._seen(leaves), spec))

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
