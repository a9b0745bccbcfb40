"""Sparse operands: torch's formulas ask for the layout, which stand-ins do not show."""

from typing import Any

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.op import Tree
from foretrace.ir.types import TensorType


def reads_sparse(tree: Tree) -> bool:
    """Whether an operand, given by type, is sparse."""
    return any(isinstance(t, TensorType) and t.sparse for t in torch_api.tree_leaves(tree))


def compressed_in(tree: Tree) -> bool:
    """Whether one is in a compressed layout."""
    leaves = torch_api.tree_leaves(tree)
    return any(isinstance(t, TensorType) and isinstance(t.sparse, str) for t in leaves)


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
