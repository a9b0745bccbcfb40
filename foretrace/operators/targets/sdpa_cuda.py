"""Conditions of attention kernels on CUDA.

Read in `cuda/sdp_utils.cpp`, and compared with the C++ of torch 2.13.0 for CUDA 13.0, and of 2.14.0
and 2.15.0 for CUDA 13.0 and 13.2, on devices from 7.0 to 12.1 with cuDNN from 9.0 to 9.23.
"""

from collections.abc import Mapping
from types import MappingProxyType

import torch

from foretrace import torch_api
from foretrace.operators.targets.sdpa_call import Condition, Question
from foretrace.operators.targets.sdpa_conditions import (
    SHARED,
    dtype_in,
    equal_head_dims,
    equal_heads,
    equal_or_grouped_heads,
    listed,
    version,
)


def efficient_heads(ask: Question) -> str | None:
    """Heads are not broadcast before torch 2.14."""
    return (equal_or_grouped_heads if torch_api.ONE_HEAD_IS_SHARED else equal_heads)(ask)


def dtype_or_bfloat16(*dtypes: torch.dtype) -> Condition:
    """The kernel is compiled for the dtype; for bfloat16 from compute capability 8.0 on."""
    newer = (*dtypes, torch.bfloat16)
    return lambda ask: dtype_in(ask, *(newer if ask.capability >= (8, 0) else dtypes))


def capability_from(least: tuple[int, int]) -> Condition:
    """The kernel is compiled for the device."""

    def condition(ask: Question) -> str | None:
        if least <= ask.capability <= (12, 1):
            return None
        return f"compute capability is not {version(least)} to 12.1 but {version(ask.capability)}"

    return condition


def flash_head_dim(ask: Question) -> str | None:
    """Query and value have one head dim, at most 256."""
    dim = ask.call.query.shape[-1]
    return equal_head_dims(ask) or (
        None if ask.at_most(dim, 256) else f"head dim {dim} is above 256"
    )


def flash_backward_head_dim(ask: Question) -> str | None:
    """The backward kernel has too little shared memory for large heads on some devices."""
    small = (8, 6) <= ask.capability <= (8, 9) or (12, 0) <= ask.capability <= (12, 1)
    dim = ask.call.query.shape[-1]
    if not (ask.call.trains and small) or ask.at_most(dim, 192):
        return None
    if ask.call.dropout == 0 and not ask.at_most(dim, 224):
        return None
    return f"no backward for head dim {dim} on compute capability {version(ask.capability)}"


def square_if_causal(ask: Question) -> str | None:
    """The kernel aligns the causal mask to the last position, PyTorch to the first."""
    lengths = [ask.call.query.shape[-2], ask.call.key.shape[-2]]
    if not ask.call.causal or ask.same(*lengths):
        return None
    return f"is_causal with sequence lengths that differ: {listed(lengths)}"


def efficient_head_dims(ask: Question) -> str | None:
    """Rows of query and key, and of value, are whole vectors."""
    query, key, value = (operand.shape[-1] for operand in ask.call.operands)
    step = _alignment(ask)
    if not ask.same(query, key):
        return f"head dims of query and key differ: {query}, {key}"
    if all(ask.divides(step, dim) and not ask.at_most(dim, 0) for dim in (query, value)):
        return None
    return f"head dims {query}, {value} are not multiples of {step}"


def aligned_offsets(ask: Question) -> str | None:
    """The kernel reads whole vectors; a symbolic offset is assumed to be aligned."""
    step = _alignment(ask)
    if ask.capability < (8, 0):
        return None
    offsets = [operand.offset for operand in ask.call.operands]
    if all(not isinstance(offset, int) or offset % step == 0 for offset in offsets):
        return None
    return f"storage offsets are not multiples of {step} elements: {listed(offsets)}"


def _alignment(ask: Question) -> int:
    """The number of elements that the matrix units read at once."""
    half = ask.call.query.dtype in (torch.float16, torch.bfloat16)
    if ask.capability >= (8, 0):
        return 8 if half else 4
    return 8 if half and ask.capability >= (7, 0) else 1


def cudnn_is_there(ask: Question) -> str | None:
    """The build has a cuDNN with attention."""
    return None if ask.cudnn >= (9, 0) else "no cuDNN 9.0 or newer"


def cudnn_may_vary(ask: Question) -> str | None:
    """Deterministic results are not required."""
    deterministic = ask.call.enabled.deterministic
    return "deterministic results are asked for" if deterministic else None


def cudnn_dropout(ask: Question) -> str | None:
    """The version has dropout, and the probability is a multiple of 1/16."""
    dropout = ask.call.dropout
    if dropout > 0 and (9, 11, 0) < ask.cudnn < (9, 14, 0):
        return f"cuDNN {version(ask.cudnn)} has no dropout"
    whole = (dropout * 16.0).is_integer()
    return None if whole else f"dropout {dropout} is not a multiple of 1/16"


def cudnn_head_dims(ask: Question) -> str | None:
    """Head dims are multiples of 8, and within the version's limit on the device."""
    query, value = ask.call.query.shape[-1], ask.call.value.shape[-1]
    limit = 128
    if _cudnn_takes_256(ask):
        limit = 256
    elif _sm90_or_sm10x(ask) and ask.cudnn >= (9, 11):
        limit = 192 if ask.same(query, 192) and ask.same(value, 128) else 128
    if not (ask.at_most(query, limit) and ask.at_most(value, limit)):
        return f"head dims {query}, {value} are above {limit}"
    if ask.divides(8, query) and ask.divides(8, value):
        return None
    return f"head dims {query}, {value} are not multiples of 8"


def cudnn_backward_head_dims(ask: Question) -> str | None:
    """The backward supports two pairs of large head dims, from torch 2.14 on."""
    query, value = ask.call.query.shape[-1], ask.call.value.shape[-1]
    asked = torch_api.CUDNN_FRONTEND_HAS_256 and ask.call.trains and _cudnn_takes_256(ask)
    if not asked or (ask.at_most(query, 128) and ask.at_most(value, 128)):
        return None
    if any(ask.same(query, q) and ask.same(value, v) for q, v in ((192, 128), (256, 256))):
        return None
    return f"no backward for head dims {query}, {value}"


def _cudnn_takes_256(ask: Question) -> bool:
    """Whether cuDNN, and the frontend in torch's build, support head dims up to 256."""
    if not torch_api.CUDNN_FRONTEND_HAS_256:
        return ask.capability == (9, 0) and ask.cudnn >= (9, 10)
    first = (9, 25, 1) if ask.capability == (10, 7) else (9, 22, 1)
    return _sm90_or_sm10x(ask) and ask.cudnn >= first


def _sm90_or_sm10x(ask: Question) -> bool:
    return ask.capability == (9, 0) or ask.capability[0] == 10  # noqa: PLR2004 - Blackwell


def cudnn_decodes(ask: Question) -> str | None:
    """The version computes a query of length 1 correctly; checked from torch 2.14 on."""
    wrong = (9, 19) <= ask.cudnn <= (9, 25, 0) and not (9, 24, 1) <= ask.cudnn < (9, 25)
    asked = torch_api.CUDNN_MAY_NOT_DECODE and wrong and ask.capability[0] in (10, 11)
    if not asked or not ask.same(ask.call.query.shape[-2], 1):
        return None
    return f"cuDNN {version(ask.cudnn)} is wrong for a query of length 1"


def cudnn_gradient(ask: Question) -> str | None:
    """The version computes query's gradient correctly; checked from torch 2.15 on."""
    call, length = ask.call, ask.call.key.shape[-2]
    wrong = ask.capability == (9, 0) and ask.cudnn < (9, 26)
    asked = torch_api.CUDNN_GRADIENT_MAY_OVERFLOW and call.query.requires_grad and not call.causal
    if not (wrong and asked and ask.same(length % 128, 64)):
        return None
    return f"cuDNN {version(ask.cudnn)} may overflow in the gradient for {length} keys"


def cudnn_sizes(ask: Question) -> str | None:
    """Sizes are within the kernel's limits."""
    batch, heads, length, _ = ask.call.query.shape
    if not (ask.at_most(batch, 65535) and ask.at_most(heads, 65535)):
        return f"batch size {batch} or number of heads {heads} is above 65535"
    if ask.same(ask.call.key.shape[-2], 1):
        return "the key's sequence length is 1"
    if ask.call.dropout != 0 and ask.same(length, 1):
        return "dropout with a query of length 1"
    return None


CONDITIONS: Mapping[str, Condition] = MappingProxyType(
    {
        **SHARED,
        "float16_or_bfloat16": dtype_or_bfloat16(torch.float16),
        "float16_or_bfloat16_or_float32": dtype_or_bfloat16(torch.float16, torch.float32),
        "from_sm50": capability_from((5, 0)),
        "from_sm80": capability_from((8, 0)),
        **{
            each.__name__: each
            for each in (
                efficient_heads,
                flash_head_dim,
                flash_backward_head_dim,
                square_if_causal,
                efficient_head_dims,
                aligned_offsets,
                cudnn_is_there,
                cudnn_may_vary,
                cudnn_dropout,
                cudnn_head_dims,
                cudnn_backward_head_dims,
                cudnn_decodes,
                cudnn_gradient,
                cudnn_sizes,
            )
        },
    }
)
"""All conditions, by the name that target files have for them"""
