"""The abstract tensors of one run, created from their types."""

from functools import lru_cache, partial
from typing import Any
from weakref import ref

import torch

from foretrace import torch_api
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.absent_device import Absent
from foretrace.operators.abstract_tensors.abstract_tensor import OFFSET, Abstract
from foretrace.operators.abstract_tensors.sparse_layouts import sparse_of
from foretrace.operators.abstract_tensors.subclass_types import wrapping_of
from foretrace.operators.abstract_tensors.tensor_queries import TensorQueries


class Prototype(torch.Tensor):
    """A tensor from which torch's own kernel of `detach` copies the abstract tensors of a type."""

    __torch_dispatch__ = torch_api.disabled_torch_dispatch
    __torch_function__ = torch_api.disabled_torch_function  # type: ignore[assignment]


class Types:
    """Creates abstract tensors, each a cheap copy of its type's prototype."""

    def __init__(self, symbols: Symbols) -> None:
        self.symbols = symbols
        self._here = torch_api.device_types_here()
        self._known: dict[TensorType, TensorType] = {}
        self._prototypes: dict[TensorType, tuple[torch.Tensor, bool]] = {}
        """by type; with whether torch's binding of `x[...]` would need an absent device"""
        self._created: list[ref[Abstract]] = []
        self.queries = TensorQueries(symbols)

    def intern(self, type: TensorType) -> TensorType:
        """The one object for all types equal to this."""
        return self._known.setdefault(type, type)

    def alive(self) -> list[Abstract]:
        """The abstract tensors that are still referenced."""
        self._created = [each for each in self._created if each() is not None]
        return [tensor for each in self._created if (tensor := each()) is not None]

    def of(self, tensor: torch.Tensor, device: torch.device | None = None) -> TensorType:
        """The type of a real or fake tensor, on `device` if that is not None."""
        sizes, device = self.symbols.sizes, device or tensor.device
        followed = torch_api.attribute_of(tensor, "requires_grad")  # not by the program
        if sparse := sparse_of(tensor):
            dense = TensorType(sizes(tensor.shape), (), tensor.dtype, device).contiguous()
            return self.intern(dense.but(requires_grad=followed, sparse=sparse))
        shape, stride = sizes(tensor.shape), sizes(tensor.stride())
        if (wrapped := wrapping_of(tensor, partial(self.of, device=device))) is not None:
            known = TensorType(shape, stride, tensor.dtype, device, 0, followed, wrapped=wrapped)
            return self.intern(known)
        offset = self.symbols.size(OFFSET(tensor))
        lazy = "conj" * tensor.is_conj() + "neg" * tensor.is_neg()
        return self.intern(TensorType(shape, stride, tensor.dtype, device, offset, followed, lazy))

    def fixed(self, type: TensorType) -> TensorType:
        """The type with numbers for its symbols, which become guards."""
        if not type.symbols:
            return type
        fixed = self.symbols.fixed
        shape, stride = tuple(map(fixed, type.shape)), tuple(map(fixed, type.stride))
        return self.intern(type.but(shape=shape, stride=stride, offset=fixed(type.offset)))

    def abstract(self, value: Value, *, counted: bool = False) -> Abstract:
        """A new abstract tensor for the value.

        `counted`: it has a version counter of its own, as autograd runs over it.
        """
        type = value.type
        known = self._prototypes.get(type)
        if known is None:
            known = self._prototype(type), type.device.type not in self._here
            self._prototypes[type] = known
        prototype, absent = known
        kind = Absent if absent else Abstract
        if counted or type.lazy or torch_api.dispatch_modes():
            tensor = self._unseen(kind, prototype, type, counted)
        else:  # `no_dispatch` would take a third of the time
            tensor = torch_api.make_subclass(kind, prototype, type.requires_grad)
        tensor.ft_value, tensor.ft_alias, tensor.ft_gradient = value, None, None
        tensor.ft_instance = None
        tensor.ft_leaf = tensor.ft_asked = False
        tensor.ft_queries, tensor.ft_absent = self.queries, absent
        self._created.append(ref(tensor))
        return tensor

    def _unseen(self, kind: Any, prototype: torch.Tensor, type: TensorType, counted: bool) -> Any:
        """A copy that no mode sees."""
        with torch_api.no_dispatch():
            like = torch_api.attribute_of(prototype, "data") if counted else prototype
            tensor = torch_api.make_subclass(kind, like, type.requires_grad)
            if type.lazy:
                torch_api.put_off(tensor, type.lazy)
        return tensor

    def _prototype(self, type: TensorType) -> torch.Tensor:
        dtype, device = type.dtype, type.device
        if not type.symbols:
            mode = torch.is_inference_mode_enabled()
            return _shared_prototype(mode, type.shape, type.stride, type.offset, dtype, device)
        number = self.symbols.number
        shape, stride = tuple(map(number, type.shape)), tuple(map(number, type.stride))
        return _new_prototype(shape, stride, number(type.offset), dtype, device)


def _new_prototype(
    shape: tuple[Any, ...], stride: tuple[Any, ...], offset: Any, dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:  # fmt: skip
    wrapper = torch_api.unreadable(torch_api.make_wrapper(
        Abstract, shape, strides=stride, storage_offset=offset, dtype=dtype, device=device,
        storage_size=0,  # without it, sympy computes the size in 0.3 ms
    ))  # fmt: skip
    with torch_api.no_dispatch():
        return torch_api.make_subclass(Prototype, wrapper, False)


@lru_cache(maxsize=1024)
def _shared_prototype(_inference: bool, *layout: Any) -> torch.Tensor:
    """Create the prototype of a type without symbols once: it takes as long as ten copies.

    `_inference`: whether inference mode is on, in which torch creates tensors of another kind.
    """
    return _new_prototype(*layout)
