"""Bodies call the operators that the C++ of a CUDA build calls; expected lines come from such one.

Recorded on the CUDA 13.0 build of torch 2.13.0, over tensors labelled cuda.
"""

from functools import partial

import pytest
import torch

from foretrace import torch_api
from foretrace.targets.attention import choose_attention
from foretrace.targets.bodies import attention_body
from foretrace.targets.profile import target_of
from tests.labelled import Lines, labelled
from tests.pure.attention_calls import Call, dense

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
        ["sdp_attention_math(2x4x8x8, 2x2x8x8, 2x2x8x8, enable_gqa=True)"],
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


@pytest.mark.parametrize(("spec", "call", "lines"), ROWS)
def test_body_calls_what_cuda_calls(spec, call, lines):
    assert lines_of(call, spec) == lines


def test_no_sums_are_kept_without_grad_mode():
    call = three(dense(2, 3, 8, 8, requires_grad=True))
    with torch.no_grad():
        (line,) = lines_of(call, "cuda:sm80")
    assert line.endswith("None, False)")
