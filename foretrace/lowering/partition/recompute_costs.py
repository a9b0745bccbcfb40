"""Recomputation costs as data: which operators are cheap.

Cheap means: about the work of reading the operands and writing the results once. Matrix products,
convolutions, attention, embeddings, sorts and scans are not.
"""

from dataclasses import dataclass
from typing import Any

import torch


def _aten(names: str) -> frozenset[str]:
    return frozenset(f"aten::{name}" for name in names.split())


COPIES = _aten(
    "_to_copy copy cat stack repeat flip roll constant_pad_nd tril triu lift_fresh_copy index"
    " gather index_select slice_scatter select_scatter diagonal_scatter as_strided_scatter"
    " reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d repeat_interleave"
    " one_hot pixel_shuffle"
)
"""Each element of the result is a copy of one of the operand's, or of several operands'."""

FACTORIES = _aten(
    "arange full full_like zeros zeros_like ones ones_like empty empty_like empty_strided"
    " new_empty new_empty_strided new_full new_ones new_zeros scalar_tensor eye linspace"
)
"""Operators that take no tensor's elements."""

ROWWISE = _aten(
    "_softmax _safe_softmax _log_softmax native_layer_norm native_group_norm _fused_rms_norm"
    " logsumexp native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_functional"
    " _native_batch_norm_legit_no_training"
)
"""A sum over the operand, then a pointwise op: two passes over it."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Operators that are cheap to recompute: those with one of `tags`, and those named."""

    tags: frozenset[Any]
    names: frozenset[str]
    reading: int
    """A reduction is cheap where it reads at most this many times the bytes that it returns."""

    def cheap(self, target: Any) -> bool:
        """Whether the operator takes about as long as reading its operands."""
        name = str(target.name()).partition(".")[0]
        return name in self.names or not self.tags.isdisjoint(target.tags)


COSTS = Costs(
    frozenset({torch.Tag.pointwise, torch.Tag.reduction, torch.Tag.view_copy}),
    COPIES | FACTORIES | ROWWISE,
    reading=4,
)
"""The costs on every device: devices differ in times, which no policy weighs."""
