"""Core operators that few compilers take, in operators that each adapter's takes.

Backwards of windows are products with matrices of zeros and ones, one for each dimension: no
compiler has to know how windows overlap.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from foretrace import torch_api
from foretrace.lowering.cuts.decomposition_tracer import CORE, table_at

aten = torch.ops.aten
Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]


def convolution_backward(
    grad: Tensor, input: Tensor, weight: Tensor, bias_sizes: Any, *window: Any
) -> Gradients:
    """As convolutions: of the gradient with the weight, and of the input with the gradient."""
    of_input = of_weight = of_bias = None
    stride, padding, dilation, transposed, _, groups, output_mask = window
    dims, kernel = range(2, grad.dim()), weight.shape[2:]
    none = [0 for _ in dims]
    if output_mask[0]:
        sizes = zip(input.shape[2:], grad.shape[2:], stride, padding, dilation, kernel, strict=True)
        rest = [n - ((m - 1) * s - 2 * p + d * (k - 1) + 1) for n, m, s, p, d, k in sizes]
        back = (False, none) if transposed else (True, rest)
        of_input = aten.convolution(grad, weight, None, stride, padding, dilation, *back, groups)
    if output_mask[1]:
        moved, fixed = (grad, input) if transposed else (input, grad)
        moved, fixed = (x.unflatten(1, (groups, -1)) for x in (moved, fixed))
        moved = moved.permute(2, 1, 0, *(dim + 1 for dim in dims)).flatten(1, 2)
        fixed = fixed.permute(1, 2, 0, *(dim + 1 for dim in dims)).flatten(0, 1)
        places = (dilation, padding, stride, False, none)
        found = aten.convolution(moved, fixed, None, *places, groups)
        for dim in dims:
            found = found.narrow(dim, 0, weight.shape[dim])
        of_weight = found.transpose(0, 1).contiguous()
    if output_mask[2]:
        of_bias = grad.sum([0, *dims])
    return of_input, of_weight, of_bias


def max_pool2d_with_indices_backward(grad: Tensor, input: Tensor, *window: Any) -> Tensor:
    """Each gradient is added where its maximum was found."""
    zeros = torch.zeros_like(input, memory_format=torch.contiguous_format).flatten(-2)
    last, indices = zeros.dim() - 1, window[-1]
    found = zeros.scatter_add(last, indices.flatten(-2), grad.flatten(-2))
    return found.view(input.shape)


def avg_pool2d_backward(grad: Tensor, input: Tensor, *window: Any) -> Tensor:
    """Each element of the input gets the gradients of its windows, by their numbers of elements."""
    kernel, stride, padding, _, count_include_pad, divisor_override = window
    for dim in (-2, -1):
        n, m = input.shape[dim], grad.shape[dim]
        k, p = kernel[dim % len(kernel)], padding[dim % len(padding)]
        s = stride[dim % len(stride)] if stride else k
        begin = torch.arange(m, device=grad.device) * s - p
        at = torch.arange(n, device=grad.device)
        inside = (at >= begin[:, None]) & (at < begin[:, None] + k)
        matrix = inside.to(grad.dtype)
        if divisor_override is None and count_include_pad:
            matrix = matrix / ((begin + k).clamp(max=n + p) - begin)[:, None]
        elif divisor_override is None:
            matrix = matrix / matrix.sum(1, keepdim=True)
        grad = _times(grad, matrix, dim)
    return grad if divisor_override is None else grad / divisor_override


def upsample_nearest2d_backward(
    grad: Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    scales_h: float | None = None,
    scales_w: float | None = None,
) -> Tensor:
    """Each element of the input gets the gradients of its copies."""
    for dim, scale in ((-2, scales_h), (-1, scales_w)):
        n, m = input_size[dim], grad.shape[dim]
        step = 1 / scale if scale else n / m
        of = (torch.arange(m, device=grad.device) * step).long().clamp(max=n - 1)
        matrix = (of[:, None] == torch.arange(n, device=grad.device)).to(grad.dtype)
        grad = _times(grad, matrix, dim)
    return grad


def squeeze_dims(input: Tensor, dims: Sequence[int]) -> Tensor:
    """One dimension after the other."""
    for dim in sorted((dim % input.dim() for dim in dims), reverse=True):
        input = input.squeeze(dim)
    return input


def empty_strided(size: list[int], stride: list[int], **options: Any) -> Tensor:
    """Zeros that lie as they come: what is written into it is a tensor of its own."""
    found: Tensor = aten.full.default(size, 0, **options)
    return found


def _times(grad: Tensor, matrix: Tensor, dim: int) -> Tensor:
    """The product with a matrix over a dimension: the last, or the one before."""
    return grad @ matrix if dim == -1 else (grad.transpose(-2, -1) @ matrix).transpose(-2, -1)


OWN: Final[Mapping[Any, Callable[..., Any]]] = MappingProxyType(
    {
        aten.convolution_backward.default: convolution_backward,
        aten.max_pool2d_with_indices_backward.default: max_pool2d_with_indices_backward,
        aten.avg_pool2d_backward.default: avg_pool2d_backward,
        aten.upsample_nearest2d_backward.default: upsample_nearest2d_backward,
        aten.squeeze.dims: squeeze_dims,
        aten.empty_strided.default: empty_strided,
    }
)
OF_TORCH: Final = (
    aten.native_layer_norm.default,
    aten.native_layer_norm_backward.default,
    aten.native_group_norm.default,
    aten.native_group_norm_backward.default,
    aten.embedding_dense_backward.default,
)
"""Core operators with a decomposition of torch's, where an importer is wrong or lacks them"""


def opened() -> Mapping[Any, Callable[..., Any]]:
    """The decompositions for such a compiler: torch's to its core set, and those of this file."""
    found = torch_api.core_decompositions(OF_TORCH)
    table = table_at(CORE, {**{op: found[op] for op in OF_TORCH}, **OWN})
    return MappingProxyType(table or {})
