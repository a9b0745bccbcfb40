"""The share of a program's operators that captures run, counted in one eager run."""

from collections.abc import Callable
from typing import Any

from torch import nn

from foretrace import torch_api
from foretrace.runtime.calls.compiled_module import CompiledModule
from foretrace.runtime.graph_breaks.module_redirect import HERE
from foretrace.runtime.graph_breaks.partial_capture import PartialCapture
from foretrace.runtime.graph_breaks.paths import region_of


class _Counting(torch_api.TorchDispatchMode):
    """Counts dispatched operators, in pieces and in all."""

    def __init__(self, root: PartialCapture) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.table = root.pieces.table
        self.inside = 0 if root.refusals else 1
        self.captured = self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.total += 1
        self.captured += bool(self.inside)
        return func(*args, **(kwargs or {}))

    def called(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """A module that runs, in Python or in a piece."""
        return self._run(id(module), torch_api.plain_call(module), args, kwargs)

    def region(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A region that does."""
        target, key, args = region_of(function, args)
        return self._run(key, target, args, kwargs)

    def _run(self, key: Any, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        _, piece = self.table.get(key, (None, None))
        if piece is not None and piece.refusals:
            return piece.as_python(args, kwargs)
        self.inside += piece is not None
        try:
            return plain(*args, **kwargs)
        finally:
            self.inside -= piece is not None


def share(
    compiled: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
) -> tuple[int, int]:
    """Run the program eagerly, once, and count its operators.

    Args:
        compiled: what `foretrace.compile` gave, after calls like this one.
        args: the call's positional arguments.
        kwargs: its keyword arguments.

    Returns:
        How many leaf operators are run by captures, and how many there are in all.
    """
    root: PartialCapture = compiled.compiled if isinstance(compiled, CompiledModule) else compiled
    counting = _Counting(root)
    before, HERE.counting = HERE.counting, counting
    try:
        with counting:
            root.as_python(args, kwargs or {})
    finally:
        HERE.counting = before
    return counting.captured, counting.total
