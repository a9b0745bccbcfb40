"""Indexing as torch's Python binding does it, by calling operators.

The binding asks for a guard of the tensor's device, so it raises for a device that the build
lacks. What it then does is plain: each part of the index becomes one operator call. Read in
`TensorIndexing.h` and `python_variable_indexing.h` of torch 2.13.0 and compared with the binding.
"""

import numbers
import operator
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from foretrace import torch_api

aten = torch.ops.aten

SMALLEST = -(2**62)
"""The smallest start, stop or step that torch can hold beside symbolic ones."""
LARGEST = 2**63 - 1
LONG_SEQUENCE = 32
"""A sequence from this length on is one index, as NumPy once had it."""
SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
ON_HOST = (torch.device("cpu"), torch.device("cuda"))
"""Devices, without a number, for which the binding fills the index of a bool itself."""


class Indexing:
    """Answers `tensor[index]` and `tensor[index] = new` by operators alone."""

    def get(self, tensor: torch.Tensor, index: Any) -> torch.Tensor:
        """What `tensor[index]` is."""
        if _is_integer(index):
            return _select(tensor, 0, _integer(index), 0)
        if isinstance(index, slice):
            return _slice(tensor, 0, index, skip_whole=False)
        walk = _Walk(tensor, _parts(index))
        if walk.indices:
            return aten.index.Tensor(walk.result, _without_end(walk.indices))
        return aten.alias.default(tensor) if walk.result is tensor else walk.result

    def set(self, tensor: torch.Tensor, index: Any, new: Any) -> None:
        """Do `tensor[index] = new`."""
        if str(tensor.layout).startswith("torch.sparse"):
            raise TypeError("Cannot assign to a sparse tensor")
        value = new if isinstance(new, torch.Tensor) else _as_tensor(new, tensor)
        on_cpu = value.device.type == "cpu" or _made_on_cpu(new, tensor)
        if index is False:
            return
        if (single := _single(tensor, index)) is not None:
            _write(single, value, on_cpu)
            return
        walk = _Walk(tensor, _parts(index))
        if not walk.indices:
            _write(walk.result, value, on_cpu)
            return
        shape = _without_leading_ones(value)
        if len(shape) < value.dim():
            value = aten.view.default(value, shape)
        aten.index_put_.default(walk.result, _without_end(walk.indices), value)


class _Walk:
    """One pass over the parts of an index: views for all but tensors, which are collected."""

    def __init__(self, tensor: torch.Tensor, parts: tuple[Any, ...]) -> None:
        self.tensor, self.result = tensor, tensor
        self.indices: list[torch.Tensor | None] = []
        self.dim = 0
        self.specified = sum(map(_dims_taken, parts))
        if self.specified > tensor.dim():
            raise IndexError(f"too many indices for tensor of dimension {tensor.dim()}")
        for place, part in enumerate(parts):
            self.take(place, part)

    def take(self, place: int, part: Any) -> None:
        """Apply one part to the dimension where the walk is."""
        if isinstance(part, slice):
            self.result = _slice(self.result, self.dim, part, skip_whole=True)
            self.skip(1)
        elif part is Ellipsis:
            self.skip(self.tensor.dim() - self.specified)
        elif part is None:
            self.result = aten.unsqueeze.default(self.result, self.dim)
            self.skip(1)
        elif isinstance(part, bool):
            self.result = aten.unsqueeze.default(self.result, self.dim)
            self.collect(_bool_index(part, self.tensor.device))
        elif isinstance(part, torch.Tensor):
            self.take_tensor(place, part)
        elif not _is_integer(part) and _is_sequence(part):
            self.take_tensor(place, _index_tensor(part, self.tensor.device))
        else:
            self.result = _select(self.result, self.dim, _integer(part), place)

    def take_tensor(self, place: int, index: torch.Tensor) -> None:
        """A tensor of no dimensions is the number or bool that it holds."""
        if index.dim() > 0 or index.dtype.is_floating_point or index.dtype.is_complex:
            self.collect(index)
        elif index.dtype in (torch.bool, torch.uint8):
            self.result = aten.unsqueeze.default(self.result, self.dim)
            self.collect(_bool_index(bool(aten.item.default(index)), self.tensor.device))
        else:
            self.result = _select(self.result, self.dim, aten.item.default(index), place)

    def skip(self, count: int) -> None:
        """Leave dimensions to themselves."""
        self.dim += count
        if self.indices:
            self.indices += [None] * count

    def collect(self, index: torch.Tensor) -> None:
        """Let a tensor index the dimension; a mask takes as many as it has."""
        self.indices = self.indices or [None] * self.dim
        self.indices.append(index)
        self.dim += index.dim() if index.dtype in (torch.bool, torch.uint8) else 1


# ------------------------------------------------------------------------- reading an index


def _parts(index: Any) -> tuple[Any, ...]:
    """The index as a tuple; a short sequence of more than numbers counts as one."""
    if isinstance(index, tuple):
        return index
    if isinstance(index, torch.Tensor) or _is_array(index) or not _is_sequence(index):
        return (index,)
    if len(index) >= LONG_SEQUENCE or not any(map(_makes_a_tuple, index)):
        return (index,)
    warnings.warn("a sequence as an index is deprecated: use x[tuple(seq)]", stacklevel=4)
    return tuple(index)


def _makes_a_tuple(item: Any) -> bool:
    return (
        item is None
        or item is Ellipsis
        or isinstance(item, (torch.Tensor, slice))
        or (_is_sequence(item))
    )


def _is_sequence(item: Any) -> bool:
    if isinstance(item, dict) or not hasattr(type(item), "__getitem__"):
        return False
    return hasattr(type(item), "__len__")  # NumPy's scalars have the one and not the other


def _is_array(item: Any) -> bool:
    """Whether it is a NumPy array; NumPy itself may be absent."""
    kind = type(item)
    return kind.__name__ == "ndarray" and kind.__module__ == "numpy"


def _is_integer(item: Any) -> bool:
    return isinstance(item, numbers.Integral) and not isinstance(item, bool)


def _integer(item: Any) -> int:
    try:
        number = operator.index(item)
    except TypeError:
        raise IndexError(
            "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are "
            f"valid indices (got {_type_name(item)})"
        ) from None
    return _within(number)


def _within(number: int) -> int:
    if not -LARGEST - 1 <= number <= LARGEST:
        raise ValueError("Overflow when unpacking long long")
    return number


def _dims_taken(part: Any) -> int:
    """Dimensions of the tensor that a part of the index speaks of."""
    if isinstance(part, torch.Tensor):
        return part.dim() if part.dtype in (torch.bool, torch.uint8) else 1
    return 0 if part is None or part is Ellipsis or isinstance(part, bool) else 1


def _bounds(part: slice) -> tuple[Any, Any, Any]:
    """Start, stop and step, clipped to what torch can hold."""
    step = _bound(part.step, 1)
    if step == 0:
        raise ValueError("slice step cannot be zero")
    start = _bound(part.start, LARGEST if step < 0 else 0)
    return start, _bound(part.stop, SMALLEST if step < 0 else LARGEST), step


def _bound(item: Any, default: int) -> Any:
    if item is None or isinstance(item, torch.SymInt):
        return default if item is None else item
    if not hasattr(type(item), "__index__"):
        raise TypeError("slice indices must be integers or None or have an __index__ method")
    number = min(operator.index(item), LARGEST)
    if number < SMALLEST:
        warnings.warn("Truncating the start/stop/step of slice", stacklevel=5)
    return max(number, SMALLEST)


# --------------------------------------------------------------------------------- the calls


def _slice(tensor: torch.Tensor, dim: int, part: slice, *, skip_whole: bool) -> torch.Tensor:
    start, stop, step = _bounds(part)
    if not step > 0:
        raise ValueError("step must be greater than zero")
    size = tensor.shape[dim] if dim < tensor.dim() else None
    whole = skip_whole and size is not None and _is_known(start == 0) and _is_known(size <= stop)
    if whole and step == 1:
        return tensor
    return aten.slice.Tensor(tensor, dim, start, stop, step)


def _is_known(condition: Any) -> bool:
    return condition if isinstance(condition, bool) else statically_known_true(condition)


def _select(tensor: torch.Tensor, dim: int, index: Any, place: int) -> torch.Tensor:
    shape = tensor.shape
    if not shape and dim == 0 and isinstance(index, int) and index == 0:
        raise IndexError(
            "invalid index of a 0-dim tensor. Use `tensor.item()` in Python or "
            "`tensor.item<T>()` in C++ to convert a 0-dim tensor to a number"
        )
    size = shape[dim] if dim < len(shape) else 0
    if not (size > -1 - index and size > index):
        raise IndexError(f"index {index} is out of bounds for dimension {place} with size {size}")
    return aten.select.int(tensor, dim, index)


def _single(tensor: torch.Tensor, index: Any) -> torch.Tensor | None:
    """What an index that is a bool, number or slice by itself stands for; None for others."""
    if index is True:
        return aten.unsqueeze.default(tensor, 0)
    if isinstance(index, torch.SymInt):
        return _select(tensor, 0, index, 0)
    if isinstance(index, slice):
        return _slice(tensor, 0, index, skip_whole=True)
    return _select(tensor, 0, _integer(index), 0) if _is_integer(index) else None


def _bool_index(value: bool, device: torch.device) -> torch.Tensor:
    """The index by which True takes a new dimension whole, and False takes nothing of it."""
    options = {"dtype": torch.int64, "layout": torch.strided, "device": device}
    if value and device not in ON_HOST:
        return aten.zeros.default([1], **options)
    index = aten.empty.memory_format([int(value)], **options)
    return aten.fill_.Scalar(index, 0.0) if value else index


def _index_tensor(sequence: Any, device: torch.device) -> torch.Tensor:
    """A list, range or NumPy array as the constant by which the binding indexes."""
    if _is_array(sequence):
        with torch_api.no_dispatch_modes():
            plain = torch.from_numpy(sequence)
        return aten.to.device(aten.lift_fresh.default(plain), device, _index_dtype(plain.dtype))
    known, place = _known(sequence), "meta" if device.type == "meta" else "cpu"
    with torch_api.no_dispatch_modes():
        dtype = _index_dtype(torch.tensor(known, device="meta").dtype)  # infers, reads no numbers
        plain = torch.tensor(known, dtype=dtype, device=place)
    return plain if place == "meta" else aten.lift_fresh.default(plain)


def _index_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype in (torch.bool, torch.uint8) else torch.int64


def _known(item: Any) -> Any:
    """The sequence with numbers for symbolic sizes and for abstract tensors, if they have one."""
    if isinstance(item, torch.SymInt):
        return int(item)
    if isinstance(item, torch.Tensor):
        return item if type(item) is torch.Tensor else aten.item.default(item)
    return [_known(inner) for inner in item] if isinstance(item, (list, tuple)) else item


# ------------------------------------------------------------------------------------ writing


def _as_tensor(new: Any, tensor: torch.Tensor) -> torch.Tensor:
    """A Python number as the tensor that the binding writes."""
    if _is_integer(new) or isinstance(new, bool):
        number: Any = _within(int(new))
    elif isinstance(new, (float, complex, *SYMBOLIC)):
        number = new
    else:
        raise TypeError(f"can't assign a {_type_name(new)} to a {tensor.type()}")
    if _made_on_cpu(new, tensor) and not isinstance(new, SYMBOLIC):
        with torch_api.no_dispatch_modes():
            plain = aten.scalar_tensor.default(number, dtype=tensor.dtype)
        return aten.lift_fresh.default(plain)
    options = {"dtype": tensor.dtype, "layout": tensor.layout, "device": tensor.device}
    return aten.scalar_tensor.default(number, **options)


def _made_on_cpu(new: Any, tensor: torch.Tensor) -> bool:
    """Whether the new value is a number that the binding makes a CPU tensor of."""
    return not isinstance(new, (torch.Tensor, *SYMBOLIC)) and tensor.device.type in ("cpu", "cuda")


def _write(target: torch.Tensor, value: torch.Tensor, on_cpu: bool) -> None:
    if _same_shape(target.shape, value.shape):
        aten.copy_.default(target, value)
    elif value.dim() == 0 and on_cpu:
        aten.fill_.Tensor(target, value)
    else:
        view = aten.view.default(value, _without_leading_ones(value))
        if not _same_shape(target.shape, view.shape):
            view = aten.expand.default(view, list(target.shape))
        aten.copy_.default(target, view)


def _same_shape(left: Sequence[Any], right: Sequence[Any]) -> bool:
    return len(left) == len(right) and all(a == b for a, b in zip(left, right, strict=True))


def _without_leading_ones(value: torch.Tensor) -> list[Any]:
    sizes = list(value.shape)
    while sizes and sizes[0] == 1:
        sizes.pop(0)
    return sizes


def _without_end(indices: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    while indices[-1] is None:
        indices.pop()
    return indices


def _type_name(item: Any) -> str:
    """The name as C has it, which for NumPy's types holds the module."""
    kind = type(item)
    return f"numpy.{kind.__name__}" if kind.__module__ == "numpy" else kind.__name__
