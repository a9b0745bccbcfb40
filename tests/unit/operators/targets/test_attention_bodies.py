"""Bodies call the operators that the C++ of a CUDA build calls; expected lines come from such one.

Recorded on the CUDA 13.0 builds of torch 2.13.0 and 2.14.0 and the 13.2 build of 2.15.0, over
tensors labelled cuda.
"""

from functools import partial

import pytest
import torch

from foretrace import torch_api
from foretrace.operators.targets.profile import target_of
from foretrace.operators.targets.sdpa import choose_attention
from foretrace.operators.targets.sdpa_bodies import attention_body
from tests.support.labelled import Lines, labelled
from tests.unit.operators.targets.attention_calls import Call, dense

half = partial(dense, dtype=torch.float16)
bools = partial(dense, dtype=torch.bool)


def lines_of(call: Call, spec: str) -> list[str]:
    target = target_of(spec, torch.device("cpu"))
    choice = choose_attention(target, call.typed(target.device))
    metas, options = call.tensors(torch.device("meta"))
    tensors = [
        labelled(meta, meta.requires_grad) if isinstance(meta, torch.Tensor) else meta
        for meta in metas
    ]
    with torch_api.below_autograd(), Lines() as mode:
        attention_body(choice)(*tensors, **options)
    return mode.lines


def three(operand, **options) -> Call:
    return Call(operand, operand, operand, **options)


SINCE_2_14 = torch.__version__ >= "2.14"
ROWS = [
    (
        "cuda:sm80",
        three(half(2, 3, 4, 8), causal=True),
        ["sdp_flash_attention(2x3x4x8, 2x3x4x8, 2x3x4x8, 0.0, True, scale=0.35355339059327373)"],
    ),
    (
        "cuda:sm80",
        three(half(2, 3, 4, 7), dropout=0.5),
        [
            *["pad(2x3x4x7, [0, 1])"] * 3,
            "sdp_flash_attention(2x3x4x8, 2x3x4x8, 2x3x4x8, 0.5, scale=0.3779644730092272)",
            "slice.Tensor(2x3x4x8, -1, 0, 7)",
        ],
    ),
    (
        "cuda:sm80",
        three(dense(2, 3, 4, 8, requires_grad=True), mask=bools(4, 4)),
        [
            "scalar_tensor(-inf, dtype=float32)",
            "where.ScalarSelf(4x4, 0.0, ())",
            "pad(4x4, [0, 4])",
            "slice.Tensor(4x8, -1, 0, 4)",
            "expand(4x4, [2, 3, 4, 4])",
            "sdp_efficient_attention(2x3x4x8, 2x3x4x8, 2x3x4x8, 2x3x4x4, True)",
        ],
    ),
    (
        "cuda:sm80",
        three(dense(2, 3, 8, 8), mask=dense(2, 1, 8, 8), scale=0.5),
        [
            "expand(2x1x8x8, [2, 3, 8, 8])",
            "sdp_efficient_attention(2x3x8x8, 2x3x8x8, 2x3x8x8, 2x3x8x8, False, scale=0.5)",
        ],
    ),
    (
        "cuda:sm90",
        three(half(2, 3, 4, 8, requires_grad=True), mask=bools(4, 4), scale=0.5),
        [
            "scalar_tensor(-inf, dtype=float16)",
            "where.ScalarSelf(4x4, 0.0, ())",
            "sdp_cudnn_attention(2x3x4x8, 2x3x4x8, 2x3x4x8, 4x4, True, scale=0.5)",
        ],
    ),
    (
        "cuda:sm90",
        Call(dense(2, 4, 8, 8), dense(2, 2, 8, 8), dense(2, 2, 8, 8), gqa=True),
        [
            "sdp_efficient_attention(2x4x8x8, 2x2x8x8, 2x2x8x8, None, False)"
            if SINCE_2_14
            else "sdp_attention_math(2x4x8x8, 2x2x8x8, 2x2x8x8, enable_gqa=True)"
        ],
    ),
    (
        "cuda:sm80",
        Call(half(2, 3, 4, 8), half(2, 3, 0, 8), half(2, 3, 0, 5), mask=bools(4, 1)),
        [
            "zeros([2, 3, 4, 5], dtype=float16, layout=strided)",
            "sum(2x3x0x5)",
            "sum(2x3x0x8)",
            "sum(2x3x4x8)",
            "add.Tensor((), ())",
            "add.Tensor((), ())",
            "mul.Scalar((), 0)",
            "add.Tensor(2x3x4x5, ())",
        ],
    ),
]

UNSQUEEZED = ["unsqueeze(3x4x8, 0)"] * 3
ROWS_SINCE_2_14 = [
    (
        "cuda:sm80",
        three(half(3, 4, 7)),
        [
            *["unsqueeze(3x4x7, 0)"] * 3,
            *["pad(1x3x4x7, [0, 1])"] * 3,
            "sdp_flash_attention(1x3x4x8, 1x3x4x8, 1x3x4x8, scale=0.3779644730092272)",
            "slice.Tensor(1x3x4x8, -1, 0, 7)",
            "squeeze.dim(1x3x4x7, 0)",
        ],
    ),
    (
        "cuda:sm80",
        three(dense(3, 4, 8, requires_grad=True), mask=bools(4, 4)),
        [
            *UNSQUEEZED,
            "unsqueeze(4x4, 0)",
            "unsqueeze(1x4x4, 0)",
            "scalar_tensor(-inf, dtype=float32)",
            "where.ScalarSelf(1x1x4x4, 0.0, ())",
            "pad(1x1x4x4, [0, 4])",
            "slice.Tensor(1x1x4x8, -1, 0, 4)",
            "expand(1x1x4x4, [1, 3, 4, 4])",
            "sdp_efficient_attention(1x3x4x8, 1x3x4x8, 1x3x4x8, 1x3x4x4, True)",
            "squeeze.dim(1x3x4x8, 0)",
        ],
    ),
    (
        "cuda:sm80",
        three(dense(3, 8, 8, offset=2), mask=dense(3, 8, 8)),
        [
            *["unsqueeze(3x8x8, 0)"] * 4,
            "sdp_attention_math(1x3x8x8, 1x3x8x8, 1x3x8x8, 1x3x8x8)",
            "squeeze.dim(1x3x8x8, 0)",
        ],
    ),
    (
        "cuda:sm80",
        Call(half(3, 0, 8), half(3, 4, 8), half(3, 4, 8), mask=bools(4)),
        [
            "unsqueeze(3x0x8, 0)",
            *["unsqueeze(3x4x8, 0)"] * 2,
            *["unsqueeze(4, 0)", "unsqueeze(1x4, 0)", "unsqueeze(1x1x4, 0)"],
            "zeros([1, 3, 0, 8], dtype=float16, layout=strided)",
            *["sum(1x3x4x8)", "sum(1x3x4x8)", "sum(1x3x0x8)"],
            *["add.Tensor((), ())"] * 2,
            "mul.Scalar((), 0)",
            "add.Tensor(1x3x0x8, ())",
            "squeeze.dim(1x3x0x8, 0)",
        ],
    ),
    (
        "cuda:sm90",
        Call(half(4, 16, 8), half(1, 16, 8), half(1, 16, 8)),
        [
            *["unsqueeze(4x16x8, 0)", "unsqueeze(1x16x8, 0)", "unsqueeze(1x16x8, 0)"],
            "sdp_cudnn_attention(1x4x16x8, 1x1x16x8, 1x1x16x8, None, False)",
            "squeeze.dim(1x4x16x8, 0)",
        ],
    ),
    (
        "cuda:sm80",
        Call(dense(2, 4, 16, 8), dense(2, 1, 16, 8), dense(2, 1, 16, 8), mask=bools(16, 16)),
        [
            "scalar_tensor(-inf, dtype=float32)",
            "where.ScalarSelf(16x16, 0.0, ())",
            "expand(16x16, [2, 4, 16, 16])",
            "sdp_efficient_attention(2x4x16x8, 2x1x16x8, 2x1x16x8, 2x4x16x16, False)",
        ],
    ),
    (
        "cuda:sm80",
        Call(dense(2, 4, 8, 8, requires_grad=True), *[dense(2, 2, 8, 8)] * 2, gqa=True),
        ["sdp_efficient_attention(2x4x8x8, 2x2x8x8, 2x2x8x8, None, True)"],
    ),
]


@pytest.mark.parametrize(("spec", "call", "lines"), ROWS + ROWS_SINCE_2_14 * SINCE_2_14)
def test_body_calls_what_cuda_calls(spec, call, lines):
    assert lines_of(call, spec) == lines


def test_no_sums_are_kept_without_grad_mode():
    call = three(dense(2, 3, 8, 8, requires_grad=True))
    with torch.no_grad():
        (line,) = lines_of(call, "cuda:sm80")
    assert line.endswith("None, False)")
