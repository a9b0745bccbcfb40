"""What a program asks of a tensor's layout, and what torch asks that looks for open sizes only."""

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

import foretrace


def looks_for_sizes(x: Tensor) -> Tensor:
    assert not has_free_unbacked_symbols(x)
    return x.sin()


def asks_where_it_begins(x: Tensor) -> Tensor:
    return x.sin() + x.storage_offset()


def asks_for_strides(x: Tensor) -> Tensor:
    return x.sin() + x.stride()[0]


@pytest.mark.parametrize(
    ("fn", "offset", "strides"),
    [
        (looks_for_sizes, False, False),
        (asks_where_it_begins, True, False),
        (asks_for_strides, False, True),
    ],
)
def test_what_counts_as_a_question(fn: object, offset: bool, strides: bool) -> None:
    requires = foretrace.capture(fn, (torch.ones(3, 2),)).recorded.requires
    assert bool(requires.inputs.begins) == offset
    assert bool(requires.asks_strides) == strides
