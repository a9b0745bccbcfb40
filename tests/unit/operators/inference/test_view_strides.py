"""Views of contiguous tensors: sizes and strides as torch has them."""

from typing import Any

import pytest
import torch

from foretrace.ir.symbols.symbols import Symbols
from foretrace.operators.inference.view_strides import in_order, viewed

SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((4, 6), (24,)), ((4, 6), (2, 2, 6)), ((4, 6), (-1, 3)), ((1, 6), (6, 1)), ((0, 3), (3, 0)),
    ((2, 3, 4), (6, -1)), ((), (1, 1)), ((5,), (5, -1)),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "wanted"), SHAPES)
def test_numbers_are_those_of_torch(shape: Any, wanted: Any) -> None:
    tensor = torch.empty(shape)
    eager = tensor.view(wanted)
    found = viewed(Symbols(), shape, tensor.stride(), wanted)
    assert found == (tuple(eager.shape), eager.stride())


@pytest.mark.parametrize(
    ("shape", "stride", "wanted"),
    [
        ((4, 6), (1, 4), (24,)),  # not in order
        ((4, 6), (6, 1), (-1, -1)),  # two sizes to infer
        ((4, 6), (6, 1), (5, 5)),  # another number of elements
        ((4, 6), (6, 1), (-2, 12)),
        ((0, 3), (3, 1), (0, -1)),  # any size would do
    ],
)
def test_torch_is_asked(shape: Any, stride: Any, wanted: Any) -> None:
    assert viewed(Symbols(), shape, stride, wanted) is None


@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4), (0, 3), (1, 0, 2), (1, 1)])
def test_strides_in_order(shape: Any) -> None:
    assert in_order(Symbols(), shape) == torch.empty(shape).stride()
