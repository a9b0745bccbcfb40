"""Types of calls with sparse operands."""

from typing import Any

import torch

from foretrace.errors import Refusal
from foretrace.ir.values.tensor_type import Size, TensorType
from foretrace.ir.values.value import Tree
from foretrace.operators.abstract_tensors.sparse_layouts import (
    Compressed,
    is_layout_description,
)
from foretrace.operators.inference.cpu_kernels import depends_on_data, types_in
from foretrace.operators.schemas.schema import schema_of

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


def created(func: Any, args: Tree, kwargs: dict[str, Tree]) -> TensorType | None:
    """The type of a compressed tensor by its constructor, whose meta kernel takes no values.

    None for another operator.

    Raises:
        Refusal: its size follows from data, its values are converted, or they do not fit the size
            and the layout.
    """
    if func is SIZED_BY_PLACES:
        raise depends_on_data(func)
    if func is not CREATES_COMPRESSED:
        return None
    named = schema_of(func).bind(args, kwargs)
    places, values, size = (named[name] for name in ("compressed_indices", "values", "size"))
    layout, dtype = named.get("layout") or torch.strided, named.get("dtype")
    batch, dense = len(places.shape) - 1, len(size) - len(places.shape) - 1
    block = values.shape[len(places.shape) : len(values.shape) - dense]
    plain = dtype in (None, values.dtype) and all(isinstance(each, int) for each in block)
    described = str(Compressed(layout, places.dtype, tuple(block), dense))
    if not plain or min(batch, dense) < 0 or not is_layout_description(described):
        raise _unfit(layout)
    whole = TensorType(tuple(size), (), values.dtype, values.device).contiguous()
    return whole.but(sparse=described)


def _unfit(layout: torch.layout) -> Refusal:
    return Refusal(
        f"the program puts a tensor of layout {layout} together of indices and values that do not"
        " fit it, or its dtype",
        kind="unsupported tensor",
        do=(
            "use indices of int32 or int64, and a number or a block of fixed size for each place",
            "or put it together outside of the captured program, and pass it",
        ),
    )
