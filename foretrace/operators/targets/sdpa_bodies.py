"""The body of scaled_dot_product_attention on a device that the build of torch lacks.

Its C++ asks what is linked into the build, not the device of its operands. The body here calls the
operators that the C++ of such a build calls, in the same order and with the same arguments.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch

from foretrace import torch_api
from foretrace.ir.program.origin import Choice
from foretrace.operators.targets.sdpa_call import BATCHED, ZEROS

aten = torch.ops.aten

Operands: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Options(NamedTuple):
    """The arguments besides query, key and value."""

    mask: torch.Tensor | None
    dropout: float
    causal: bool
    scale: float | None
    gqa: bool


Kernel: TypeAlias = Callable[[Operands, Options], torch.Tensor]
VECTOR = 8
"""Elements to a multiple of which head dims (flash) and rows of a mask (efficient) are padded."""


def attention_body(choice: Choice) -> Callable[..., torch.Tensor]:
    """The body of aten::scaled_dot_product_attention, for the kernel of `choice`."""
    kernel = KERNELS[choice.value]

    def body(  # noqa: PLR0913 - the operator's own signature
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> torch.Tensor:
        qkv, mask = (query, key, value), attn_mask
        unbatched = torch_api.UNBATCHED_IS_BATCH_OF_ONE and all(t.ndim == BATCHED - 1 for t in qkv)
        if unbatched:
            qkv, mask = _batched(qkv, mask)
        if choice.value != ZEROS:
            mask = _additive(mask, query.dtype)
        out = kernel(qkv, Options(mask, dropout_p, is_causal, scale, enable_gqa))
        return aten.squeeze.dim(out, 0) if unbatched else out

    return body


def _batched(qkv: Operands, mask: torch.Tensor | None) -> tuple[Operands, torch.Tensor | None]:
    """The operands with a batch of one; the mask with four dimensions."""
    query, key, value = (aten.unsqueeze.default(tensor, 0) for tensor in qkv)
    while mask is not None and mask.ndim < BATCHED:
        mask = aten.unsqueeze.default(mask, 0)
    return (query, key, value), mask


def _additive(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A boolean mask as numbers to add: 0 where it is true, -inf where it is false."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    out = aten.scalar_tensor.default(-math.inf, dtype=dtype, device=mask.device)
    return aten.where.ScalarSelf(mask, 0.0, out)


def _zeros(qkv: Operands, _: Options) -> torch.Tensor:
    """Zeros that depend on all operands, so that each has a gradient of its own shape."""
    query, key, value = qkv
    shape = [*query.shape[:-1], value.shape[-1]]
    options = {"dtype": query.dtype, "layout": query.layout, "device": query.device}
    out = aten.zeros.default(shape, **options)
    of_value, of_key, of_query = map(aten.sum.default, (value, key, query))  # as C++ orders them
    total = aten.add.Tensor(aten.add.Tensor(of_query, of_key), of_value)
    return aten.add.Tensor(out, aten.mul.Scalar(total, 0))


def _flash(qkv: Operands, options: Options) -> torch.Tensor:
    size, scale = qkv[0].shape[-1], options.scale
    padded = [_pad_head(tensor) for tensor in qkv]
    if scale is None:  # of the head dim before padding; eager fixes it as a number as well
        scale = 1.0 / math.sqrt(int(size))
    out = aten._scaled_dot_product_flash_attention.default(
        *padded, options.dropout, options.causal, False, scale=scale
    )[0]
    return aten.slice.Tensor(out, -1, 0, size) if out.shape[-1] != size else out


def _efficient(qkv: Operands, options: Options) -> torch.Tensor:
    query, key, _ = qkv
    keep_sums, mask = _trains(qkv), options.mask
    if mask is not None:
        shape = [*query.shape[:3], key.shape[2]]
        mask = aten.expand.default(mask if _aligned(mask) else _pad_rows(mask), shape)
    return aten._scaled_dot_product_efficient_attention.default(
        *qkv, mask, keep_sums, options.dropout, options.causal, scale=options.scale
    )[0]


def _cudnn(qkv: Operands, options: Options) -> torch.Tensor:
    mask, dropout, causal, scale, _ = options
    return aten._scaled_dot_product_cudnn_attention.default(
        *qkv, mask, _trains(qkv), dropout, causal, False, scale=scale
    )[0]


def _overrideable(qkv: Operands, options: Options) -> torch.Tensor:
    """What a device of `PrivateUse1` has in the place of a kernel of torch's own."""
    mask, dropout, causal, scale, _ = options
    return aten._scaled_dot_product_fused_attention_overrideable.default(
        *qkv, mask, dropout, causal, False, scale=scale
    )[0]


def _math(qkv: Operands, options: Options) -> torch.Tensor:
    mask, dropout, causal, scale, gqa = options
    return aten._scaled_dot_product_attention_math.default(
        *qkv, mask, dropout, causal, None, scale=scale, enable_gqa=gqa
    )[0]


def _trains(qkv: Operands) -> bool:
    """Whether the backward will need the sums of the softmax."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in qkv)


def _pad_head(tensor: torch.Tensor) -> torch.Tensor:
    size = tensor.shape[-1]
    if size % VECTOR == 0:
        return tensor
    return aten.pad.default(tensor, [0, VECTOR - size % VECTOR])


def _aligned(mask: torch.Tensor) -> bool:
    """Whether every row starts at a multiple of eight elements; False if a stride is symbolic."""
    strides: tuple[Any, ...] = mask.stride()
    *outer, last = strides
    return last == 1 and all(isinstance(n, int) and n % VECTOR == 0 for n in outer)


def _pad_rows(mask: torch.Tensor) -> torch.Tensor:
    """The same values in rows that start at a multiple of eight elements."""
    size = mask.shape[-1]
    return aten.slice.Tensor(aten.pad.default(mask, [0, VECTOR - size % VECTOR]), -1, 0, size)


KERNELS: dict[str, Kernel] = {
    "zeros": _zeros,
    "flash": _flash,
    "efficient": _efficient,
    "cudnn": _cudnn,
    "overrideable": _overrideable,
    "math": _math,
}
