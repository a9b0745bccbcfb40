"""Indexing by the operator calls of torch's Python binding.

The binding takes a guard of the tensor's device, so it raises for a device that the build lacks.
Read in `TensorIndexing.h` and `python_variable_indexing.h` of torch 2.13.0 and 2.15.0, and compared
with the binding.
"""

from collections.abc import Sequence
from typing import Any

import torch

from foretrace import torch_api
from foretrace.operators.indexing.binding import fills
from foretrace.operators.indexing.parts import (
    MASKS,
    Walk,
    integer,
    is_integer,
    selected,
    single,
    sliced,
    type_name,
    within,
    without_end,
)

aten = torch.ops.aten

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def get_item(tensor: torch.Tensor, index: Any) -> torch.Tensor:
    """The result of `tensor[index]`."""
    if is_integer(index):
        return selected(tensor, 0, integer(index), 0)
    if isinstance(index, slice):
        return sliced(tensor, 0, index, skip_whole=False)
    walk = Walk(tensor, index)
    if walk.indices:
        return aten.index.Tensor(walk.result, without_end(walk.indices))
    return aten.alias.default(tensor) if walk.result is tensor else walk.result


def set_item(tensor: torch.Tensor, index: Any, new: Any) -> None:
    """Do `tensor[index] = new`."""
    if str(tensor.layout).startswith("torch.sparse"):
        raise TypeError("Cannot assign to a sparse tensor")
    number = None if isinstance(new, torch.Tensor) else _number(new, tensor)
    filled = number is not None and fills()
    value = new if number is None or filled else _as_tensor(number, tensor)
    if index is False:
        return
    if filled:
        _set_number(tensor, index, number)
    else:
        on_cpu = value.device.type == "cpu" or _becomes_cpu_tensor(new, tensor)
        _set_tensor(tensor, index, value, on_cpu=on_cpu)


def _set_number(tensor: torch.Tensor, index: Any, number: Any) -> None:
    """From torch 2.15 on: the number becomes a tensor only where two tensors index."""
    if (target := single(tensor, index)) is not None:
        aten.fill_.Scalar(target, number)
        return
    walk = Walk(tensor, index, on_device=True)
    if not walk.indices:
        aten.fill_.Scalar(walk.result, number)
        return
    target = walk.result
    indices: list[Any] = without_end(walk.indices)
    if (mask := _only_mask(target, indices)) is not None:
        aten.masked_fill_.Scalar(target, mask, number)
    elif _only_places(target, indices):
        places = aten.view.default(indices[-1], [-1]) if indices[-1].dim() > 1 else indices[-1]
        aten.index_fill_.int_Scalar(target, len(indices) - 1, places, number)
    else:
        aten.index_put_.default(target, indices, _as_tensor(number, tensor))


def _set_tensor(tensor: torch.Tensor, index: Any, value: torch.Tensor, *, on_cpu: bool) -> None:
    if (target := single(tensor, index)) is not None:
        _write(target, value, on_cpu)
        return
    walk = Walk(tensor, index, on_device=fills() and _on_device(value, tensor))
    if not walk.indices:
        _write(walk.result, value, on_cpu)
        return
    shape = _without_leading_ones(value)
    if len(shape) < value.dim():
        value = aten.view.default(value, shape)
    aten.index_put_.default(walk.result, without_end(walk.indices), value)


# ----------------------------------------------------------------- a number, from torch 2.15 on


def _only_mask(target: torch.Tensor, indices: list[Any]) -> torch.Tensor | None:
    """The mask expanded to the dimensions, if one mask indexes: `canDispatchToMaskedFill`."""
    first = next(place for place, index in enumerate(indices) if index is not None)
    mask = indices[first]
    if mask.dtype not in MASKS or mask.device != target.device:
        return None
    _check_mask(mask, target, first)
    if len(indices) > first + 1:
        return None
    for _ in range(target.dim() - first - mask.dim()):
        mask = aten.unsqueeze.default(mask, -1)
    return mask


def _check_mask(mask: torch.Tensor, target: torch.Tensor, first: int) -> None:
    for dim, size in enumerate(mask.shape):
        if size != target.shape[first + dim]:
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {dim} does not match the shape "
                f"of the indexed tensor {list(target.shape)} at index {first + dim}"
            )


def _only_places(target: torch.Tensor, indices: list[Any]) -> bool:
    """Whether one tensor of integers alone indexes: `try_dispatch_index_fill_`, torch 2.15.0."""
    *before, places = indices
    if any(index is not None for index in before) or "float8" in str(target.dtype):
        return False
    here = places.dtype == torch.int64 and places.device == target.device
    return here and (places.dim() <= 1 or places.is_contiguous())


def _on_device(value: torch.Tensor, tensor: torch.Tensor) -> bool:
    """`allowsScalarIndexOnDevice` of torch 2.15.0, for a value that does not share its memory."""
    return not value.dim() and value.device == tensor.device and value.dtype == tensor.dtype


# ------------------------------------------------------------------------------------ writing


def _number(new: Any, tensor: torch.Tensor) -> Any:
    """The assigned number, as the binding takes it."""
    if is_integer(new) or isinstance(new, bool):
        return within(int(new))
    if isinstance(new, (float, complex, *SYMBOLIC)):
        return new
    raise TypeError(f"can't assign a {type_name(new)} to a {tensor.type()}")


def _as_tensor(number: Any, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that the binding writes for a Python number."""
    if _becomes_cpu_tensor(number, tensor):
        with torch_api.no_dispatch_modes():
            plain = aten.scalar_tensor.default(number, dtype=tensor.dtype)
        return aten.lift_fresh.default(plain)
    options = {"dtype": tensor.dtype, "layout": tensor.layout, "device": tensor.device}
    return aten.scalar_tensor.default(number, **options)


def _becomes_cpu_tensor(new: Any, tensor: torch.Tensor) -> bool:
    """Whether the new value is a number that the binding converts to a CPU tensor."""
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
