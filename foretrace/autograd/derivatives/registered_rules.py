"""Registered rules of our own, where torch's own formula gives no derivative of a graph.

Each names its source in torch.

Most formulas look at data: `prod`'s asks whether there are zeros. For tensors without data autograd
takes the answer that is always right, which rounds differently from the one that eager takes when
there are none. Here the question becomes a `where` over both answers.
"""

from typing import Any

import torch

from foretrace.autograd.derivatives.registry import BackwardCall, Registered


def prod_backward(call: BackwardCall) -> Any:
    """The gradient of the product of all elements.

    Source: prod_backward in torch/csrc/autograd/FunctionsManual.cpp.
    """
    (x, *_), grad, (result,) = call.args, call.gradient, call.results
    if x.dim() == 0:
        return grad.clone()
    x = x.to(grad.dtype)
    plain = grad * (result / x).conj()
    if x.numel() == 0:
        return plain
    zeros = (x == 0).sum()
    safe = _safe(grad, x.contiguous().view(-1), 0).view_as(x)
    some = torch.where(zeros > 1, torch.zeros_like(x), safe)
    return torch.where(zeros == 0, plain, some)


def prod_dim_backward(call: BackwardCall) -> Any:
    """The gradient of the product along one dimension."""
    x, dim, *rest = call.args
    keepdim = rest[0] if rest else call.kwargs.get("keepdim", False)
    grad, (result,) = call.gradient, call.results
    if x.dim() == 0:
        return grad.clone()
    x = x.to(grad.dtype)
    if not keepdim and x.dim() != 1:
        grad, result = grad.unsqueeze(dim), result.unsqueeze(dim)
    zeros = (x == 0).sum(dim, keepdim=True).sum()
    return torch.where(zeros == 0, grad * (result / x).conj(), _safe(grad, x, dim))


def _safe(grad: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
    """The gradient by products of all other elements, which divides by nothing."""
    if x.numel() == 0:
        return torch.zeros_like(x)
    if x.shape[dim] == 1:
        return grad
    ones = torch.ones([*x.shape[:dim], 1, *x.shape[dim:][1:]], dtype=grad.dtype, device=grad.device)
    before = torch.cat([ones, x.narrow(dim, 0, x.shape[dim] - 1)], dim).cumprod(dim)
    turned = x.narrow(dim, 1, x.shape[dim] - 1).flip(dim)
    after = torch.cat([ones, turned], dim).cumprod(dim).flip(dim)
    return grad * (before * after).conj()


def extremum_backward(call: BackwardCall) -> Any:
    """The gradient of the largest, smallest or middle element, shared among equals.

    Source: evenly_distribute_backward in torch/csrc/autograd/FunctionsManual.cpp, which asks
    whether the value is NaN, and fills zeros on a CPU where it multiplies on other devices.
    """
    (x, *_), grad, (value,) = call.args, call.gradient, call.results
    if call.device.type != "cpu":
        mask = x == value
        return mask * (grad / mask.sum())
    mask = torch.where(value.isnan(), x.isnan(), x == value)
    return grad.new_zeros(x.shape).masked_fill_(mask, grad / mask.sum())


def fused_rms_norm_backward(call: BackwardCall) -> tuple[Any, ...]:
    """The gradient of `_fused_rms_norm`, as derivatives.yaml of torch 2.13 states it.

    Only builds with a kernel for it follow that line; a CPU build opens the op above autograd.
    """
    x, shape, weight, *_ = call.args
    grad, (_, rstd) = call.gradient, call.results
    mask = [call.needs[0], len(call.needs) > 1 and call.needs[1]]
    grads = torch.ops.aten._fused_rms_norm_backward.default(grad, x, shape, rstd, weight, mask)
    return (grads[0],) if weight is None else (grads[0], grads[1])


def linear_backward(call: BackwardCall) -> tuple[Any, ...]:
    """The gradients of `linear`, as derivatives.yaml of torch 2.13 states them.

    Only devices with a kernel for it follow that line, as MPS; others open the op above autograd.
    """
    needs = (*call.needs, False, False)[:3]
    grads = torch.ops.aten.linear_backward.default(call.args[0], call.gradient, call.args[1], needs)
    return tuple(grads[: len(call.needs)])


def pack_backward(call: BackwardCall) -> tuple[Any, ...]:
    """Each packed row's gradient at its step and place in the batch; zeros elsewhere.

    torch's formula reads the number of rows of each step. Rows are packed step by step, which is
    the order in which `masked_scatter` takes them.
    Source: _pack_padded_sequence_backward in aten/src/ATen/native/PackedSequence.cpp.
    """
    x, _, batch_first = call.args
    grad, (_, rows) = call.gradient, call.results
    steps, batch = (x.shape[1], x.shape[0]) if batch_first else x.shape[:2]
    rows = torch.ops.aten.constant_pad_nd.default(rows, [0, steps - rows.shape[0]])
    there = torch.arange(batch, device=rows.device) < rows.unsqueeze(1)
    there = there.to(grad.device).view([steps, batch, *[1] * (x.dim() - 2)])
    found = grad.new_zeros([steps, batch, *x.shape[2:]]).masked_scatter(there, grad)
    return found.transpose(0, 1) if batch_first else found, None


REDUCTION_RULES: dict[Any, Registered] = {
    torch.ops.aten.prod.default: Registered(prod_backward, "ProdBackward0", once=True),
    torch.ops.aten.max.default: Registered(extremum_backward, "EvenlyDistributeBackward0"),
    torch.ops.aten.min.default: Registered(extremum_backward, "EvenlyDistributeBackward0"),
    torch.ops.aten.median.default: Registered(extremum_backward, "EvenlyDistributeBackward0"),
    torch.ops.aten.nanmedian.default: Registered(extremum_backward, "EvenlyDistributeBackward0"),
    torch.ops.aten.prod.dim_int: Registered(prod_dim_backward, "ProdBackward1", once=True),
}
REGISTERED_RULES: dict[Any, Registered] = {
    **REDUCTION_RULES,
    torch.ops.aten._fused_rms_norm.default: Registered(
        fused_rms_norm_backward, "FusedRmsNormBackward0", frozenset({1}), only_whole=True
    ),
    torch.ops.aten.linear.default: Registered(linear_backward, "LinearBackward0", only_whole=True),
    torch.ops.aten._pack_padded_sequence.default: Registered(
        pack_backward, "PackPaddedSequenceBackward0", frozenset({1})
    ),
}
