"""The derivative of packing sequences: torch's formula reads how many rows each step has.

Source: _pack_padded_sequence_backward in aten/src/ATen/native/PackedSequence.cpp.
"""

from typing import Any

import torch

from foretrace.autograd.derivatives.registry import BackwardCall, Registered

aten = torch.ops.aten


def pack_backward(call: BackwardCall) -> tuple[Any, ...]:
    """Each packed row's gradient at its step and place in the batch; zeros elsewhere.

    Rows are packed step by step, which is the order in which `masked_scatter` takes them.
    """
    x, _, batch_first = call.args
    grad, (_, rows) = call.gradient, call.results
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    rows = aten.constant_pad_nd.default(rows, [0, steps - rows.shape[0]])
    there = torch.arange(batch, device=rows.device) < rows.unsqueeze(1)
    there = there.to(grad.device).view([steps, batch, *[1] * (x.dim() - 2)])
    found = grad.new_zeros([steps, batch, *x.shape[2:]]).masked_scatter(there, grad)
    return found.transpose(0, 1) if batch_first else found, None


PACKED_RULES: dict[Any, Registered] = {
    aten._pack_padded_sequence.default: Registered(
        pack_backward, "PackPaddedSequenceBackward0", frozenset({1})
    ),
}
