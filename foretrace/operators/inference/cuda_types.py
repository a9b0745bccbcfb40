"""Types of leaves that only CUDA has a kernel for, and torch no meta kernel.

Source: Memory.cpp and cuda/RNN.cu in aten/src/ATen/native, torch 2.13.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import torch

from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree

aten = torch.ops.aten

GATES, KEPT = 3, 5
"""How many times the hidden size a GRU cell computes for its gates, and keeps for its backward"""


def _wider(type: TensorType, times: int) -> TensorType:
    rows, size = type.shape
    return type.but(shape=(rows, size * times), stride=(size * times, 1), offset=0)


def _gru_cell(gates: TensorType, of_hidden: TensorType, hidden: TensorType, *_: Any) -> Tree:
    return hidden.contiguous(), _wider(hidden.contiguous(), KEPT)


def _gru_cell_backward(slope: TensorType, kept: TensorType, has_bias: bool) -> Tree:
    gates = _wider(slope.contiguous(), GATES)
    bias = TensorType(gates.shape[1:], (1,), gates.dtype, gates.device) if has_bias else None
    return gates, gates, slope.contiguous(), bias, bias


TYPES: Final[Mapping[Any, Callable[..., Tree]]] = MappingProxyType(
    {
        aten._pin_memory.default: lambda tensor, *_: tensor.contiguous(),
        aten._thnn_fused_gru_cell.default: _gru_cell,
        aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
    }
)
"""By operator, the types of the results of a call"""


def of_cuda(func: Any, args: Tree) -> Tree | None:
    """The types of a call's results; None where torch has to be asked."""
    known = TYPES.get(func)
    return None if known is None else known(*args)
