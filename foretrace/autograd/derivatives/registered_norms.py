"""Backward rules of fused normalisations that this build has no kernel for."""

from typing import Any

import torch

from foretrace.autograd.derivatives.registry import BackwardCall, Registered


def fused_rms_norm_backward(call: BackwardCall) -> tuple[Any, ...]:
    """The gradient of `_fused_rms_norm`, as derivatives.yaml of torch 2.13 states it.

    Only builds with a kernel for it follow that line; a CPU build opens the op above autograd.
    """
    x, shape, weight, *_ = call.args
    grad, (_, rstd) = call.gradient, call.results
    mask = [call.needs[0], len(call.needs) > 1 and call.needs[1]]
    grads = torch.ops.aten._fused_rms_norm_backward.default(grad, x, shape, rstd, weight, mask)
    return (grads[0],) if weight is None else (grads[0], grads[1])


NORM_RULES: dict[Any, Registered] = {
    torch.ops.aten._fused_rms_norm.default: Registered(
        fused_rms_norm_backward, "FusedRmsNormBackward0", frozenset({1}), only_whole=True
    ),
}
