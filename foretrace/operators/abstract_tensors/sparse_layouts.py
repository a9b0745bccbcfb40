"""Sparse layouts as a part of a type, without how much a tensor stores.

The description of a COO layout is the number of sparse dimensions. That of a compressed layout is a
text: the layout, the dtype of the indices, and the sizes of a block.
"""

from types import MappingProxyType

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


def sparse_of(tensor: torch.Tensor) -> Sparse:
    """The description of a tensor's layout.

    Raises:
        Refusal: the layout is not supported.
    """
    layout = tensor.layout
    if layout is torch.strided:
        return 0
    if layout is torch.sparse_coo:
        return tensor.sparse_dim()
    if not is_compressed(tensor):
        raise of_layout(layout)
    places = tensor.crow_indices() if layout in OF_ROWS else tensor.ccol_indices()
    block = tensor.values().shape[1:]
    return " ".join(str(part).removeprefix("torch.") for part in (layout, places.dtype, *block))


def is_compressed(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a matrix of numbers in a compressed layout."""
    dims = tensor.dim(), tensor.dense_dim() if tensor.layout in COMPRESSED else None
    return dims == (ROWS_AND_COLUMNS, 0)


def is_layout_description(item: object) -> bool:
    """Whether an item describes a layout."""
    if type(item) is not str:
        return type(item) is int
    name, index, *block = [*item.split(), "", ""][: max(ROWS_AND_COLUMNS, len(item.split()))]
    sizes = all(size.isdecimal() and int(size) > 0 for size in block)
    blocks = name in NAMES and len(block) == 2 * (NAMES[name] in COMPRESSED[2:])
    return blocks and index in INDICES and sizes


def has_blocks(sparse: Sparse) -> bool:
    """Whether the layout stores blocks, which not every size can have."""
    return isinstance(sparse, str) and NAMES[sparse.split()[0]] in COMPRESSED[2:]


def layout_of(sparse: Sparse) -> torch.layout:
    """The layout that is described."""
    if isinstance(sparse, str):
        return NAMES[sparse.split()[0]]
    return torch.sparse_coo if sparse else torch.strided


def compressed(
    sparse: str, shape: tuple[int, ...], dtype: torch.dtype, *, whole: bool, device: str = "cpu"
) -> torch.Tensor:
    """A tensor of a compressed layout that stores nothing, or every element."""
    name, index, *block = sparse.split()
    layout, sizes = NAMES[name], tuple(map(int, block)) or (1, 1)
    rows, columns = (size // each for size, each in zip(shape, sizes, strict=True))
    lines, across = (rows, columns) if layout in OF_ROWS else (columns, rows)
    across *= whole
    places = INDICES[index]
    return torch.sparse_compressed_tensor(
        torch.arange(lines + 1, dtype=places, device=device) * across,
        torch.arange(across, dtype=places, device=device).repeat(lines),
        torch.ones((lines * across, *map(int, block)), dtype=dtype, device=device),
        shape,
        layout=layout,
        check_invariants=False,
    )


def of_layout(layout: torch.layout) -> Refusal:
    """The refusal of a program that creates a tensor of an unsupported layout."""
    return Refusal(
        f"the program makes a tensor of layout {layout}",
        kind="unsupported tensor",
        do="compute with dense tensors, or in torch.sparse_coo, inside of the captured program",
    )
