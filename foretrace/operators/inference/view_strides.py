"""Sizes and strides of a view of what is contiguous, where sizes are open.

Torch's kernel splits and joins one dimension after another. It finds `h // (h // 4)` in the place
of the 4 that was asked for; later sizes derive from such, and each question about them is a larger
one. Here a size that is asked for is that size, and that the elements are as many is asked once.
Source: computeStride in aten/src/ATen/TensorUtils.cpp; _reshape_view_helper in torch/_refs.
"""

from collections.abc import Iterable, Sequence
from functools import reduce
from operator import mul
from typing import Any

import sympy

from foretrace import torch_api
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.symbols.substitution import Size, plain
from foretrace.ir.symbols.symbols import Symbols

INFERRED = -1
"""The size of a view that follows from the others"""


def viewed(
    symbols: Symbols, shape: Sequence[Size], stride: Sequence[Size], wanted: Sequence[Size]
) -> tuple[tuple[Size, ...], tuple[Size, ...]] | None:
    """Sizes and strides of the view with the wanted sizes; None: torch is to be asked.

    Args:
        symbols: what is known of the sizes; it is asked whether the view has as many elements.
        shape: sizes of what is viewed.
        stride: its strides.
        wanted: sizes of the view; one of them may be -1.
    """
    inferred = [size for size in wanted if size == INFERRED]
    data = symbols.data
    if len(inferred) > 1 or (data and data & free_symbols((shape, wanted))):
        return None
    if tuple(stride) != in_order(symbols, shape):
        return None
    numel, rest = _product(shape), _product(size for size in wanted if size != INFERRED)
    for size in wanted:
        if size != INFERRED and not _holds(symbols, sympy.Ge(size, 0)):
            return None
    sizes = tuple(wanted)
    if inferred:
        if not (_holds(symbols, sympy.Ne(rest, 0)) and _divides(symbols, rest, numel)):
            return None
        found = plain(symbols.simplify(torch_api.FloorDiv(numel, rest)))
        sizes = tuple(found if size == INFERRED else size for size in wanted)
    elif not _holds(symbols, sympy.Eq(numel, rest)):
        return None
    return sizes, in_order(symbols, sizes)


def in_order(symbols: Symbols, shape: Iterable[Size]) -> tuple[Size, ...]:
    """The strides of a contiguous tensor, as torch has them."""
    numbers = tuple(map(symbols.number, shape))
    return symbols.sizes(torch_api.contiguous_strides(numbers))


def _divides(symbols: Symbols, rest: Any, numel: Any) -> bool:
    return _holds(symbols, sympy.Eq(torch_api.Mod(numel, rest), 0))


def _product(sizes: Iterable[Size]) -> Any:
    return reduce(mul, sizes, sympy.S.One)


def _holds(symbols: Symbols, relation: Any) -> bool:
    return bool(relation) if relation in (True, False) else symbols.decide(relation)
