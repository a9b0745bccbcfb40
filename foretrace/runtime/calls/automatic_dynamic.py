"""Automatic dynamic shapes: sizes, numbers and tensors that have differed between calls."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from foretrace import torch_api
from foretrace.autograd.derivatives.target_semantics import Captured
from foretrace.errors import Refusal
from foretrace.ir.pydata.arguments import named_arguments
from foretrace.ir.pydata.read_facts import ReadLocation
from foretrace.ir.pydata.state import Change
from foretrace.ir.symbols.dynamic_shapes import FREE, Asked
from foretrace.python_state.effects.counters import of_optimizer, seen_to_differ
from foretrace.python_state.effects.state_inputs import seen_rebound

Sizes = dict[str, Asked]
"""Which sizes are open, by the name of the argument"""


@dataclass
class Found:
    """The state outside of the arguments that has differed between calls."""

    numbers: list[tuple[Change, int]] = field(default_factory=list)
    """places, and the index of the number there: these numbers are open"""
    tensors: dict[Any, Change] = field(default_factory=dict)
    """places, by holder and key, that are read at each call"""
    locations: dict[Any, ReadLocation] = field(default_factory=dict)
    """the values that captures have read there, by holder and key"""

    def note(self, last: list[ReadLocation]) -> None:
        """Take what is now another than captures have found; `last`: what the last one has."""
        self.numbers += seen_to_differ(last)
        self.locations |= {each.identity: each for each in last}
        for each in seen_rebound(self.locations.values()):
            self.tensors.setdefault(each.place.identity, each)
        for key, each in self.tensors.items():
            self.tensors[key] = replace(each, place=each.place.refreshed)


CaptureWith = Callable[[Any, tuple[Any, ...], dict[str, Any], Sizes, Found], Captured]


OPEN_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
"""An attribute that is bound to one (a position in a cache) would not be a number afterwards"""


class Varying:
    """Captures a program with what is open that has varied: sizes, and what it reads outside.

    Args:
        dynamic: which sizes: None: those that differ from an earlier call; True: all; False: none.
        capture: captures with such sizes, numbers and places of tensors open.
    """

    def __init__(self, dynamic: bool | None, capture: CaptureWith) -> None:
        self.dynamic, self.capture = dynamic, capture
        self._found = Found()
        self._last: list[ReadLocation] = []
        """what the last capture has found outside of the arguments"""
        self._seen: dict[str, tuple[int, ...]] = {}
        self._open: dict[str, set[int]] = {}

    def __call__(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
        """Capture for one call; a program that has no graph with open sizes gets them fixed."""
        self._found.note(self._last)
        captured = self._at_sizes(fn, args, kwargs)
        requires = captured.recorded.requires
        self._last = requires.python.locations
        changed = (each for each in requires.notes.counted if not isinstance(each, str))
        self._found.numbers += [each for each in changed if of_optimizer(each[0])]
        return captured

    def _at_sizes(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Captured:
        sizes = self._sizes(fn, args, kwargs)
        if not sizes:
            return self.capture(fn, args, kwargs, {}, self._found)
        try:
            captured = self.capture(fn, args, kwargs, sizes, self._found)
        except Refusal:
            return self.capture(fn, args, kwargs, {}, self._found)
        kept = any(isinstance(c.after, OPEN_NUMBERS) for c in captured.recorded.changes)
        return self.capture(fn, args, kwargs, {}, self._found) if kept else captured

    def _sizes(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sizes:
        """The open sizes; a tensor class of the user's is not asked by its own functions."""
        with torch_api.no_torch_function():
            return self._of_leaves(named_arguments(fn, args, kwargs)[0])

    def _of_leaves(self, leaves: Sequence[tuple[str, Any]]) -> Sizes:
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
