"""Autocast, as the recorder has to follow it: what is on, what it casts once, where it acts.

While a mode answers a call, torch says that autocast is off; so its switches are followed by
standing in the place of the functions that `torch.autocast` calls.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from foretrace import torch_api
from foretrace.ir.program.op import Choice
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract

INSIDE = Choice(
    "autocast", "opened", "autocast casts what is inside it, which a call of it outside would not"
)


class Casts:
    """The state of autocast during one capture."""

    def __init__(self) -> None:
        self.devices = torch_api.autocast_devices()
        self._caching = torch.is_autocast_cache_enabled()
        self._known: dict[tuple[int, torch.dtype], Abstract] = {}
        """by the leaf itself, not by its content: a write does not make torch cast it again"""
        self._shielded = False

    # ---- in the place of torch's functions ------------------------------------------------------

    def switching(self, original: Callable[..., None]) -> Callable[..., None]:
        """`torch.set_autocast_enabled`, followed."""

        def set_autocast_enabled(*args: Any) -> None:
            original(*args)
            self.devices = torch_api.autocast_devices()

        return set_autocast_enabled

    def cache(self, enabled: bool) -> None:
        """In the place of `torch.set_autocast_cache_enabled`: torch's own cache stays off.

        It caches casts of leaves, and takes every abstract tensor for one.
        """
        self._caching = enabled

    def caching(self) -> bool:
        """In the place of `torch.is_autocast_cache_enabled`."""
        return self._caching

    def forget(self) -> None:
        """In the place of `torch.clear_autocast_cache`: an outermost region has ended."""
        self._known.clear()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """What is cast inside is not known outside, nor what was outside inside."""
        with torch_api.switched(vars(self), _known={}):
            yield

    @property
    def kept(self) -> bool:
        """Whether a cast of a leaf is kept for later calls."""
        return bool(self._known)

    # ---- casts of leaves, each made once a region ------------------------------------------------

    def remembers(self, tensor: Any, dtype: Any = None, *rest: Any) -> bool:
        """Whether this is autocast's own cast, of a leaf, to its lower precision.

        Source: cached_cast in aten/src/ATen/autocast_mode.cpp.
        """
        if not (self.devices and isinstance(tensor, Abstract)) or tensor.ft_asked or rest:
            return False
        return self.keeps(tensor) and dtype in self._lower_precisions()

    def keeps(self, tensor: Abstract) -> bool:
        """Whether a cast of this tensor to lower precision is made once a region.

        Not of a leaf that is a view (`t[::2].requires_grad_()`).
        """
        alias, leaf = tensor.ft_alias, self._caching and tensor.ft_leaf and tensor.requires_grad
        return leaf and tensor.dtype is torch.float32 and (alias is None or alias.based)

    def once(self, tensor: Abstract, dtype: torch.dtype, record: Callable[..., Any]) -> Any:
        """The cast of this leaf that was made before, or else a new one.

        It is followed by autograd under no_grad too, as a later use may be.
        """
        key = (id(tensor), dtype)
        if key not in self._known:
            tensor.ft_asked = True
            with torch.enable_grad():
                self._known[key] = record(torch.ops.aten.to.dtype, (tensor, dtype))
            tensor.ft_asked = False
        return self._known[key]

    def _lower_precisions(self) -> set[torch.dtype]:
        return {torch.get_autocast_dtype(device) for device in self.devices}

    # ---- inside composites -----------------------------------------------------------------------

    def state(self) -> Any:
        """What a body depends on; None while autocast is off."""
        if not self.devices:
            return None
        dtypes = tuple(map(torch.get_autocast_dtype, sorted(self.devices)))
        return (self.devices, dtypes, self._shielded)

    def acts_inside(self, func: Any) -> bool:
        """Whether autocast sees the operators inside a composite, as it knows not itself."""
        if isinstance(func, torch_api.HigherOrderOperator):
            return False  # what it holds runs as the program does
        known = any(torch_api.autocast_knows(func, device) for device in self.devices)
        return bool(self.devices) and not known and not self._shielded

    @contextmanager
    def off(self) -> Iterator[None]:
        """Run what a class does, where eager has no autocast: it is below."""
        if not self.devices:
            yield
            return
        shielded = torch_api.switched(vars(self), _shielded=True)
        with shielded, torch_api.autocast_seen(frozenset()):
            yield

    @contextmanager
    def inside(self, func: Any) -> Iterator[None]:
        """Run the body of a composite under the autocast that eager has there."""
        if not self.devices:
            yield
            return
        seen = self.acts_inside(func)
        shielded = torch_api.switched(vars(self), _shielded=not seen)
        with shielded, torch_api.autocast_seen(self.devices if seen else frozenset()):
            yield
