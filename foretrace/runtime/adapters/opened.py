"""Core operators that few compilers take, in operators that each adapter's takes.

Backwards of means and interpolations are products with a matrix for each dimension: what the
forward makes of unit vectors. No compiler has to know how windows overlap.
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
Backward = Callable[..., Tensor]
MEAN, MAXIMUM = 1, 2
"""Modes of `embedding_bag`. Source: EmbeddingBag.h of torch 2.13"""


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


def _scattered(dims: int) -> Backward:
    """Make the backward of a pooling by maxima: it adds each gradient where the maximum was."""

    def backward(grad: Tensor, input: Tensor, *window: Any) -> Tensor:
        zeros = torch.zeros_like(input, memory_format=torch.contiguous_format).flatten(-dims)
        last, indices = zeros.dim() - 1, window[-1]
        found = zeros.scatter_add(last, indices.flatten(-dims), grad.flatten(-dims))
        return found.view(input.shape)

    return backward


def _pooled(forward: Callable[..., Tensor], dims: int) -> Backward:
    """Make the backward of a pooling by means of windows in the last dimensions."""

    def backward(grad: Tensor, input: Tensor, kernel: Any, stride: Any, *rest: Any) -> Tensor:
        padding, ceil, include, divisor = rest

        def along(units: Tensor, place: int) -> Tensor:
            lists = ((kernel, 1), (stride or kernel, 1), (padding, 0))
            window = (_one_of([*list] * dims, place, dims, other) for list, other in lists)
            return forward(units, *window, ceil, include, None if divisor is None else 1)

        found = _through(grad, input.shape[-dims:], along)
        return found if divisor is None else found / divisor

    return backward


def _adapted(forward: Callable[..., Tensor], dims: int) -> Backward:
    """Make the backward of a pooling by means to a size of the output."""

    def backward(grad: Tensor, input: Tensor) -> Tensor:
        def along(units: Tensor, place: int) -> Tensor:
            return forward(units, _one_of(grad.shape[-dims:], place, dims, 1))

        return _through(grad, input.shape[-dims:], along)

    return backward


def _resized(forward: Callable[..., Tensor], flags: int) -> Backward:
    """Make the backward of an interpolation; `flags`: how many arguments precede its scales."""

    def backward(
        grad: Tensor,
        output_size: Sequence[int],
        input_size: Sequence[int],
        *rest: Any,
        **named: Any,
    ) -> Tensor:
        dims = len(output_size)
        scales = (*rest[flags:], *named.values())[:dims] or (None,) * dims

        def along(units: Tensor, place: int) -> Tensor:
            size, own = _one_of(output_size, place, dims, 1), _one_of(scales, place, dims, None)
            return forward(units, size, *rest[:flags], *own)

        return _through(grad, input_size[-dims:], along)

    return backward


def _one_of(each: Sequence[Any], place: int, dims: int, other: Any) -> list[Any]:
    """The value of one dimension, and another for the rest."""
    return [each[place] if at == place else other for at in range(dims)]


def _through(grad: Tensor, sizes: Sequence[int], along: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Multiply a gradient by the matrix with which a forward acts on each of the last dimensions.

    Args:
        grad: of the forward's result.
        sizes: of these dimensions, in the forward's input.
        along: applies the forward to unit vectors, which lie along the dimension of a place.
    """
    for place, n in enumerate(sizes):
        dim = place - len(sizes)
        at = torch.arange(n, device=grad.device)  # torch.eye opens to uint8, which IREE lacks
        units = (at[:, None] == at).to(grad.dtype)
        matrix = along(units.view(1, n, *_one_of(sizes, place, len(sizes), 1)), place).view(n, -1)
        grad = (grad.transpose(dim, -1) @ matrix.t()).transpose(dim, -1)
    return grad


def embedding_bag_backward(
    grad: Tensor, indices: Tensor, offsets: Tensor, offset2bag: Tensor, bag_size: Tensor, *rest: Any
) -> Tensor:
    """Each row gets the gradients of the bags that it is in, or whose maximum it is."""
    maximum_indices, num_weights, by_frequency, mode, _, weights, *padding = rest
    if by_frequency:  # eager divides by the counts of other rows: EmbeddingBag.cpp of torch 2.13
        return NotImplemented
    zeros = grad.new_zeros(num_weights, grad.shape[1])
    if mode == MAXIMUM:
        return zeros.scatter_add(0, maximum_indices.clamp(min=0), grad * (bag_size[:, None] > 0))
    places = torch.arange(len(indices), device=indices.device)
    of = (places[:, None] >= offsets[: len(grad)]).sum(1) - 1
    rows = grad.index_select(0, of)
    if mode == MEAN:
        rows = rows / bag_size.index_select(0, of)[:, None]
    if weights is not None:
        rows = rows * weights[:, None]
    if padding:
        rows = torch.where((indices == padding[0])[:, None], 0, rows)
    return zeros.index_add(0, indices, rows)


def squeeze_dims(input: Tensor, dims: Sequence[int]) -> Tensor:
    """One dimension after the other."""
    for dim in sorted((dim % input.dim() for dim in dims), reverse=True):
        input = input.squeeze(dim)
    return input


def empty_strided(size: list[int], stride: list[int], **options: Any) -> Tensor:
    """Zeros that lie as they come: what is written into it is a tensor of its own."""
    found: Tensor = aten.full.default(size, 0, **options)
    return found


POOLED: Final[Mapping[Any, Backward]] = MappingProxyType(
    {
        aten.max_pool2d_with_indices_backward: _scattered(2),
        aten.max_pool3d_with_indices_backward: _scattered(3),
        aten.adaptive_max_pool2d_backward: _scattered(2),
        aten.adaptive_max_pool3d_backward: _scattered(3),
        aten.avg_pool2d_backward: _pooled(aten.avg_pool2d, 2),
        aten.avg_pool3d_backward: _pooled(aten.avg_pool3d, 3),
        aten._adaptive_avg_pool2d_backward: _adapted(aten._adaptive_avg_pool2d, 2),
        aten._adaptive_avg_pool3d_backward: _adapted(aten._adaptive_avg_pool3d, 3),
    }
)
RESIZED: Final[Mapping[Any, Backward]] = MappingProxyType(
    {
        aten.upsample_nearest1d_backward: _resized(aten.upsample_nearest1d, 0),
        aten.upsample_nearest2d_backward: _resized(aten.upsample_nearest2d, 0),
        aten.upsample_nearest3d_backward: _resized(aten.upsample_nearest3d, 0),
        aten._upsample_nearest_exact1d_backward: _resized(aten._upsample_nearest_exact1d, 0),
        aten._upsample_nearest_exact2d_backward: _resized(aten._upsample_nearest_exact2d, 0),
        aten._upsample_nearest_exact3d_backward: _resized(aten._upsample_nearest_exact3d, 0),
        aten.upsample_linear1d_backward: _resized(aten.upsample_linear1d, 1),
        aten.upsample_bilinear2d_backward: _resized(aten.upsample_bilinear2d, 1),
        aten.upsample_trilinear3d_backward: _resized(aten.upsample_trilinear3d, 1),
        aten.upsample_bicubic2d_backward: _resized(aten.upsample_bicubic2d, 1),
    }
)
OWN: Final[Mapping[Any, Callable[..., Any]]] = MappingProxyType(
    {
        **{op.default: backward for op, backward in (*POOLED.items(), *RESIZED.items())},
        aten.convolution_backward.default: convolution_backward,
        aten._embedding_bag_backward.default: embedding_bag_backward,
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
