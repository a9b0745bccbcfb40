"""Types of calls with sparse operands."""

from typing import Any

import torch

from foretrace.errors import Refusal
from foretrace.ir.values.tensor_type import Size, TensorType
from foretrace.ir.values.value import Tree
from foretrace.operators.inference.cpu_kernels import types_in

aten = torch.ops.aten
PLACES = frozenset({aten._indices.default, aten.indices.default})
STORED_IN_COO = PLACES | {aten._values.default, aten.values.default}
"""Operators that return what a tensor in COO layout stores"""


def reads_sparse(tree: Tree) -> bool:
    """Whether an operand, by its type, is sparse."""
    return any(type.sparse for type in types_in(tree))


def compressed_in(tree: Tree) -> bool:
    """Whether an operand is in a compressed layout."""
    return any(isinstance(type.sparse, str) for type in types_in(tree))


def stored_type(func: Any, type: TensorType, count: Size) -> TensorType:
    """The type of the indices or the values of a tensor in COO layout with `count` elements."""
    dims = int(type.sparse)
    if func in PLACES:
        return TensorType((dims, count), (), torch.int64, type.device).contiguous()
    return TensorType((count, *type.shape[dims:]), (), type.dtype, type.device).contiguous()


def no_derivative(func: Any) -> Refusal:
    """The refusal of a gradient through a call with a sparse operand."""
    return Refusal(
        f"no derivative: {func} reads a sparse tensor, and the gradient of an output needs one",
        kind="no derivative",
        do=(
            "compute with dense tensors on the way of a gradient",
            'or let autograd train another form: cut("export"), foretrace.compile',
        ),
    )
