"""A compiled module: called through its captures, in all else the module that it wraps."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from torch import nn

from foretrace.errors import Refusal
from foretrace.ir.source.short_tracebacks import hide
from foretrace.runtime.calls.compiled import Compiled, Recapture


class CompiledModule(nn.Module):
    """A module whose calls go through captures; built by `compiled_module`.

    It is of a subclass of the original's class and has the very attributes of the original:
    parameters, buffers, submodules, hooks and the train() flag are one set, seen from two objects,
    and `state_dict` has the same names. The original's hooks are part of the captures.
    """

    compiled: Compiled
    again: Callable[[nn.Module], Any]
    __slots__ = ("again", "compiled")

    @property
    def original(self) -> nn.Module:
        """The module that it wraps."""
        return self.compiled.fn

    @property
    def recaptures(self) -> list[Recapture]:
        """Every capture after the first, with the guard that failed."""
        return self.compiled.recaptures

    @property
    def breaks(self) -> list[Any]:
        """What runs as Python, each with its refusal and what is captured around it."""
        return self.compiled.breaks

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module by its captures."""
        try:
            return self.compiled(*args, **kwargs)
        except Refusal as refusal:
            hide(refusal)
            raise

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A compiled copy of the module."""
        return self.again(deepcopy(self.original, memo))

    def __reduce__(self) -> Any:
        """The same for pickling."""
        return self.again, (self.original,)


def compiled_module(
    module: nn.Module, compiled: Compiled, again: Callable[[nn.Module], Any]
) -> CompiledModule:
    """The module in compiled form.

    Args:
        module: what is compiled.
        compiled: calls its captures.
        again: compiles another module in the same way, for copies.
    """
    name = f"Compiled{type(module).__name__}"
    kind = type(name, (CompiledModule, type(module)), {"__slots__": ()})
    wrapper: CompiledModule = object.__new__(kind)
    for attribute, item in (("__dict__", vars(module)), ("compiled", compiled), ("again", again)):
        object.__setattr__(wrapper, attribute, item)
    return wrapper
