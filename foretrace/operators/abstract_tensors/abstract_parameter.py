"""Abstract tensors in place of parameters; deep copies of abstract tensors."""

import copy
from typing import Any

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.values.tensor_type import TensorType
from foretrace.operators.abstract_tensors.abstract_tensor import OURS, Abstract
from foretrace.operators.abstract_tensors.metaclass import AsParameter, copy_names


class AbstractParameter(Abstract, metaclass=AsParameter):
    """An abstract tensor in place of an `nn.Parameter`."""

    __slots__ = ()


copy_names(Abstract, torch.Tensor)
copy_names(AbstractParameter, torch.nn.Parameter)


def copied(tensor: Abstract, memo: dict[Any, Any]) -> Any:
    """`__deepcopy__` of `Tensor` and `nn.Parameter`: a leaf with the same values.

    Raises:
        RuntimeError: it is no leaf, as in eager.
        NotImplementedError: it is sparse, and not in COO, as in eager.
        Refusal: eager copies memory that is not the tensor's.
    """
    if id(tensor) in memo:
        return memo[id(tensor)]
    if tensor.layout not in {torch.strided, torch.sparse_coo}:
        raise NotImplementedError("Cannot access storage of a compressed sparse tensor")
    parameter = isinstance(tensor, AbstractParameter)
    if not (parameter or tensor.is_leaf):
        raise RuntimeError("only leaves of autograd can be deep-copied")
    sparse = tensor.layout is torch.sparse_coo
    if not (parameter or sparse):
        _check_whole(tensor, memo)
    layout = {} if sparse else {"memory_format": torch.preserve_format}
    with torch.no_grad():
        data: Any = tensor.data.clone(**layout)
    memo[id(tensor)] = new = (
        torch.nn.Parameter(data, tensor.requires_grad)
        if parameter
        else data.requires_grad_(tensor.requires_grad)
    )
    if not parameter:
        _copy_attributes(tensor, new, memo)
    return new


def _copy_attributes(tensor: Abstract, new: Any, memo: dict[Any, Any]) -> None:
    """Copy `.grad` and attributes, of which torch copies none for a parameter."""
    if (grad := tensor.grad) is not None:
        new.grad = copy.deepcopy(grad, memo)
    own = {n: item for n, item in vars(tensor).items() if n not in OURS}
    vars(new).update(copy.deepcopy(own, memo))


def _check_whole(tensor: Abstract, memo: dict[Any, Any]) -> None:
    """Refuse a view of a part of its memory, and a second tensor with memory that is copied.

    Eager copies all of a storage, once for one call of `deepcopy`.
    """
    alias = tensor.ft_alias
    owner = tensor if alias is None else alias.root.tensor()
    value: Any = tensor.ft_value if alias is None else alias.last
    type: TensorType = value.type
    whole = _all_of(type, type if alias is None else alias.root.last.type)
    memory: Any = id(tensor if alias is None else alias.root)
    if whole and owner is not None and owner.ft_gradient is not None:
        gradients, index = owner.ft_gradient
        count = owner.numel()
        real = gradients.inputs.real[index]
        memory = torch_api.attribute_of(real, "untyped_storage")().data_ptr()
        whole = owner.ft_queries.answers.storage_size(owner, count, count) == count
    if not whole or memo.setdefault(("memory", memory), tensor) is not tensor:
        raise Refusal(
            "a deep copy of a tensor that shows a part of its memory, or whose memory another has"
            " that is copied, too",
            kind="unsupported",
            do="copy it by clone()",
        )


def _all_of(type: TensorType, owner: TensorType) -> bool:
    """Whether a view, or the owner itself, has each element of its memory once."""
    if type.symbols or owner.symbols:  # a symbolic stride is that of an operator's result
        return type is owner
    return type.numel == owner.numel and all(map(_dense, (type, owner)))


def _dense(type: TensorType) -> bool:
    return torch_api.is_dense(*type.shape, *type.stride) == 1


Abstract.__deepcopy__ = copied  # type: ignore[method-assign, assignment]
