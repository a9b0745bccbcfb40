"""Products whose kernel depends on whether an operand requires grad.

`matmul` of three or more dimensions by two is one `mm` over folded rows where the matrix requires
grad, also under `no_grad`; else, where the rows are not one block of memory, it is a `bmm`. A graph
writes `no_grad` as `detach` (decision 010), so a call of `matmul` would take the other one.
As should_fold in aten/src/ATen/native/LinearAlgebra.cpp; seen in the kernels that torch 2.13 calls.
"""

from typing import Final

import torch

from foretrace.ir.program.op import Op
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value

aten = torch.ops.aten
PRODUCTS: Final = frozenset(
    {
        aten.matmul.default,
        aten.linalg_matmul.default,
        aten.linear.default,
    }
)
MATRIX: Final = 2
"""Dimensions of one"""


def folded_for_grad(op: Op) -> bool:
    """Whether an op under `no_grad` is folded for the sole reason that an operand requires grad."""
    if op.target not in PRODUCTS:
        return False
    first, second = op.args[:2]
    assert isinstance(first, Value)
    assert isinstance(second, Value)
    swapped = len(first.type.shape) < len(second.type.shape)
    rows, matrix = (second, first) if swapped else (first, second)
    batched = len(rows.type.shape) > MATRIX >= len(matrix.type.shape)
    if not (batched and matrix.type.requires_grad):
        return False
    return len(first.type.shape) == MATRIX or not _one_block(rows.type)


def _one_block(rows: TensorType) -> bool:
    """Whether all dimensions but the last are steps of one size in memory."""
    shape, stride = rows.shape, rows.stride
    return all(stride[i] == stride[i + 1] * shape[i + 1] for i in range(len(shape) - 2))
