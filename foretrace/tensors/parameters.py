"""Abstract tensors that stand for parameters; their names and those of the others; deep copies."""

import copy
from typing import Any

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.tensors.abstract import OURS, Abstract
from foretrace.tensors.classes import AsParameter, go_by_name


class AbstractParameter(Abstract, metaclass=AsParameter):
    """One that stands for an `nn.Parameter`."""

    __slots__ = ()


go_by_name(Abstract, torch.Tensor)
go_by_name(AbstractParameter, torch.nn.Parameter)


def copied(tensor: Abstract, memo: dict[Any, Any]) -> Any:
    """As `Tensor.__deepcopy__` and that of `nn.Parameter`: a leaf with the same values.

    Raises:
        RuntimeError: it is no leaf, as in eager.
        Refusal: eager copies more memory than the tensor shows.
    """
    if id(tensor) in memo:
        return memo[id(tensor)]
    parameter = isinstance(tensor, AbstractParameter)
    if not (parameter or tensor.is_leaf):
        raise RuntimeError("only leaves of autograd can be deep-copied")
    if not parameter:
        _check_whole(tensor, memo)
    with torch.no_grad():
        made: Any = tensor.data.clone(memory_format=torch.preserve_format)
    memo[id(tensor)] = new = (
        torch.nn.Parameter(made, tensor.requires_grad)
        if parameter else made.requires_grad_(tensor.requires_grad)
    )  # fmt: skip
    if not parameter:
        if (grad := tensor.grad) is not None:
            new.grad = copy.deepcopy(grad, memo)
        own = {n: item for n, item in vars(tensor).items() if n not in OURS}
        vars(new).update(copy.deepcopy(own, memo))
    return new


def _check_whole(tensor: Abstract, memo: dict[Any, Any]) -> None:
    """Refuse what has memory with others, or more than it shows: eager copies all of it, once."""
    alias, count = tensor.ft_alias, tensor.numel()
    whole = alias is None or alias.parent is None
    if whole and tensor.ft_gradient is not None:
        gradients, index = tensor.ft_gradient
        room = tensor.ft_told.room(tensor, count, count)
        memory = torch_api.attribute_of(gradients.real[index], "untyped_storage")().data_ptr()
        whole = room == count and memo.setdefault(("memory", memory), tensor) is tensor
    if not whole:
        raise Refusal(
            "a deep copy of a tensor whose memory others have, too, or that shows a part of it",
            kind="unsupported", do="copy it by clone()",
        )  # fmt: skip


Abstract.__deepcopy__ = copied  # type: ignore[method-assign, assignment]
