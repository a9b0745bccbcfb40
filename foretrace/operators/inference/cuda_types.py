"""Types of leaves that CUDA has a kernel for, and torch no meta kernel that takes the call.

Source: Memory.cpp, LossCTC.cpp, cuda/LossCTC.cu, cuda/RNN.cu in aten/src/ATen/native, torch 2.13.
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


def _lstm_cell(gates: Any, of_hidden: Any, cell: Any, bias: Any = None, *_: Any) -> Tree | None:
    """Without a bias: torch's meta kernel asks it for its device (2.13 to 2.15)."""
    known = cell.contiguous(), cell.contiguous(), gates.contiguous()
    return known if bias is None else None


TYPES: Final[Mapping[Any, Callable[..., Tree | None]]] = MappingProxyType(
    {
        aten._ctc_loss_backward.default: lambda grad, log_probs, *_: log_probs.contiguous(),
        aten._ctc_loss_backward.Tensor: lambda grad, log_probs, *_: log_probs.contiguous(),
        aten._pin_memory.default: lambda tensor, *_: tensor.contiguous(),
        aten._thnn_fused_gru_cell.default: _gru_cell,
        aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
        aten._thnn_fused_lstm_cell.default: _lstm_cell,
    }
)
"""By operator, the types of the results of a call"""


def of_cuda(func: Any, args: Tree) -> Tree | None:
    """The types of a call's results; None where torch has to be asked."""
    known = TYPES.get(func)
    return None if known is None else known(*args)
