"""What computing a value again costs, as data: which operators are cheap.

Cheap means: about the work of reading the operands and writing the results once. Matrix products,
convolutions, attention, embeddings, sorts and scans are not.
"""

from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten

COPIES = frozenset({
    "aten::_to_copy", "aten::copy", "aten::cat", "aten::stack", "aten::repeat", "aten::flip",
    "aten::roll", "aten::constant_pad_nd", "aten::tril", "aten::triu", "aten::lift_fresh_copy",
    "aten::index", "aten::gather", "aten::index_select", "aten::slice_scatter",
    "aten::select_scatter", "aten::diagonal_scatter", "aten::as_strided_scatter",
    "aten::reflection_pad1d", "aten::reflection_pad2d", "aten::replication_pad1d",
    "aten::replication_pad2d", "aten::repeat_interleave", "aten::one_hot", "aten::pixel_shuffle",
})  # fmt: skip
"""Each element of the result is a copy of one of the operand's, or of several operands'."""

MADE = frozenset({
    "aten::arange", "aten::full", "aten::full_like", "aten::zeros", "aten::zeros_like",
    "aten::ones", "aten::ones_like", "aten::empty", "aten::empty_like", "aten::empty_strided",
    "aten::new_empty", "aten::new_empty_strided", "aten::new_full", "aten::new_ones",
    "aten::new_zeros", "aten::scalar_tensor", "aten::eye", "aten::linspace",
})  # fmt: skip
"""Results made of numbers alone."""

ROWWISE = frozenset({
    "aten::_softmax", "aten::_safe_softmax", "aten::_log_softmax",
    "aten::native_layer_norm", "aten::native_group_norm",
    "aten::_fused_rms_norm", "aten::logsumexp",
    "aten::native_batch_norm", "aten::_native_batch_norm_legit",
    "aten::_native_batch_norm_legit_functional", "aten::_native_batch_norm_legit_no_training",
})  # fmt: skip
"""A sum over the operand, then a pointwise op: two passes over it."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Which operators are cheap to run again: those with one of `tags`, and those named."""

    tags: frozenset[Any]
    names: frozenset[str]
    reading: int
    """A reduction is cheap where it reads at most this many times the bytes that it gives."""

    def cheap(self, target: Any) -> bool:
        """Whether running the operator again is about the work of reading what it reads."""
        name = str(target.name()).partition(".")[0]
        return name in self.names or not self.tags.isdisjoint(target.tags)


COSTS = Costs(
    frozenset({torch.Tag.pointwise, torch.Tag.reduction, torch.Tag.view_copy}),
    COPIES | MADE | ROWWISE,
    reading=4,
)
"""The same for every device so far: what differs is by how much, and no policy weighs time."""
