"""Which sizes of a capture are open: those that were seen to differ between calls."""

from collections.abc import Callable
from typing import Any

import torch

from foretrace.errors import Refusal
from foretrace.ir.structure import named_arguments
from foretrace.runtime.compiled import Captured

Dims = dict[str, frozenset[int]]
"""Open dimensions by the name of the argument"""
CaptureWith = Callable[[Any, tuple[Any, ...], dict[str, Any], Dims], Captured]


OPEN_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""An attribute that is bound to one (a position in a cache) would not be a number afterwards"""


class Varying:
    """Captures a program with the sizes open that have varied.

    Args:
        dynamic: None: those that differ from an earlier call; True: all; False: none.
        capture: captures with the given dimensions open.
    """

    def __init__(self, dynamic: bool | None, capture: CaptureWith) -> None:
        self.dynamic, self.capture = dynamic, capture
        self._seen: dict[str, tuple[int, ...]] = {}
        self._open: dict[str, set[int]] = {}

    def __call__(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
        """Capture for one call; a program that has no graph with open sizes gets them fixed."""
        open_dims = self._dims(fn, args, kwargs)
        if not open_dims:
            return self.capture(fn, args, kwargs, {})
        try:
            captured = self.capture(fn, args, kwargs, open_dims)
        except Refusal:
            return self.capture(fn, args, kwargs, {})
        kept = any(isinstance(c.after, OPEN_NUMBERS) for c in captured.recorded.requires.changed)
        return self.capture(fn, args, kwargs, {}) if kept else captured

    def _dims(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Dims:
        leaves, _ = named_arguments(fn, args, kwargs)
        tensors = {name: leaf for name, leaf in leaves if isinstance(leaf, torch.Tensor)}
        if self.dynamic is not None:
            all_dims = {name: frozenset(range(t.dim())) for name, t in tensors.items()}
            return all_dims if self.dynamic else {}
        for name, tensor in tensors.items():
            shape = tuple(tensor.shape)
            before = self._seen.get(name, shape)
            if len(before) == len(shape):
                pairs = enumerate(zip(before, shape, strict=True))
                self._open.setdefault(name, set()).update(d for d, (a, b) in pairs if a != b)
            self._seen[name] = shape
        return {
            name: frozenset(dims)
            for name, dims in self._open.items()
            if dims and name in tensors and max(dims) < tensors[name].dim()
        }
