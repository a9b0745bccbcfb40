"""The kernel of eager's scaled_dot_product_attention on a target, and the reason."""

from collections.abc import Mapping, Sequence

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.interface import Target
from foretrace.ir.program.origin import Choice
from foretrace.operators.targets.build import build_of
from foretrace.operators.targets.sdpa_call import (
    ALL_ENABLED,
    ZEROS,
    AttentionCall,
    Enabled,
    Question,
)
from foretrace.operators.targets.sdpa_cuda import CONDITIONS

WHAT = "attention kernel"
CUDNN_FIRST = ("cudnn", "flash", "efficient", "math")


def choose_attention(target: Target, call: AttentionCall) -> Choice:
    """The kernel that eager takes: "flash", "efficient", "cudnn" or "math", with the reason.

    "zeros" where there is nothing to sum: eager returns zeros without a kernel.

    Raises:
        Refusal: eager would raise, too: a wrong call, or every kernel that fits is switched off.
    """
    _check(call)
    if torch_api.UNBATCHED_IS_BATCH_OF_ONE:
        call = call.batched()
    ask = Question(target, call)
    sizes = (call.query.shape[-2], *call.value.shape)
    if torch_api.NO_ROWS_IS_ZEROS and any(ask.same(size, 0) for size in sizes):
        reason = "query has no rows or value no elements, so the result is zeros"
        return Choice(WHAT, ZEROS, _noting(reason, ask))
    table = _table(target)
    order, why = order_of(target, call.enabled)
    rejected: list[tuple[str, str]] = []
    for place, kernel in enumerate(order):
        reasons = (CONDITIONS[name](ask) for name in table[kernel])
        refused = next((reason for reason in reasons if reason), None)
        if refused is None:
            ask.same(call.key.shape[-2], call.value.shape[-2])  # kernels assume it
            later = tuple((other, f"{kernel} comes before it") for other in order[place + 1 :])
            reason = f"the first of {', '.join(order)} ({why}) that takes the call"
            return Choice(WHAT, kernel, _noting(reason, ask), (*rejected, *later))
        rejected.append((kernel, refused))
    raise _none_left(target, rejected)


def _table(target: Target) -> Mapping[str, Sequence[str]]:
    """The kernels of a target in their order, with the conditions of each."""
    build = build_of(target)
    if build is None or build.attention is None:
        raise Refusal(
            f"no attention kernels are known for {target}",
            kind="unknown target",
            do=(
                "write attention out, or capture for cpu, meta or cuda, whose attention is known",
                "or name its kernels and their conditions in a target file: docs/targets.md",
            ),
        )
    return build.attention


def order_of(target: Target, enabled: Enabled = ALL_ENABLED) -> tuple[tuple[str, ...], str]:
    """The kernels in the order in which eager tries them, and the reason for that order."""
    order, kind = tuple(_table(target)), target.device.type
    if target.portable:
        return ("math",), "no fused kernel is portable"
    if "cudnn" not in order:
        return order, f"the order on {kind}"
    if enabled.order is not None:
        return enabled.order, "the user's order"
    if (target.capability or (0, 0))[0] in (9, 10) and (target.cudnn or ()) > (9, 15, 0):
        return CUDNN_FIRST, "cuDNN newer than 9.15.0 on compute capability 9 or 10"
    return order, f"the order on {kind}"


def _noting(reason: str, ask: Question) -> str:
    if not ask.assumed:
        return reason
    return f"{reason}, with sizes where {', '.join(dict.fromkeys(ask.assumed))}"


def _check(call: AttentionCall) -> None:
    """Check what eager checks of every call before it chooses."""
    dtypes = {operand.dtype for operand in call.operands}
    if len(dtypes) > 1:
        raise _wrong("query, key and value differ in dtype: " + _each(call, "dtype"))
    if len({operand.device for operand in call.operands}) > 1:
        raise _wrong("query, key and value are on different devices: " + _each(call, "device"))
    if any(len(operand.shape) < 2 for operand in call.operands):  # noqa: PLR2004 - rows and columns
        raise _wrong("query, key and value need two dimensions at least: " + _each(call, "shape"))
    if call.mask is not None and call.mask.dtype not in (torch.bool, torch.float32, *dtypes):
        raise _wrong(f"attn_mask of {call.mask.dtype} is neither bool, float32 nor query's dtype")
    if torch_api.MASK_EXCLUDES_CAUSAL and call.mask is not None and call.causal:
        raise _wrong("attn_mask and is_causal exclude each other")


def _each(call: AttentionCall, fact: str) -> str:
    return ", ".join(str(getattr(operand, fact)) for operand in call.operands)


def _wrong(what: str) -> Refusal:
    return Refusal(
        f"scaled_dot_product_attention: {what}",
        kind="wrong call",
        do="mend the call: eager raises here too",
    )


def _none_left(target: Target, rejected: list[tuple[str, str]]) -> Refusal:
    reasons = "; ".join(f"{kernel}: {reason}" for kernel, reason in rejected)
    return Refusal(
        f"scaled_dot_product_attention: no kernel of {target} takes the call ({reasons})",
        kind="no attention kernel",
        do="switch math on: torch.backends.cuda.enable_math_sdp(True)",
    )
