"""Abstract tensors on a device that is not here.

The binding of some methods takes a guard of the tensor's device, and raises where torch has none:
here these methods are the operators that they call. Source: `OptionalDeviceGuard` in
tools/autograd/templates/python_variable_methods.cpp; torch/csrc/utils/tensor_new.cpp.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch

from foretrace import torch_api
from foretrace.operators.abstract_tensors.abstract_parameter import AbstractParameter
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.metaclass import AsParameter, AsTensor, copy_names
from foretrace.operators.indexing.items import get_item, set_item

aten = torch.ops.aten


def _get_item(tensor: Any, index: Any) -> Any:
    if torch_api.function_modes():  # they see it before the binding takes its guard
        return torch_api.attribute_of(tensor, "__getitem__")(index)
    return get_item(tensor, index)


def _copy(tensor: Any, other: Any, non_blocking: bool = False) -> Any:
    if isinstance(other, torch.Tensor):
        return aten.copy_.default(tensor, other, non_blocking)
    return aten.fill_.Scalar(tensor, other)


def _nonzero(tensor: Any, *, as_tuple: bool = False) -> Any:
    return tuple(aten.nonzero_numpy.default(tensor)) if as_tuple else aten.nonzero.default(tensor)


def _new_tensor(
    tensor: Any,
    data: Any,
    *,
    dtype: torch.dtype | None = None,
    device: Any = None,
    requires_grad: bool = False,
    **_: Any,
) -> Any:
    options: Any = {"dtype": dtype or tensor.dtype, "device": device or tensor.device}
    return torch.tensor(data, **options, requires_grad=requires_grad)


def _new_sparse(args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    sparse, options = aten.sparse_coo_tensor, {**options, "layout": torch.sparse_coo}
    options["pin_memory"] = False
    if not (args and isinstance(args[0], torch.Tensor)):
        size = args[0] if args and isinstance(args[0], torch.Size) else args or (0,)
        return sparse.size([*size], **options)
    create = sparse.indices if len(args) == 2 else sparse.indices_size  # noqa: PLR2004
    return create(*args, **options)


def _new(tensor: Any, *args: Any, device: Any = None) -> Any:
    options: Any = {"dtype": tensor.dtype, "device": device or tensor.device}
    if tensor.is_sparse:
        return _new_sparse(args, options)
    one = args[0] if len(args) == 1 else None
    if isinstance(one, torch.Tensor):
        return aten.alias.default(one)
    if one is None or isinstance(one, torch.Size | int | torch.SymInt):
        size = [*one] if isinstance(one, torch.Size) else [*args] or [0]
        return aten.empty.memory_format(size, layout=torch.strided, **options)
    return torch.as_tensor(one, **options)


def _index(tensor: Any) -> int:
    whole = not (tensor.dtype.is_floating_point or tensor.dtype.is_complex)
    if not whole or tensor.numel() != 1:
        raise TypeError("only integer tensors of a single element can be converted to an index")
    return int(tensor.item())


METHODS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        "__getitem__": _get_item,
        "__setitem__": set_item,
        "__invert__": Abstract.__invert__,
        "contiguous": Abstract.contiguous,
        "copy_": _copy,
        "nonzero": _nonzero,
        "new_tensor": _new_tensor,
        "new": _new,
        "record_stream": lambda tensor, stream: None,  # memory is for one stream, which a graph is
        "__int__": lambda tensor: int(tensor.item()),
        "__float__": lambda tensor: float(tensor.item()),
        "__complex__": lambda tensor: complex(tensor.item()),
        "__index__": _index,
    }
)
"""By name, what the method is of a tensor on a device that is not here"""


def nonzero(input: Any, *, as_tuple: bool = False, **out: Any) -> Any:
    """As `torch.nonzero`, whose binding takes such a guard, too."""
    return input.nonzero(as_tuple=as_tuple, **out)


class Absent(Abstract, metaclass=AsTensor):
    """An abstract tensor on a device that is not here."""

    __slots__ = ()


class AbsentParameter(AbstractParameter, metaclass=AsParameter):
    """The same in place of an `nn.Parameter`."""

    __slots__ = ()


for _class, _like in ((Absent, torch.Tensor), (AbsentParameter, torch.nn.Parameter)):
    copy_names(_class, _like)
    for _name, _method in METHODS.items():
        setattr(_class, _name, _method)


def as_parameter(tensor: Abstract) -> None:
    """Make an abstract tensor stand for an `nn.Parameter`."""
    torch_api.mark_parameter(tensor)
    tensor.__class__ = AbsentParameter if tensor.ft_absent else AbstractParameter
