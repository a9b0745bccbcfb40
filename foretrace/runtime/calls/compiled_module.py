"""A compiled module: called through its captures, in all else the module that it wraps."""

from collections.abc import Callable
from copy import copy, deepcopy
from dataclasses import dataclass
from typing import Any

from torch import nn

from foretrace.errors import Refusal
from foretrace.ir.source.short_tracebacks import hide
from foretrace.runtime.calls.compiled import Compiled
from foretrace.runtime.calls.recapture import Recapture


@dataclass(frozen=True, slots=True, eq=False)
class Captures:
    """What a compiled module is called through."""

    compiled: Compiled
    again: Callable[[nn.Module], Any]
    """compiles another module in the same way, for copies"""

    @property
    def original(self) -> nn.Module:
        """The module that is wrapped."""
        module: Any = self.compiled.fn
        return module

    @property
    def recaptures(self) -> list[Recapture]:
        """Every capture after the first, with the guard that failed."""
        return self.compiled.recaptures

    @property
    def breaks(self) -> list[Any]:
        """What runs as Python, each with its refusal and what is captured around it."""
        return self.compiled.breaks


class OfCaptures:
    """An attribute of a compiled module that its captures have.

    An instance without captures has under this name what any module has.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, module: Any, owner: type | None = None) -> Any:
        """Read it; of the module, torch looks on where it is not in `__dict__`."""
        if module is None:
            return self
        if module.foretrace_captures is not None:
            return getattr(module.foretrace_captures, self.name)
        if self.name in vars(module):
            return vars(module)[self.name]
        raise AttributeError(self.name, name=self.name, obj=module)

    def __set__(self, module: Any, item: Any) -> None:
        """Set it on the module."""
        vars(module)[self.name] = item

    def __delete__(self, module: Any) -> None:
        """Remove it from the module."""
        del vars(module)[self.name]


class CompiledModule(nn.Module):
    """A module whose calls go through captures; built by `compiled_module`.

    It is of a subclass of the original's class and has the very attributes of the original:
    parameters, buffers, submodules, hooks and the train() flag are one set, seen from two objects,
    and `state_dict` has the same names. The original's hooks are part of the captures.

    An instance that something else makes of the class has attributes of its own and no captures: it
    is as good as a module of the original's class. `nn.Module._replicate_for_data_parallel` makes
    one, and so do libraries of meta-learning, by `type(module).__new__` and another `__dict__`.
    """

    foretrace_captures: Captures | None
    __slots__ = ("foretrace_captures",)
    compiled, original, recaptures, breaks = (OfCaptures() for _ in range(4))

    def __getattr__(self, name: str) -> Any:
        """The slot is empty in an instance that something else has created."""
        return None if name in CompiledModule.__slots__ else super().__getattr__(name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module by its captures."""
        captures = self.foretrace_captures
        if captures is None:
            return super().__call__(*args, **kwargs)
        try:
            return captures.compiled(*args, **kwargs)
        except Refusal as refusal:
            hide(refusal)
            raise

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A compiled copy of the module; a plain one of an instance without captures."""
        copied, captures = deepcopy(plain_module(self), memo), self.foretrace_captures
        return copied if captures is None else captures.again(copied)

    def __reduce__(self) -> Any:
        """The same for pickling."""
        captures = self.foretrace_captures
        return _itself if captures is None else captures.again, (plain_module(self),)

    def __copy__(self) -> Any:
        """The same module, compiled again; a plain one of an instance without captures."""
        captures = self.foretrace_captures
        return copy(plain_module(self)) if captures is None else captures.again(captures.original)


def plain_module(module: CompiledModule) -> nn.Module:
    """The module without captures: it has the same attributes."""
    if module.foretrace_captures is not None:
        return module.foretrace_captures.original
    kinds = type(module).__mro__
    plain: nn.Module = object.__new__(kinds[kinds.index(CompiledModule) + 1])
    object.__setattr__(plain, "__dict__", vars(module))
    return plain


def _itself(module: nn.Module) -> nn.Module:
    """What a pickle without captures is read as."""
    return module


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
    object.__setattr__(wrapper, "__dict__", vars(module))
    object.__setattr__(wrapper, "foretrace_captures", Captures(compiled, again))
    return wrapper
