"""Sparse operands: torch's formulas ask for the layout, which stand-ins do not show."""

from typing import Any

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.op import Tree
from foretrace.ir.program.tensor_type import Size, TensorType

aten = torch.ops.aten
PLACES = frozenset({aten._indices.default, aten.indices.default})
STORED_IN_COO = PLACES | {aten._values.default, aten.values.default}
"""Views of what a tensor in COO layout stores"""


def reads_sparse(tree: Tree) -> bool:
    """Whether an operand, given by type, is sparse."""
    return any(isinstance(t, TensorType) and t.sparse for t in torch_api.tree_leaves(tree))


def compressed_in(tree: Tree) -> bool:
    """Whether one is in a compressed layout."""
    leaves = torch_api.tree_leaves(tree)
    return any(isinstance(t, TensorType) and isinstance(t.sparse, str) for t in leaves)


def stored_type(func: Any, type: TensorType, count: Size) -> TensorType:
    """The type of what one in COO layout stores: of `count` elements, the places or the values."""
    dims = int(type.sparse)
    if func in PLACES:
        return TensorType((dims, count), (), torch.int64, type.device).contiguous()
    return TensorType((count, *type.shape[dims:]), (), type.dtype, type.device).contiguous()


def no_derivative(func: Any) -> Refusal:
    """The refusal of a gradient that goes through a call with a sparse operand."""
    return Refusal(
        f"no derivative: {func} reads a sparse tensor, and the gradient of an output needs one",
        kind="no derivative",
        do=(
            "compute with dense tensors on the way of a gradient",
            'or let autograd train another form: cut("export"), foretrace.compile',
        ),
    )
