"""What each attention kernel asks of a call, as eager's C++ does on the device.

A condition answers with the reason why the kernel cannot take the call, or None where it can. The
tables below keep the order in which C++ asks. Read in `sdp_utils_cpp.h` of torch 2.13.0 and in
`cuda/sdp_utils.cpp`; compared with the installed CPU build and with the CUDA 13.0 build.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy
import torch

from foretrace.errors import Refusal
from foretrace.ir.types import Size, TensorType
from foretrace.targets.profile import Target


@dataclass(frozen=True, slots=True)
class Enabled:
    """The user's switches in `torch.backends.cuda`, and whether results must be deterministic.

    `order` is the user's own order of kernels on CUDA, if one is set.
    """

    flash: bool = True
    efficient: bool = True
    math: bool = True
    cudnn: bool = True
    deterministic: bool = False
    order: tuple[str, ...] | None = None

    @classmethod
    def now(cls, order: tuple[str, ...] | None = None) -> "Enabled":
        """The switches as they are."""
        warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
        return cls(
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            torch.backends.cuda.cudnn_sdp_enabled(),
            torch.are_deterministic_algorithms_enabled() and not warn_only,
            order,
        )


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One call of scaled_dot_product_attention, by the types of its operands.

    `concrete` gives the number that a size had in the captured run. `decide` is asked about a
    relation between unknown sizes, for example to make a guard of it; without it, the sizes of
    the captured run decide.
    """

    query: TensorType
    key: TensorType
    value: TensorType
    mask: TensorType | None = None
    dropout: float = 0.0
    causal: bool = False
    scale: float | None = None
    gqa: bool = False
    grad_mode: bool = True
    enabled: Enabled = Enabled()
    concrete: Callable[[Size], int] = int
    decide: Callable[[sympy.Basic], bool] | None = None

    @property
    def operands(self) -> tuple[TensorType, TensorType, TensorType]:
        """Query, key and value."""
        return self.query, self.key, self.value

    @property
    def trains(self) -> bool:
        """Whether a gradient will be asked of it."""
        return self.grad_mode and any(operand.requires_grad for operand in self.operands)


class Question:
    """One call on one target, and what had to be assumed of unknown sizes to answer."""

    def __init__(self, target: Target, call: AttentionCall) -> None:
        self.target, self.call = target, call
        self.assumed: list[str] = []

    @property
    def capability(self) -> tuple[int, int]:
        """Of the CUDA device."""
        return self.target.capability or (0, 0)

    @property
    def cudnn(self) -> tuple[int, ...]:
        """The version; empty where there is none."""
        return self.target.cudnn or ()

    def holds(self, relation: Any) -> bool:
        """Whether a relation is true; one on unknown sizes is decided and noted."""
        if isinstance(relation, (bool, sympy.logic.boolalg.BooleanAtom)):
            return bool(relation)
        if self.call.decide is not None:
            answer = self.call.decide(relation)
        else:
            answer = bool(relation.func(*map(self.call.concrete, relation.args)))
        self.assumed.append(str(relation if answer else sympy.Not(relation)))
        return answer

    def same(self, *sizes: Size) -> bool:
        """Whether all sizes are equal."""
        return all(self.holds(_equal(sizes[0], size)) for size in sizes[1:])

    def at_most(self, size: Size, limit: int) -> bool:
        """Whether a size is not above the limit."""
        return self.holds(size <= limit)

    def divides(self, number: Size, size: Size) -> bool:
        """Whether a size is a multiple of the number."""
        return not self.same(number, 0) and self.holds(_equal(size % number, 0))


Condition: TypeAlias = Callable[[Question], str | None]


def _equal(left: Size, right: Size) -> Any:
    return left == right or sympy.Eq(left, right)


# ------------------------------------------------------------------------------ asked everywhere


def flash_is_on(ask: Question) -> str | None:
    return None if ask.call.enabled.flash else "flash is switched off"


def efficient_is_on(ask: Question) -> str | None:
    return None if ask.call.enabled.efficient else "efficient is switched off"


def cudnn_is_on(ask: Question) -> str | None:
    return None if ask.call.enabled.cudnn else "cudnn is switched off"


def math_is_on(ask: Question) -> str | None:
    return None if ask.call.enabled.math else "math is switched off"


def four_dimensions(ask: Question) -> str | None:
    ranks = [len(operand.shape) for operand in ask.call.operands]
    return None if ranks == [4, 4, 4] else f"not all of query, key, value are 4-D: {_list(ranks)}"


def no_dropout(ask: Question) -> str | None:
    return f"dropout is {ask.call.dropout}" if ask.call.dropout > 0 else None


def no_mask(ask: Question) -> str | None:
    return "it takes no attn_mask" if ask.call.mask is not None else None


def equal_batch(ask: Question) -> str | None:
    sizes = [operand.shape[0] for operand in ask.call.operands]
    return None if ask.same(*sizes) else f"batch sizes differ: {_list(sizes)}"


def equal_or_grouped_heads(ask: Question) -> str | None:
    query, key, value = (operand.shape[-3] for operand in ask.call.operands)
    if not ask.call.gqa:
        return equal_heads(ask)
    if not ask.same(key, value):
        return f"key has {key} heads, value {value}"
    return None if ask.divides(key, query) else f"{key} key heads do not divide {query}"


def equal_or_dividing_heads(ask: Question) -> str | None:
    query, key, value = (operand.shape[-3] for operand in ask.call.operands)
    if not ask.call.gqa:
        return equal_heads(ask)
    if ask.divides(key, query) and ask.divides(value, query):
        return None
    return f"{key} key heads and {value} value heads do not both divide {query}"


def equal_heads(ask: Question) -> str | None:
    heads = [operand.shape[-3] for operand in ask.call.operands]
    return None if ask.same(*heads) else f"numbers of heads differ: {_list(heads)}"


def mask_broadcasts(ask: Question) -> str | None:
    mask, query, key = ask.call.mask, ask.call.query, ask.call.key
    if mask is None:
        return None
    if mask.requires_grad:
        return "attn_mask requires grad"
    if len(mask.shape) < 2:  # noqa: PLR2004 - eager indexes its last two dimensions
        raise Refusal(f"attn_mask of shape {list(mask.shape)} has no rows", kind="wrong call")
    wanted = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if len(mask.shape) not in (2, 4):
        return f"attn_mask is {len(mask.shape)}-D, not 2-D or 4-D"
    pairs = zip(mask.shape, wanted[-len(mask.shape) :], strict=True)
    if all(size in (1, other) for size, other in pairs):  # C++ as well asks what is certain here
        return None
    return f"attn_mask of shape {list(mask.shape)} does not broadcast to {list(wanted)}"


def some_positions(ask: Question) -> str | None:
    lengths = [ask.call.query.shape[-2], ask.call.key.shape[-2]]
    return "a sequence length is 0" if any(ask.same(n, 0) for n in lengths) else None


def dense_last_dimension(ask: Question) -> str | None:
    strides = [operand.stride[-1] for operand in ask.call.operands]
    if not ask.same(1, *strides):
        return f"strides of the last dimension are not 1: {_list(strides)}"
    return _dense_mask(ask)


def dense_or_single_last_dimension(ask: Question) -> str | None:
    if ask.same(ask.call.query.shape[-1], 1):
        return _dense_mask(ask)
    return dense_last_dimension(ask)


def _dense_mask(ask: Question) -> str | None:
    mask = ask.call.mask
    if mask is None or ask.target.device.type == "cpu" or ask.same(mask.stride[-1], 1):
        return None
    return f"the stride of attn_mask's last dimension is {mask.stride[-1]}, not 1"


def equal_head_dims(ask: Question) -> str | None:
    dims = [operand.shape[-1] for operand in ask.call.operands]
    return None if ask.same(*dims) else f"head dims differ: {_list(dims)}"


def _dtype_in(ask: Question, *dtypes: torch.dtype) -> str | None:
    if ask.call.query.dtype in dtypes:  # that all three are equal was asked of the whole call
        return None
    return f"dtype {_name(ask.call.query.dtype)} is not one of {_list(map(_name, dtypes))}"


def cpu_dtype(ask: Question) -> str | None:
    return _dtype_in(ask, torch.float32, torch.float64, torch.bfloat16, torch.float16)


# ----------------------------------------------------------------------------------------- CUDA


def low_precision_dtype(ask: Question) -> str | None:
    newer = ask.capability >= (8, 0)
    return _dtype_in(ask, torch.float16, *([torch.bfloat16] if newer else []))


def efficient_dtype(ask: Question) -> str | None:
    newer = ask.capability >= (8, 0)
    return _dtype_in(ask, torch.float16, torch.float32, *([torch.bfloat16] if newer else []))


def sm80_to_sm121(ask: Question) -> str | None:
    return _capability_from(ask, (8, 0))


def sm50_to_sm121(ask: Question) -> str | None:
    return _capability_from(ask, (5, 0))


def _capability_from(ask: Question, least: tuple[int, int]) -> str | None:
    if least <= ask.capability <= (12, 1):
        return None
    return f"compute capability is not {_version(least)} to 12.1 but {_version(ask.capability)}"


def flash_head_dim(ask: Question) -> str | None:
    dim = ask.call.query.shape[-1]
    return equal_head_dims(ask) or (
        None if ask.at_most(dim, 256) else f"head dim {dim} is above 256"
    )


def flash_backward_head_dim(ask: Question) -> str | None:
    """The backward kernel has not enough shared memory for large heads on these devices."""
    small = (8, 6) <= ask.capability <= (8, 9) or (12, 0) <= ask.capability <= (12, 1)
    dim = ask.call.query.shape[-1]
    if not (ask.call.trains and small) or ask.at_most(dim, 192):
        return None
    if ask.call.dropout == 0 and not ask.at_most(dim, 224):
        return None
    return f"no backward for head dim {dim} on compute capability {_version(ask.capability)}"


def square_if_causal(ask: Question) -> str | None:
    lengths = [ask.call.query.shape[-2], ask.call.key.shape[-2]]
    if not ask.call.causal or ask.same(*lengths):
        return None
    return f"is_causal with sequence lengths that differ: {_list(lengths)}"


def efficient_head_dims(ask: Question) -> str | None:
    query, key, value = (operand.shape[-1] for operand in ask.call.operands)
    step = _alignment(ask)
    if not ask.same(query, key):
        return f"head dims of query and key differ: {query}, {key}"
    if all(ask.divides(step, dim) and not ask.at_most(dim, 0) for dim in (query, value)):
        return None
    return f"head dims {query}, {value} are not multiples of {step}"


def aligned_offsets(ask: Question) -> str | None:
    """The kernel reads whole vectors; what is unknown of an offset is taken to be right."""
    step = _alignment(ask)
    if ask.capability < (8, 0):
        return None
    offsets = [operand.offset for operand in ask.call.operands]
    if all(not isinstance(offset, int) or offset % step == 0 for offset in offsets):
        return None
    return f"storage offsets are not multiples of {step} elements: {_list(offsets)}"


def _alignment(ask: Question) -> int:
    """Elements that the matrix units read at once."""
    half = ask.call.query.dtype in (torch.float16, torch.bfloat16)
    if ask.capability >= (8, 0):
        return 8 if half else 4
    return 8 if half and ask.capability >= (7, 0) else 1


def cudnn_is_there(ask: Question) -> str | None:
    return None if ask.cudnn >= (9, 0) else "no cuDNN 9.0 or newer"


def cudnn_may_vary(ask: Question) -> str | None:
    deterministic = ask.call.enabled.deterministic
    return "deterministic results are asked for" if deterministic else None


def cudnn_dropout(ask: Question) -> str | None:
    dropout = ask.call.dropout
    if dropout > 0 and (9, 11, 0) < ask.cudnn < (9, 14, 0):
        return f"cuDNN {_version(ask.cudnn)} has no dropout"
    whole = (dropout * 16.0).is_integer()
    return None if whole else f"dropout {dropout} is not a multiple of 1/16"


def cudnn_head_dims(ask: Question) -> str | None:
    query, value = ask.call.query.shape[-1], ask.call.value.shape[-1]
    limit = 128
    if ask.capability == (9, 0) and ask.cudnn >= (9, 10):
        limit = 256
    elif ask.capability[0] == 10 and ask.cudnn >= (9, 11):  # noqa: PLR2004 - Blackwell
        limit = 192 if ask.same(query, 192) and ask.same(value, 128) else 128
    if not (ask.at_most(query, limit) and ask.at_most(value, limit)):
        return f"head dims {query}, {value} are above {limit}"
    if ask.divides(8, query) and ask.divides(8, value):
        return None
    return f"head dims {query}, {value} are not multiples of 8"


def cudnn_sizes(ask: Question) -> str | None:
    batch, heads, length, _ = ask.call.query.shape
    if not (ask.at_most(batch, 65535) and ask.at_most(heads, 65535)):
        return f"batch size {batch} or number of heads {heads} is above 65535"
    if ask.same(ask.call.key.shape[-2], 1):
        return "the key's sequence length is 1"
    if ask.call.dropout != 0 and ask.same(length, 1):
        return "dropout with a query of length 1"
    return None


# --------------------------------------------------------------------------------------- tables

CPU: dict[str, tuple[Condition, ...]] = {
    "flash": (
        *(flash_is_on, no_dropout, four_dimensions, equal_batch, equal_or_grouped_heads),
        *(mask_broadcasts, equal_head_dims, some_positions, dense_last_dimension, cpu_dtype),
    ),
    "math": (math_is_on,),
}
CUDA: dict[str, tuple[Condition, ...]] = {
    "flash": (
        *(flash_is_on, four_dimensions, no_mask, flash_head_dim, sm80_to_sm121),
        *(flash_backward_head_dim, square_if_causal, low_precision_dtype, equal_batch),
        *(equal_or_grouped_heads, some_positions, dense_or_single_last_dimension),
    ),
    "efficient": (
        *(efficient_is_on, sm50_to_sm121, four_dimensions, efficient_head_dims, aligned_offsets),
        *(some_positions, dense_last_dimension, equal_batch, equal_heads, efficient_dtype),
    ),
    "cudnn": (
        *(cudnn_is_there, cudnn_is_on, four_dimensions, cudnn_may_vary, low_precision_dtype),
        *(mask_broadcasts, sm80_to_sm121, cudnn_dropout, some_positions),
        *(dense_or_single_last_dimension, equal_batch, equal_or_dividing_heads),
        *(cudnn_sizes, cudnn_head_dims),
    ),
    "math": (math_is_on,),
}
META: dict[str, tuple[Condition, ...]] = {"math": ()}


def _list(items: Any) -> str:
    return ", ".join(map(str, items))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _version(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))
