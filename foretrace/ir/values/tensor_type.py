"""Types of values: what is known of a tensor before it exists."""

import operator
from collections.abc import Sequence
from functools import reduce
from typing import Any, Self, TypeAlias

import sympy
import torch

Size: TypeAlias = int | sympy.Expr
"""A size, stride or offset: a number, or an expression over the program's symbols."""

NO_SYMBOLS: frozenset[sympy.Symbol] = frozenset()
"""One for all types, as Python builds an empty one each time"""


class SubclassStrides(tuple[Size, ...]):  # noqa: SLOT001 - a tuple has no room for them
    """Strides of a tensor that wraps others, with what it holds (a `Wrapping`)."""

    wrapped: Any

    def __new__(cls, strides: tuple[Size, ...], wrapped: Any) -> Self:
        """The strides; not equal to those of a tensor that holds something else."""
        new = super().__new__(cls, strides)
        new.wrapped = wrapped
        return new

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, SubclassStrides) and self.wrapped == other.wrapped
        return same and tuple.__eq__(self, other)

    def __hash__(self) -> int:
        return hash((tuple(self), self.wrapped))


def reach(shape: Sequence[Size], stride: Sequence[Size]) -> Size:
    """How many elements of memory there are from the first to the last of a tensor that lies so."""
    if 0 in shape:
        return 0
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


TangentStrides: TypeAlias = tuple[tuple[Size, ...] | None, ...]
"""Of each tangent the strides that it comes in; None: it did not arrive."""

DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.complex64: "c64",
    torch.complex128: "c128",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "b8",
}


def _sparse(known: int | str) -> str:
    return f"{known.split()[0]} " if isinstance(known, str) else "sparse " * bool(known)


class TensorType:
    """Shape, strides, offset (elements), dtype, device and whether autograd follows it.

    `lazy` is "conj", "neg" or both where torch has put off a conjugation or negation. `sparse` is
    the number of sparse dimensions of one in COO layout, a text of one in a compressed layout
    (`operators/abstract_tensors/sparse_layouts.py`); its strides are those of a dense one.
    `wrapped` is what a tensor of a class that wraps others holds (a `Wrapping`), None of others.

    Immutable and compared by value. The hash is kept, because every recorded call is looked up
    by the types of its operands.
    """

    __slots__ = (
        "_dense", "_hash", "_overlapping", "_symbols", "device", "dtype", "key", "lazy", "offset",
        "requires_grad", "shape", "sparse", "stride", "wrapped",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913, PLR0917 - what a type is
        self,
        shape: tuple[Size, ...],
        stride: tuple[Size, ...],
        dtype: torch.dtype,
        device: torch.device,
        offset: Size = 0,
        requires_grad: bool = False,
        lazy: str = "",
        sparse: int | str = 0,
        wrapped: Any = None,
    ) -> None:
        self.shape, self.stride, self.offset = shape, stride, offset
        self.dtype, self.device, self.requires_grad = dtype, device, requires_grad
        self.lazy, self.sparse, self.wrapped = lazy, sparse, wrapped
        self.key = (shape, stride, offset, dtype, device, requires_grad, lazy, sparse, wrapped)
        self._hash = hash(self.key)
        self._symbols: frozenset[sympy.Symbol] | None = None
        self._dense: bool | None = None
        self._overlapping: bool | None = None

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, TensorType) and self.key == other.key)

    def __repr__(self) -> str:
        name = DTYPE_NAMES.get(self.dtype, str(self.dtype).removeprefix("torch."))
        kind = f"{self.wrapped} " if self.wrapped else _sparse(self.sparse)
        return f"{kind}{name}[{', '.join(map(str, self.shape))}]"

    @property
    def differentiable(self) -> bool:
        """Whether autograd can follow values of this dtype."""
        return self.dtype.is_floating_point or self.dtype.is_complex

    @property
    def numel(self) -> Size:
        """Number of elements."""
        return reduce(operator.mul, self.shape, 1)

    @property
    def bytes(self) -> Size:
        """What its elements take in memory."""
        return self.numel * self.dtype.itemsize

    @property
    def symbols(self) -> frozenset[sympy.Symbol]:
        """The symbols that its sizes, strides and offset mention."""
        if self._symbols is None:
            sizes = (*self.shape, *self.stride, self.offset)
            found = (s for x in sizes if isinstance(x, sympy.Expr) for s in x.free_symbols)
            self._symbols = frozenset(found) or NO_SYMBOLS
        return self._symbols

    @property
    def begins(self) -> Size:
        """How many bytes into memory its first element is."""
        return self.offset * self.dtype.itemsize

    def with_grad(self, requires_grad: bool) -> "TensorType":
        """The same type, followed by autograd or not."""
        if requires_grad == self.requires_grad:
            return self
        layout = (self.shape, self.stride, self.dtype, self.device, self.offset)
        return TensorType(*layout, requires_grad, self.lazy, self.sparse, self.wrapped)

    @property
    def dense(self) -> bool:
        """Whether its elements fill their memory without gaps and without overlap."""
        if self._dense is None:
            self._dense = self._without_gaps()
        return self._dense

    def _without_gaps(self) -> bool:
        expected: Size = 1
        for dim in reversed(self.memory_order()):
            if self.shape[dim] != 1 and self.stride[dim] != expected:
                return False
            expected = expected * self.shape[dim]
        return True

    @property
    def odd(self) -> bool:
        """Whether it has a size 0 or 1, and other strides than a tensor that lies in order.

        So has the result of TensorIterator for one with both sizes: strides do not order them.
        """
        none, one = 0 in self.shape, 1 in self.shape
        return (none and one) or ((none or one) and self.stride != self.contiguous().stride)

    @property
    def overlapping(self) -> bool:
        """Whether two of its elements may be one place in memory; open sizes count as distinct."""
        if self._overlapping is None:
            self._overlapping = self._meets_itself()
        return self._overlapping

    def _meets_itself(self) -> bool:
        reach: Size = 0
        for dim in reversed(self.memory_order()):
            size, stride = self.shape[dim], self.stride[dim]
            if size == 1:
                continue
            if stride == 0 or (isinstance(stride - reach, int) and stride <= reach):
                return self.numel != 0
            reach = reach + (size - 1) * stride
        return False

    def memory_order(self) -> list[int]:
        """The dimensions from the slowest to the fastest in memory."""
        key = [
            (_sort_key(stride), size != 1)
            for stride, size in zip(self.stride, self.shape, strict=True)
        ]
        return sorted(range(len(key)), key=lambda dim: key[dim], reverse=True)

    def contiguous(self) -> "TensorType":
        """The same type laid out in order."""
        strides: list[Size] = [1]
        for size in reversed(self.shape[1:]):
            strides.append(strides[-1] * (1 if size == 0 else size))  # as torch counts
        stride = tuple(reversed(strides[: len(self.shape)]))
        return TensorType(self.shape, stride, self.dtype, self.device)

    def without_gaps(self) -> "TensorType":
        """The same type, or laid out in order if it has gaps or overlaps itself."""
        return self if self.dense or self.wrapped is not None else self.contiguous()

    def ordered(self, strides: tuple[int, ...]) -> "TensorType":
        """The same type laid out in the order of these strides, expanded where they are zero."""
        order = sorted(range(len(strides)), key=lambda dim: -strides[dim])
        unshared_dims = tuple([self.shape[dim] if strides[dim] else 1 for dim in order])
        steps = dict(zip(order, self.but(shape=unshared_dims).contiguous().stride, strict=True))
        found = tuple([steps[dim] if step else 0 for dim, step in enumerate(strides)])
        return self.but(stride=found, offset=0)

    def on(self, device: torch.device) -> "TensorType":
        """The same type on another device."""
        return self.but(device=device)

    def but(self, **changed: Any) -> "TensorType":
        """The same type with other values of some attributes."""
        names = ("shape", "stride", "dtype", "device", "offset", "requires_grad", "lazy", "sparse")
        known = {name: getattr(self, name) for name in (*names, "wrapped")}
        return TensorType(**(known | changed))

    @property
    def laid(self) -> tuple[Size, ...]:
        """Its strides, by which a tangent of it is known; with what it holds, if it wraps."""
        return (
            SubclassStrides(self.stride, self.wrapped) if self.wrapped is not None else self.stride
        )

    def arrived(self, strides: tuple[Size, ...]) -> "TensorType":
        """The type of a tangent of it that lies so."""
        return self.but(stride=strides, lazy="", wrapped=getattr(strides, "wrapped", None))

    @property
    def plain(self) -> "TensorType":
        """The type of a tensor of torch's own class that lies as this one does."""
        return self.but(wrapped=None) if self.wrapped is not None else self

    def same_layout(self, other: "TensorType") -> bool:
        """Whether both have the same shape, strides and dtype."""
        mine = (self.shape, self.stride, self.dtype)
        return mine == (other.shape, other.stride, other.dtype)


def _sort_key(stride: Size) -> tuple[int, object]:
    """Orders strides; of symbolic ones, the one with more factors is the larger."""
    return (0, stride) if isinstance(stride, int) else (len(stride.args) or 1, str(stride))
