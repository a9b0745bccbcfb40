"""The abstract tensors of one run, by their types."""

from functools import partial
from typing import Any
from weakref import ref

import torch

from foretrace import torch_api
from foretrace.ir.program.op import Value
from foretrace.ir.program.tensor_type import TensorType
from foretrace.ir.symbols.symbols import Symbols
from foretrace.operators.abstract_tensors.abstract_tensor import OFFSET, Abstract, TensorQueries
from foretrace.operators.abstract_tensors.indexing import Indexing
from foretrace.operators.abstract_tensors.sparse_layouts import sparse_of
from foretrace.operators.abstract_tensors.subclass_types import wrapping_of


class Prototype(torch.Tensor):
    """What abstract tensors of a type are copied from, by torch's own kernel of `detach`."""

    __torch_dispatch__ = torch_api.disabled_torch_dispatch
    __torch_function__ = torch_api.disabled_torch_function  # type: ignore[assignment]


class Types:
    """One prototype per type; every abstract tensor is a cheap copy of its type's prototype."""

    def __init__(self, symbols: Symbols) -> None:
        self.symbols = symbols
        self._here = torch_api.device_types_here()
        self._indexing = Indexing()
        self._known: dict[TensorType, TensorType] = {}
        self._prototypes: dict[TensorType, tuple[torch.Tensor, Indexing | None]] = {}
        """by type; with what answers `x[...]` where a binding would ask for an absent device"""
        self._made: list[ref[Abstract]] = []
        self.told = TensorQueries(symbols)

    def intern(self, type: TensorType) -> TensorType:
        """The one object for all types equal to this."""
        return self._known.setdefault(type, type)

    def alive(self) -> list[Abstract]:
        """The abstract tensors that something holds."""
        self._made = [made for made in self._made if made() is not None]
        return [tensor for made in self._made if (tensor := made()) is not None]

    def of(self, tensor: torch.Tensor, device: torch.device | None = None) -> TensorType:
        """The type of a real or fake tensor, labelled with another device if one is given."""
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

        `counted`: autograd runs over it, so that writes to it are not those of its prototype.
        """
        type = value.type
        known = self._prototypes.get(type)
        if known is None:
            here = type.device.type in self._here
            known = self._prototype(type), None if here else self._indexing
            self._prototypes[type] = known
        prototype, indexing = known
        if counted or type.lazy or torch_api.dispatch_modes():
            tensor = self._unseen(prototype, type, counted)
        else:  # the guard would take a third of the time
            tensor = torch_api.make_subclass(Abstract, prototype, type.requires_grad)
        tensor.ft_value, tensor.ft_alias, tensor.ft_gradient = value, None, None
        tensor.ft_instance = None
        tensor.ft_leaf = tensor.ft_asked = False
        tensor.ft_told, tensor.ft_indexing = self.told, indexing
        self._made.append(ref(tensor))
        return tensor

    def _unseen(self, prototype: torch.Tensor, type: TensorType, counted: bool) -> Any:
        """A copy that no mode sees being made."""
        with torch_api.no_dispatch():
            like = torch_api.attribute_of(prototype, "data") if counted else prototype
            tensor = torch_api.make_subclass(Abstract, like, type.requires_grad)
            if type.lazy:
                torch_api.put_off(tensor, type.lazy)
        return tensor

    def _prototype(self, type: TensorType) -> torch.Tensor:
        number = self.symbols.number
        wrapper = torch_api.unreadable(torch_api.make_wrapper(
            Abstract, tuple(map(number, type.shape)), strides=tuple(map(number, type.stride)),
            storage_offset=number(type.offset), dtype=type.dtype, device=type.device,
            storage_size=0,  # nothing lies in it; to find how much would, sympy takes 0.3 ms
        ))  # fmt: skip
        with torch_api.no_dispatch():
            return torch_api.make_subclass(Prototype, wrapper, False)
