"""Abstract tensors on a device that is not here.

A device guard that does nothing serves their bindings (`torch_api.QUESTIONS`), but for two methods.
Source: torch/csrc/utils/tensor_new.cpp.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch

from foretrace import torch_api
from foretrace.operators.abstract_tensors.abstract_parameter import AbstractParameter
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.metaclass import AsParameter, AsTensor, copy_names

aten = torch.ops.aten


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


METHODS: Final[Mapping[str, Callable[..., Any]]] = MappingProxyType(
    {
        "new": _new,  # the binding asks for the device that is the current one
        "record_stream": lambda tensor, stream: None,  # memory is for one stream, which a graph is
    }
)
"""By name, what the method is of a tensor on a device that is not here"""


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
