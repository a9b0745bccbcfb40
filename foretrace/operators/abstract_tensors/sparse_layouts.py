"""Sparse layouts as a part of a type, without how much a tensor stores.

The description of a COO layout is the number of sparse dimensions. That of a compressed layout is a
text: the layout, the dtype of the indices, the sizes of a block, and the number of dense dimensions
where there are any. Dimensions before the two sparse ones are those of a batch.
"""

import re
from types import MappingProxyType
from typing import NamedTuple, Self

import torch

from foretrace.errors import Refusal

Sparse = int | str
"""The description; 0 of a dense tensor"""
COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
SPARSE = (torch.sparse_coo, *COMPRESSED)
OF_ROWS = (torch.sparse_csr, torch.sparse_bsr)
ROWS_AND_COLUMNS = 2
NAMES = MappingProxyType({str(layout).removeprefix("torch."): layout for layout in COMPRESSED})
INDICES = MappingProxyType({"int32": torch.int32, "int64": torch.int64})
DESCRIPTION = re.compile(
    r"(?P<name>sparse_(?:cs|(?P<blocks>bs))[rc]) (?P<index>int32|int64)"
    r"(?P<block>(?(blocks) [1-9]\d* [1-9]\d*))(?: dense=(?P<dense>[1-9]\d*))?"
)


def sparse_of(tensor: torch.Tensor) -> Sparse:
    """The description of a tensor's layout.

    Raises:
        Refusal: the layout is not supported.
    """
    layout = tensor.layout
    if layout is torch.strided:
        return 0
    dims = tensor.sparse_dim() if layout is torch.sparse_coo else 0
    if dims:
        return dims
    if layout not in COMPRESSED:  # or of no sparse dimension: the description of a dense one
        raise of_layout(layout)
    places = tensor.crow_indices() if layout in OF_ROWS else tensor.ccol_indices()
    stored = tensor.values().shape[places.dim() :]
    dense = tensor.dense_dim()
    return str(Compressed(layout, places.dtype, tuple(stored[: len(stored) - dense]), dense))


class Compressed(NamedTuple):
    """A compressed layout: its name, the dtype of its indices, the block, how many dense dims."""

    layout: torch.layout
    places: torch.dtype
    block: tuple[int, ...]
    dense: int

    def __str__(self) -> str:
        """The description in a type."""
        names = (str(part).removeprefix("torch.") for part in (self.layout, self.places))
        dense = (f"dense={self.dense}",) if self.dense else ()
        return " ".join((*names, *map(str, self.block), *dense))

    @classmethod
    def read(cls, description: str) -> Self:
        """What a description says.

        Raises:
            ValueError: it describes no layout.
        """
        match = DESCRIPTION.fullmatch(description)
        if match is None:
            raise ValueError(description)
        block = tuple(map(int, match["block"].split()))
        return cls(NAMES[match["name"]], INDICES[match["index"]], block, int(match["dense"] or 0))


def is_layout_description(item: object) -> bool:
    """Whether an item describes a layout."""
    if type(item) is not str:
        return type(item) is int
    return DESCRIPTION.fullmatch(item) is not None


def has_blocks(sparse: Sparse) -> bool:
    """Whether the layout stores blocks, which not every size can have."""
    return isinstance(sparse, str) and bool(Compressed.read(sparse).block)


def layout_of(sparse: Sparse) -> torch.layout:
    """The layout that is described."""
    if isinstance(sparse, str):
        return Compressed.read(sparse).layout
    return torch.sparse_coo if sparse else torch.strided


def compressed(
    sparse: str, shape: tuple[int, ...], dtype: torch.dtype, *, whole: bool, device: str = "cpu"
) -> torch.Tensor:
    """A tensor of a compressed layout that stores nothing, or every element."""
    layout, places, block, dense = Compressed.read(sparse)
    first = len(shape) - ROWS_AND_COLUMNS - dense
    batch, elements = shape[:first], shape[len(shape) - dense :]
    matrix = shape[first : first + ROWS_AND_COLUMNS]
    rows, columns = (size // each for size, each in zip(matrix, block or (1, 1), strict=True))
    lines, across = (rows, columns) if layout in OF_ROWS else (columns, rows)
    across *= whole
    starts = torch.arange(lines + 1, dtype=places, device=device) * across
    others = torch.arange(across, dtype=places, device=device).repeat(lines)
    return torch.sparse_compressed_tensor(
        starts.expand(*batch, -1).contiguous(),
        others.expand(*batch, -1).contiguous(),
        torch.ones((*batch, lines * across, *block, *elements), dtype=dtype, device=device),
        shape,
        layout=layout,
        check_invariants=False,
    )


def of_layout(layout: torch.layout) -> Refusal:
    """The refusal of a program that creates a tensor of an unsupported layout."""
    return Refusal(
        f"the program makes, or is given, a tensor of layout {layout}"
        + " without sparse dimensions" * (layout is torch.sparse_coo),
        kind="unsupported tensor",
        do="compute with dense tensors, or with sparse ones, inside of the captured program",
    )
