"""Types of calls with sparse operands."""

from typing import Any

import torch

from foretrace.errors import Refusal
from foretrace.ir.values.tensor_type import Size, TensorType
from foretrace.ir.values.value import Tree
from foretrace.operators.abstract_tensors.sparse_layouts import COMPRESSED, Compressed, of_layout
from foretrace.operators.inference.cpu_kernels import types_in

aten = torch.ops.aten
PLACES = frozenset({aten._indices.default, aten.indices.default})
CREATES_COMPRESSED = aten.sparse_compressed_tensor.comp_plain_value_size
SIZED_BY_PLACES = aten.sparse_compressed_tensor.comp_plain_value
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


def created_type(args: tuple[Tree, ...], kwargs: dict[str, Tree]) -> TensorType:
    """The type of `sparse_compressed_tensor(compressed_indices, plain_indices, values, size)`.

    Its meta kernel takes no values.

    Raises:
        Refusal: it is no compressed layout, its values are converted, or its blocks are symbolic.
    """
    places, _, values, size = args
    layout, dtype = kwargs.get("layout"), kwargs.get("dtype")
    batch, dense = len(places.shape) - 1, len(size) - len(places.shape) - 1
    block = values.shape[len(places.shape) : len(values.shape) - dense]
    plain = dtype in (None, values.dtype) and all(isinstance(each, int) for each in block)
    if layout not in COMPRESSED or not plain or min(batch, dense) < 0:
        raise of_layout(layout)
    described = str(Compressed(layout, places.dtype, tuple(block), dense))
    return (
        TensorType(tuple(size), (), values.dtype, values.device).contiguous().but(sparse=described)
    )


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
