"""Methods of an abstract tensor in place of those of `torch.Tensor`: refuse, cast, ask a layout.

To C++ an abstract tensor is dense. Source of the methods of sparse tensors:
aten/src/ATen/native/sparse/SparseTensor.cpp and SparseCsrTensor.cpp.
"""

from typing import Any, NoReturn

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.source.call_site import asking_line
from foretrace.operators.abstract_tensors.sparse_layouts import ROWS_AND_COLUMNS, Compressed

NEW: Any = torch.Tensor.new
SPARSE_DIM: Any = torch.Tensor.sparse_dim
DENSE_DIM: Any = torch.Tensor.dense_dim


def refused(name: str, what: str, kind: str, do: str) -> Any:
    """A method that refuses every call."""

    def method(self: torch.Tensor, *args: object, **kwargs: object) -> NoReturn:
        raise Refusal(f"tensor.{name} {what}", kind=kind, do=do)

    method.__name__ = name
    return method


def escaped(_: type, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
    """In the place of `__torch_dispatch__`: nobody records the call."""
    raise Refusal(
        f"{func} was called on an abstract tensor outside its capture",
        kind="escaped",
        at=asking_line(),
        do=(
            "return the tensor from the captured program, and use what a cut of it gives",
            "or, in a program that starts threads: compute in its own",
        ),
    )


def cast(name: str) -> Any:
    """The method of `torch.Tensor`, in whose place autocast uses no cached cast."""
    original = getattr(torch.Tensor, name)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], torch.Tensor):  # C++ would ask where its memory is
            args = args[0].device, args[0].dtype, *args[1:]
        self.ft_asked = True
        try:
            return original(self, *args, **kwargs)
        finally:
            self.ft_asked = False

    method.__name__ = name
    return method


def new(tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """As `Tensor.new`, of a sparse tensor too."""
    if not tensor.is_sparse:
        return NEW(tensor, *args, **kwargs)
    parts = args and isinstance(args[0], (torch.Tensor, torch.Size))
    return torch.sparse_coo_tensor(
        *(args if parts else [args or (0,)]), dtype=tensor.dtype, **kwargs
    )


def stored_count(tensor: Any) -> Any:
    """As `Tensor._nnz`: a symbolic size, which C++ would make a number."""
    if tensor.is_sparse:
        return torch.ops.aten._values.default(tensor).shape[0]
    described = _described(tensor)
    if isinstance(described, str):
        return tensor.values().shape[tensor.dim() - dense_dim(tensor) - ROWS_AND_COLUMNS]
    return torch_api.stored_count(tensor)


def sparse_dim(tensor: Any) -> int:
    """As `Tensor.sparse_dim`."""
    described = _described(tensor)
    if isinstance(described, str):
        return ROWS_AND_COLUMNS
    found: int = described or SPARSE_DIM(tensor)
    return found


def dense_dim(tensor: Any) -> int:
    """As `Tensor.dense_dim`."""
    described = _described(tensor)
    if isinstance(described, str):
        return Compressed.read(described).dense
    found: int = tensor.dim() - described if described else DENSE_DIM(tensor)
    return found


def _described(tensor: Any) -> int | str:
    """The description of its layout; 0 of a dense one."""
    described: int | str = tensor.ft_value.type.sparse if tensor.ft_value is not None else 0
    return described
