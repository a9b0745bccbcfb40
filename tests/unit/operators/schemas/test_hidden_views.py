"""Operators whose results share memory though their schema does not say so."""

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import foretrace
from foretrace.operators.schemas.quirks import HIDDEN_VIEWS

SAMPLES = 8


def memory(tree: object) -> Iterator[int]:
    for leaf in tree_leaves(tree):
        plain = isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided
        if plain and leaf.untyped_storage().nbytes():
            yield leaf.untyped_storage().data_ptr()


class Sharing(TorchDispatchMode):
    """Notes each operator that gives memory of an operand, or one memory twice, without a word."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = set(memory((args, kwargs)))
        result = func(*args, **(kwargs or {}))
        made = list(memory(result))
        if not any(r.alias_info for r in func._schema.returns) and (
            len(set(made)) < len(made) or not given.isdisjoint(made)
        ):
            self.found.add(func.name())
        return result


def run_all(dtype: torch.dtype, noted: Sharing) -> int:
    ran = 0
    for op in op_db:
        if dtype not in op.dtypes or "jiterator" in op.name:  # needs a GPU
            continue
        for sample in itertools.islice(op.sample_inputs("cpu", dtype), SAMPLES):
            with noted:
                op(sample.input, *sample.args, **sample.kwargs)
            ran += 1
    return ran


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64, torch.int64])
def test_every_operator_that_shares_memory_is_known(dtype: torch.dtype) -> None:
    noted = Sharing()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run_all(dtype, noted) > 1000
    assert noted.found
    assert noted.found <= set(HIDDEN_VIEWS.operators)


def test_parts_beside_each_other_are_written_alone() -> None:
    """A graph has no more for them than for tensors of their own."""

    def parts(x: Tensor) -> Tensor:
        first, second = (x * 2).unsafe_chunk(2)
        return first.mul_(3) + second.mul_(4)

    for cut in ("aten", "export"):
        nodes = foretrace.capture(parts, (torch.randn(4, 3, requires_grad=True),)).cut(cut).nodes
        assert not any("scatter" in node or "put" in node[:3] for node in nodes)
