"""Conditions of attention kernels that devices share.

A condition returns the reason why the kernel cannot take the call, or None where it can. A target's
file names those of a kernel in the order in which eager's C++ checks. Read in `sdp_utils_cpp.h`
of torch 2.13.0 and compared with the installed build.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.operators.targets.sdpa_call import Condition, Question


def is_on(kernel: str) -> Condition:
    """The user has not switched the kernel off."""
    off = f"{kernel} is switched off"
    return lambda ask: None if getattr(ask.call.enabled, kernel) else off


def four_dimensions(ask: Question) -> str | None:
    """Batch, heads, positions and head dims, and nothing else."""
    ranks = [len(operand.shape) for operand in ask.call.operands]
    return None if ranks == [4, 4, 4] else f"not all of query, key, value are 4-D: {listed(ranks)}"


def no_dropout(ask: Question) -> str | None:
    """The kernel has no dropout."""
    return f"dropout is {ask.call.dropout}" if ask.call.dropout > 0 else None


def no_mask(ask: Question) -> str | None:
    """The kernel adds no mask to the scores."""
    return "it takes no attn_mask" if ask.call.mask is not None else None


def equal_batch(ask: Question) -> str | None:
    """Batch sizes are not broadcast."""
    sizes = [operand.shape[0] for operand in ask.call.operands]
    return None if ask.same(*sizes) else f"batch sizes differ: {listed(sizes)}"


def equal_or_grouped_heads(ask: Question) -> str | None:
    """With enable_gqa, groups of query heads share a head of key and value."""
    query, key, value = (operand.shape[-3] for operand in ask.call.operands)
    if not ask.call.gqa:
        return equal_or_one_head(ask)
    if not ask.same(key, value):
        return f"key has {key} heads, value {value}"
    return None if ask.divides(key, query) else f"{key} key heads do not divide {query}"


def equal_or_dividing_heads(ask: Question) -> str | None:
    """As `equal_or_grouped_heads`, but key and value may have different numbers of heads."""
    query, key, value = (operand.shape[-3] for operand in ask.call.operands)
    if not ask.call.gqa:
        return equal_or_one_head(ask)
    if ask.divides(key, query) and ask.divides(value, query):
        return None
    return f"{key} key heads and {value} value heads do not both divide {query}"


def equal_or_one_head(ask: Question) -> str | None:
    """Heads are not broadcast; from torch 2.14 on, one head of key and value is."""
    _, key, value = (operand.shape[-3] for operand in ask.call.operands)
    differ = equal_heads(ask)
    shared = differ and torch_api.ONE_HEAD_IS_SHARED and ask.same(key, 1) and ask.same(value, 1)
    return None if shared else differ


def equal_heads(ask: Question) -> str | None:
    """Heads are not broadcast."""
    heads = [operand.shape[-3] for operand in ask.call.operands]
    return None if ask.same(*heads) else f"numbers of heads differ: {listed(heads)}"


def mask_broadcasts(ask: Question) -> str | None:
    """The mask has a size of 1 or the full size in each dimension, and needs no gradient."""
    mask, query, key = ask.call.mask, ask.call.query, ask.call.key
    if mask is None:
        return None
    if mask.requires_grad:
        return "attn_mask requires grad"
    if len(mask.shape) < 2:  # noqa: PLR2004 - eager indexes its last two dimensions
        raise Refusal(
            f"attn_mask of shape {list(mask.shape)} has no rows",
            kind="wrong call",
            do="give it as many dimensions as it has in eager: 2 or 4",
        )
    wanted = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if len(mask.shape) not in (2, 4):
        return f"attn_mask is {len(mask.shape)}-D, not 2-D or 4-D"
    pairs = zip(mask.shape, wanted[-len(mask.shape) :], strict=True)
    if all(size in (1, other) for size, other in pairs):  # C++ does not guard here either
        return None
    return f"attn_mask of shape {list(mask.shape)} does not broadcast to {list(wanted)}"


def some_positions(ask: Question) -> str | None:
    """Neither sequence length is 0."""
    lengths = [ask.call.query.shape[-2], ask.call.key.shape[-2]]
    return "a sequence length is 0" if any(ask.same(n, 0) for n in lengths) else None


def dense_last_dimension(ask: Question) -> str | None:
    """The elements of a head are contiguous."""
    strides = [operand.stride[-1] for operand in ask.call.operands]
    if not ask.same(1, *strides):
        return f"strides of the last dimension are not 1: {listed(strides)}"
    return _dense_mask(ask)


def dense_or_single_last_dimension(ask: Question) -> str | None:
    """As `dense_last_dimension`; the stride of a single element does not matter."""
    if ask.same(ask.call.query.shape[-1], 1):
        return _dense_mask(ask)
    return dense_last_dimension(ask)


def _dense_mask(ask: Question) -> str | None:
    mask = ask.call.mask
    if mask is None or ask.target.device.type == "cpu" or ask.same(mask.stride[-1], 1):
        return None
    return f"the stride of attn_mask's last dimension is {mask.stride[-1]}, not 1"


def equal_head_dims(ask: Question) -> str | None:
    """Query, key and value have one head dim."""
    dims = [operand.shape[-1] for operand in ask.call.operands]
    return None if ask.same(*dims) else f"head dims differ: {listed(dims)}"


def dtype_in(ask: Question, *dtypes: torch.dtype) -> str | None:
    """The kernel is compiled for the dtype."""
    if ask.call.query.dtype in dtypes:  # all three are equal: `sdpa._check`
        return None
    return f"dtype {named(ask.call.query.dtype)} is not one of {listed(map(named, dtypes))}"


def cpu_dtype(ask: Question) -> str | None:
    """The kernel is compiled for the dtype."""
    return dtype_in(ask, torch.float32, torch.float64, torch.bfloat16, torch.float16)


SWITCHED = ("flash", "efficient", "cudnn", "math")
SHARED: Mapping[str, Condition] = MappingProxyType(
    {
        **{f"{kernel}_is_on": is_on(kernel) for kernel in SWITCHED},
        **{
            each.__name__: each
            for each in (
                four_dimensions,
                no_dropout,
                no_mask,
                equal_batch,
                equal_or_grouped_heads,
                equal_heads,
                equal_or_dividing_heads,
                mask_broadcasts,
                some_positions,
                dense_last_dimension,
                dense_or_single_last_dimension,
                equal_head_dims,
                cpu_dtype,
            )
        },
    }
)
"""By the name that target files have for them"""


def listed(items: Any) -> str:
    """The items with commas."""
    return ", ".join(map(str, items))


def named(dtype: torch.dtype) -> str:
    """The dtype without its module."""
    return str(dtype).removeprefix("torch.")


def version(numbers: tuple[int, ...]) -> str:
    """The version as text: `9.20.0`."""
    return ".".join(map(str, numbers))
