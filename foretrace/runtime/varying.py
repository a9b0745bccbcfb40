"""Which sizes of a capture are open: those that were seen to differ between calls."""

from collections.abc import Callable
from typing import Any

import torch

from foretrace.errors import Refusal
from foretrace.ir.places import Change
from foretrace.ir.structure import named_arguments
from foretrace.python_state.counts import of_optimizer, seen_to_differ
from foretrace.symbols.shapes import FREE, Asked
from foretrace.targets.semantics import Captured

Sizes = dict[str, Asked]
"""Which sizes are open, by the name of the argument"""
Counted = list[tuple[Change, int]]
"""Numbers outside of the arguments that are open: places, and which of what is there"""
CaptureWith = Callable[[Any, tuple[Any, ...], dict[str, Any], Sizes, Counted], Captured]


OPEN_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""An attribute that is bound to one (a position in a cache) would not be a number afterwards"""


class Varying:
    """Captures a program with the sizes open that have varied, and numbers that it reads outside.

    Args:
        dynamic: which sizes: None: those that differ from an earlier call; True: all; False: none.
        capture: captures with the given sizes and numbers open.
    """

    def __init__(self, dynamic: bool | None, capture: CaptureWith) -> None:
        self.dynamic, self.capture = dynamic, capture
        self._counted: Counted = []
        self._held: list[object] = []
        """what the last capture has found outside of the arguments"""
        self._seen: dict[str, tuple[int, ...]] = {}
        self._open: dict[str, set[int]] = {}

    def __call__(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
        """Capture for one call; a program that has no graph with open sizes gets them fixed."""
        self._counted += seen_to_differ(self._held)
        captured = self._at_sizes(fn, args, kwargs)
        requires = captured.recorded.requires
        self._held = [*requires.held]
        changed = (each for each in requires.counted if not isinstance(each, str))
        self._counted += [each for each in changed if of_optimizer(each[0])]
        return captured

    def _at_sizes(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
        sizes = self._sizes(fn, args, kwargs)
        if not sizes:
            return self.capture(fn, args, kwargs, {}, self._counted)
        try:
            captured = self.capture(fn, args, kwargs, sizes, self._counted)
        except Refusal:
            return self.capture(fn, args, kwargs, {}, self._counted)
        kept = any(isinstance(c.after, OPEN_NUMBERS) for c in captured.recorded.requires.changed)
        return self.capture(fn, args, kwargs, {}, self._counted) if kept else captured

    def _sizes(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sizes:
        leaves, _ = named_arguments(fn, args, kwargs)
        tensors = {n: t for n, t in leaves if isinstance(t, torch.Tensor) and not t.is_nested}
        if self.dynamic is not None:
            every = {name: Asked(name, (FREE,) * t.dim()) for name, t in tensors.items()}
            return every if self.dynamic else {}
        for name, tensor in tensors.items():
            shape = tuple(tensor.shape)
            before = self._seen.get(name, shape)
            if len(before) == len(shape):
                pairs = enumerate(zip(before, shape, strict=True))
                self._open.setdefault(name, set()).update(d for d, (a, b) in pairs if a != b)
            self._seen[name] = shape
        return {
            name: Asked(name, tuple(FREE if dim in dims else None for dim in range(tensor.dim())))
            for name, tensor in tensors.items()
            if (dims := self._open.get(name)) and max(dims) < tensor.dim()
        }
