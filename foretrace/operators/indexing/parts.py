"""The parts of an index, each as the operator calls of torch's Python binding.

Read in `TensorIndexing.h` and `python_variable_indexing.h` of torch 2.13.0 and 2.15.0.
"""

import numbers
import operator
import warnings
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from foretrace import torch_api
from foretrace.operators.indexing.binding import lifts_on_meta

aten = torch.ops.aten

SMALLEST = -(2**62)
"""The smallest start, stop or step of torch besides symbolic ones."""
LARGEST = 2**63 - 1
LONG_SEQUENCE = 32
"""A sequence from this length on is one index, as in old NumPy."""
ON_HOST = (torch.device("cpu"), torch.device("cuda"))
"""Devices without a number for which the binding fills the index of a bool itself."""
MASKS = (torch.bool, torch.uint8)
KNOWN = frozenset({int, bool, type(None), type(...)})
"""Types of parts and of bounds with values that are known"""
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


class Walk:
    """One pass over the parts of an index: views, and the tensors, which are collected."""

    def __init__(self, tensor: torch.Tensor, index: Any, *, on_device: bool = False) -> None:
        """`on_device`: a 0-dim CUDA tensor may index without a read."""
        parts = _parts_of(index)
        self.tensor, self.result, self.on_device = tensor, tensor, on_device
        self.indices: list[torch.Tensor | None] = []
        self.dim = 0
        self.specified = sum(map(_dims_taken, parts))
        if self.specified > tensor.dim():
            raise IndexError(f"too many indices for tensor of dimension {tensor.dim()}")
        for place, part in enumerate(parts):
            self.take(place, part)

    def take(self, place: int, part: Any) -> None:
        """Apply one part to the current dimension."""
        if isinstance(part, slice):
            self.result = sliced(self.result, self.dim, part, skip_whole=True)
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
        elif not is_integer(part) and _is_sequence(part):
            self.take_tensor(place, _index_tensor(part, self.tensor.device))
        else:
            self.result = selected(self.result, self.dim, integer(part), place)

    def take_tensor(self, place: int, index: torch.Tensor) -> None:
        """Apply a tensor; one of no dimensions is its number or bool."""
        kept = self.on_device and _stays(index, self.tensor)
        if kept or index.dim() > 0 or index.dtype.is_floating_point or index.dtype.is_complex:
            self.collect(index)
        elif index.dtype in MASKS:
            self.result = aten.unsqueeze.default(self.result, self.dim)
            self.collect(_bool_index(bool(aten.item.default(index)), self.tensor.device))
        else:
            self.result = selected(self.result, self.dim, aten.item.default(index), place)

    def skip(self, count: int) -> None:
        """Keep dimensions whole."""
        self.dim += count
        if self.indices:
            self.indices += [None] * count

    def collect(self, index: torch.Tensor) -> None:
        """Let a tensor index the current dimension; a mask, as many as it has."""
        self.indices = self.indices or [None] * self.dim
        self.indices.append(index)
        self.dim += index.dim() if index.dtype in MASKS else 1


def _stays(index: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether the binding leaves a number on the device: `canKeepScalarIndexOnDevice`, 2.15.0."""
    known = tensor.device.type == "cuda" and tensor.dtype not in UNSIGNED
    return known and index.dtype in (torch.int64, torch.int32) and index.device == tensor.device


# ------------------------------------------------------------------------- reading an index


def open_number(index: Any) -> bool:
    """Whether a number in the index is not known, which the binding in C++ would read."""
    for part in index if type(index) is tuple else (index,):
        kind = type(part)
        if kind is slice:  # a loop over its bounds would be calls, which a profiler sees
            start, stop, step = part.start, part.stop, part.step
            known = type(start) in KNOWN and type(stop) in KNOWN and type(step) in KNOWN
            if not known and any(map(_holds_number, (start, stop, step))):
                return True
        elif kind not in KNOWN and _holds_number(part):
            return True
    return False


def _holds_number(part: Any) -> bool:
    if isinstance(part, torch.SymInt):
        return True
    if not isinstance(part, torch.Tensor) or type(part) is torch.Tensor or part.dim():
        return False
    return not (part.dtype in MASKS or part.is_floating_point() or part.is_complex())


def _parts_of(index: Any) -> tuple[Any, ...]:
    """The index as a tuple; a short sequence of more than numbers is one, too."""
    if isinstance(index, tuple):
        return index
    if isinstance(index, torch.Tensor) or _is_array(index) or not _is_sequence(index):
        return (index,)
    if len(index) >= LONG_SEQUENCE or not any(map(_makes_a_tuple, index)):
        return (index,)
    warnings.warn("a sequence as an index is deprecated: use x[tuple(seq)]", stacklevel=4)
    return tuple(index)


def _makes_a_tuple(item: Any) -> bool:
    plain = item is None or item is Ellipsis or isinstance(item, (torch.Tensor, slice))
    return plain or _is_sequence(item)


def _is_sequence(item: Any) -> bool:
    if isinstance(item, dict) or not hasattr(type(item), "__getitem__"):
        return False
    return hasattr(type(item), "__len__")  # NumPy's scalars lack it


def _is_array(item: Any) -> bool:
    """Whether it is a NumPy array; NumPy may be absent."""
    kind = type(item)
    return kind.__name__ == "ndarray" and kind.__module__ == "numpy"


def is_integer(item: Any) -> bool:
    """Whether the binding takes an item for an integer."""
    return isinstance(item, numbers.Integral) and not isinstance(item, bool)


def integer(item: Any) -> Any:
    """The integer of an item; a symbolic one stays symbolic.

    Raises:
        IndexError: it has none.
        ValueError: it does not fit 64 bits.
    """
    if isinstance(item, torch.SymInt):
        return item
    try:
        number = operator.index(item)
    except TypeError:
        raise IndexError(
            "only integers, slices (`:`), ellipsis (`...`), None and long or byte Variables are "
            f"valid indices (got {type_name(item)})"
        ) from None
    return within(number)


def within(number: int) -> int:
    """The number, which has to fit 64 bits."""
    if not -LARGEST - 1 <= number <= LARGEST:
        raise ValueError("Overflow when unpacking long long")
    return number


def _dims_taken(part: Any) -> int:
    """The number of dimensions of the tensor that a part of the index takes."""
    if isinstance(part, torch.Tensor):
        return part.dim() if part.dtype in MASKS else 1
    return 0 if part is None or part is Ellipsis or isinstance(part, bool) else 1


def _bounds(part: slice) -> tuple[Any, Any, Any]:
    """Start, stop and step, clipped to the integers of torch."""
    step = _bound(part.step, 1)
    if step == 0:
        raise ValueError("slice step cannot be zero")
    start = _bound(part.start, LARGEST if step < 0 else 0)
    return start, _bound(part.stop, SMALLEST if step < 0 else LARGEST), step


def _bound(item: Any, default: int) -> Any:
    if item is None or isinstance(item, torch.SymInt):
        return default if item is None else item
    if _holds_number(item):
        return _bound(aten.item.default(item), default)
    if not hasattr(type(item), "__index__"):
        raise TypeError("slice indices must be integers or None or have an __index__ method")
    number = min(operator.index(item), LARGEST)
    if number < SMALLEST:
        warnings.warn("Truncating the start/stop/step of slice", stacklevel=5)
    return max(number, SMALLEST)


# --------------------------------------------------------------------------------- the calls


def sliced(tensor: torch.Tensor, dim: int, part: slice, *, skip_whole: bool) -> torch.Tensor:
    """A slice of one dimension; the tensor itself if `skip_whole` and the slice takes all of it."""
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


def selected(tensor: torch.Tensor, dim: int, index: Any, place: int) -> torch.Tensor:
    """One element of a dimension; `place` is the part's position in the index, for the error."""
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


def single(tensor: torch.Tensor, index: Any) -> torch.Tensor | None:
    """The view for an index that is one bool, number or slice; None for others."""
    if index is True:
        return aten.unsqueeze.default(tensor, 0)
    if isinstance(index, torch.SymInt):
        return selected(tensor, 0, index, 0)
    if isinstance(index, slice):
        return sliced(tensor, 0, index, skip_whole=True)
    return selected(tensor, 0, integer(index), 0) if is_integer(index) else None


def _bool_index(value: bool, device: torch.device) -> torch.Tensor:
    """The index tensor of a bool: True takes a new dimension whole, False nothing of it."""
    options = {"dtype": torch.int64, "layout": torch.strided, "device": device}
    if value and device not in ON_HOST:
        return aten.zeros.default([1], **options)
    index = aten.empty.memory_format([int(value)], **options)
    return aten.fill_.Scalar(index, 0.0) if value else index


def _index_tensor(sequence: Any, device: torch.device) -> torch.Tensor:
    """The constant tensor of the binding for a list, range or NumPy array."""
    if _is_array(sequence):
        with torch_api.no_dispatch_modes():
            plain = torch.from_numpy(sequence)
        return aten.to.device(aten.lift_fresh.default(plain), device, _index_dtype(plain.dtype))
    known, place = _known(sequence), "meta" if device.type == "meta" else "cpu"
    with torch_api.no_dispatch_modes():
        dtype = _index_dtype(torch.tensor(known, device="meta").dtype)  # infers, reads no numbers
        plain = torch.tensor(known, dtype=dtype, device=place)
    return plain if place == "meta" and not lifts_on_meta() else aten.lift_fresh.default(plain)


def _index_dtype(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype in MASKS else torch.int64


def _known(item: Any) -> Any:
    """The sequence with numbers for symbolic sizes and for abstract tensors."""
    if isinstance(item, torch.SymInt):
        return int(item)
    if isinstance(item, torch.Tensor):
        return item if type(item) is torch.Tensor else aten.item.default(item)
    return [_known(inner) for inner in item] if isinstance(item, (list, tuple)) else item


def without_end(indices: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """The indices up to the last tensor."""
    while indices[-1] is None:
        indices.pop()
    return indices


def type_name(item: Any) -> str:
    """The name of a type in C, which for NumPy's types includes the module."""
    kind = type(item)
    return f"numpy.{kind.__name__}" if kind.__module__ == "numpy" else kind.__name__
