"""The attention kernel that foretrace expects is the one that eager takes, on each device."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.interface import Target
from foretrace.ir.values.tensor_type import TensorType
from foretrace.operators.targets.profile import target_of
from foretrace.operators.targets.sdpa import choose_attention
from foretrace.operators.targets.sdpa_call import BATCHED, AttentionCall, Enabled
from tests.unit.operators.targets.attention_calls import Call, calls, dense

CPU, META = torch.device("cpu"), torch.device("meta")
SDPA = torch.ops.aten.scaled_dot_product_attention.default
KERNEL_OF = {
    "_scaled_dot_product_flash_attention_for_cpu": "flash",
    "mul": "math",  # the first operator of that body, which scales the query
    "zeros": "zeros",
}


class Found(Exception):
    """Carries the name of the kernel out of the C++."""


class FirstKernel(torch_api.TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if name in KERNEL_OF:
            raise Found(KERNEL_OF[name])
        return func(*args, **kwargs or {})


def eagers_kernel(call: Call, device: torch.device) -> str:
    """What C++ picks for real tensors, or "error".

    Autograd is on: a mask of three dimensions needs a gradient as its view of four does.
    """
    tensors, options = call.tensors(device)
    with call.switched(), FirstKernel():
        try:
            SDPA(*tensors, **options)
        except Found as found:
            return found.args[0]
        except (RuntimeError, IndexError):
            return "error"
    raise AssertionError("attention without a kernel")


def our_kernel(call: Call, target: Target) -> str:
    try:
        return choose_attention(target, call.typed(target.device)).value
    except Refusal as refusal:
        return "error" if refusal.kind in ("wrong call", "no attention kernel") else refusal.kind


# ------------------------------------------------------------------------------------------- cpu


ONE = dense(1, 4, 1)
ONE_HEAD_WITHOUT_GRAD_MODE = Call(ONE, ONE, ONE, dense(4, 4, requires_grad=True), grad_mode=False)
MANY = settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))


@settings(MANY, max_examples=300)
@given(calls())
@example(Call(dense(2, 4, 5, 8), dense(2, 4, 5, 8), dense(2, 4, 5, 8)))
@example(Call(dense(2, 4, 5, 8), dense(2, 2, 5, 8), dense(2, 2, 5, 8), gqa=True))
@example(Call(dense(2, 4, 5, 8), dense(2, 4, 5, 8), dense(2, 4, 5, 8), dense(5, 5)))
@example(Call(dense(4, 0), dense(4, 0), dense(4, 3)))
@example(Call(dense(2, 4, 5, 0), dense(2, 4, 5, 0), dense(2, 4, 5, 8)))
@example(Call(dense(1, 4, 1), dense(1, 4, 1), dense(1, 4, 1), dense(1, 4, 4, requires_grad=True)))
@example(ONE_HEAD_WITHOUT_GRAD_MODE)
def test_cpu_agrees_with_the_installed_torch(call):
    assert our_kernel(call, target_of("cpu", CPU)) == eagers_kernel(call, CPU)


@pytest.mark.slow
@MANY
@given(calls())
def test_cpu_agrees_in_many_calls(call):
    assert our_kernel(call, target_of("cpu", CPU)) == eagers_kernel(call, CPU)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(calls())
def test_meta_agrees_with_the_installed_torch(call):
    assert our_kernel(call, target_of("meta", CPU)) == eagers_kernel(call, META)


def test_switches_are_read():
    before = Enabled.now()
    assert before == Enabled(cudnn=before.cudnn)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert Enabled.now() == Enabled(flash=False, efficient=False, cudnn=False)
    assert Enabled.now() == before


# ------------------------------------------------------------------------------------------ cuda

RECORDS = ("attention_on_cuda.jsonl", "attention_on_cuda_since_2.14.jsonl")
"""What the C++ of CUDA builds picked for made-up calls: 13.0 of 2.13.0 and 2.14.0, 13.2 of 2.15.0.

A row has a call and, by torch's version, a letter for each of DEVICES, as LETTERS has them.
"""
VERSION = next((v for v in ("2.15", "2.14") if torch.__version__ >= v), "2.13")
LETTERS = {"f": "flash", "e": "efficient", "c": "cudnn", "m": "math", "0": "zeros", "!": "error"}
DEVICES = [
    ((7, 5), (9, 20, 0)),
    ((8, 0), (9, 20, 0)),
    ((8, 6), (9, 20, 0)),
    ((9, 0), (9, 20, 0)),
    ((9, 0), (9, 12, 0)),
    ((10, 0), (9, 20, 0)),
    # not recorded for 2.13
    ((9, 0), (9, 24, 0)),
    ((9, 0), (9, 26, 0)),
    ((10, 0), (9, 24, 0)),
    ((10, 0), (9, 26, 0)),
    ((10, 7), (9, 25, 0)),
    ((12, 0), (9, 26, 0)),
]


def recorded():
    for name in RECORDS:
        rows = map(json.loads, Path(__file__).with_name(name).read_text().splitlines())
        yield from (row for row in rows if VERSION in row)


@pytest.mark.parametrize("place", range(6 if VERSION == "2.13" else len(DEVICES)))
def test_cuda_agrees_with_recorded_choices(place):
    target = Target("cuda", torch.device("cuda", 0), *DEVICES[place])
    for row in recorded():
        call = Call.read(row["call"])
        assert our_kernel(as_recorded(call), target) == LETTERS[row[VERSION][place]], row


def as_recorded(call):
    """The call with the flags that C++ saw where it was recorded, below autograd.

    There, without grad mode, the views that torch 2.14 takes of three dimensions require no
    gradient; in eager they do, as their bases (`ONE_HEAD_WITHOUT_GRAD_MODE` shows it on the CPU).
    """
    tensors = {name: getattr(call, name) for name in ("query", "key", "value")}
    unbatched = all(len(each.shape) == BATCHED - 1 for each in tensors.values())
    if call.grad_mode or not (torch_api.UNBATCHED_IS_BATCH_OF_ONE and unbatched):
        return call
    if call.mask is not None:
        tensors["mask"] = call.mask
    return replace(call, **{n: replace(x, requires_grad=False) for n, x in tensors.items()})


half = partial(dense, dtype=torch.float16)
bf16 = partial(dense, dtype=torch.bfloat16)
QKV = (2, 4, 16, 64)


def three(make, *shape, **options) -> Call:
    return Call(make(*shape), make(*shape), make(*shape), **options)


SINCE_2_14 = torch.__version__ >= "2.14"
TABLE = [
    # call, kernel on sm80, kernel on sm90, why not flash on sm80
    (three(half, *QKV), "flash", "cudnn", None),
    (three(bf16, *QKV), "flash", "cudnn", None),
    (three(dense, *QKV), "efficient", "efficient", "dtype float32"),
    (three(partial(dense, dtype=torch.float64), *QKV), "math", "math", "dtype float64"),
    (
        three(half, 4, 16, 64),
        *(
            ("flash", "cudnn", None)
            if SINCE_2_14
            else ("math", "math", "not all of query, key, value are 4-D: 3, 3, 3")
        ),
    ),
    (three(half, 16, 64), "math", "math", "not all of query, key, value are 4-D: 2, 2, 2"),
    (three(half, *QKV, mask=half(16, 16)), "efficient", "cudnn", "it takes no attn_mask"),
    (three(half, *QKV, dropout=0.1), "flash", "flash", None),
    (three(half, *QKV, dropout=0.125), "flash", "cudnn", None),
    (three(half, 2, 4, 16, 12), "flash", "flash", None),
    (three(dense, 2, 4, 16, 6), "math", "math", "dtype float32"),
    (three(half, 2, 4, 16, 256), "flash", "cudnn", None),
    (three(half, 2, 4, 16, 264), "efficient", "efficient", "head dim 264 is above 256"),
    (three(half, 2, 4, 1, 64), "flash", "flash", None),
    (Call(half(2, 4, 8, 64), half(2, 4, 16, 64), half(2, 4, 16, 64)), "flash", "cudnn", None),
    (
        Call(half(2, 4, 8, 64), half(2, 4, 16, 64), half(2, 4, 16, 64), causal=True),
        *("efficient", "cudnn", "is_causal with sequence lengths that differ: 8, 16"),
    ),
    (Call(half(*QKV), half(2, 2, 16, 64), half(2, 2, 16, 64), gqa=True), "flash", "cudnn", None),
    (
        Call(dense(*QKV), dense(2, 2, 16, 64), dense(2, 2, 16, 64), gqa=True),
        *(["efficient" if SINCE_2_14 else "math"] * 2),
        "dtype float32",
    ),
    (
        Call(half(*QKV), half(2, 1, 16, 64), half(2, 1, 16, 64)),
        *(
            ("flash", "cudnn", None)
            if SINCE_2_14
            else ("math", "math", "numbers of heads differ: 4, 1, 1")
        ),
    ),
    (
        Call(half(*QKV), half(*QKV), half(2, 4, 16, 32)),
        *("efficient", "cudnn", "head dims differ: 64, 64, 32"),
    ),
    (
        Call(half(2, 4, 16, 64, transposed=True), half(*QKV), half(*QKV)),
        *("math", "math", "strides of the last dimension are not 1: 16, 1, 1"),
    ),
    (
        Call(dense(*QKV, offset=2), dense(*QKV), dense(*QKV)),
        *("math", "math", "dtype float32"),
    ),
    (Call(half(2, 4, 0, 64), half(*QKV), half(*QKV)), "zeros", "zeros", None),
]


@pytest.mark.parametrize(("call", "sm80", "sm90", "why_not_flash"), TABLE)
def test_cuda_by_rows(call, sm80, sm90, why_not_flash):
    choice = choose_attention(target_of("cuda", CPU), call.typed(torch.device("cuda", 0)))
    assert choice.what == "attention kernel"
    assert choice.value == sm80
    if why_not_flash is not None:
        assert dict(choice.rejected)["flash"].startswith(why_not_flash)
    assert our_kernel(call, target_of("cuda:sm90", CPU)) == sm90


@pytest.mark.parametrize(
    ("head_dim", "dropout", "trains", "kernel"),
    [(192, 0.0, True, "flash"), (200, 0.0, True, "efficient"), (200, 0.0, False, "flash"),
     (232, 0.0, True, "flash"), (232, 0.5, True, "efficient")],
)  # fmt: skip
def test_large_heads_have_no_backward_on_sm86(head_dim, dropout, trains, kernel):
    call = three(partial(half, requires_grad=trains), 2, 4, 16, head_dim, dropout=dropout)
    assert our_kernel(call, target_of("cuda:sm86", CPU)) == kernel


def test_a_choice_explains_itself():
    target = target_of("cuda:sm90", CPU)
    choice = choose_attention(target, three(dense, *QKV).typed(target.device))
    assert choice.reason == (
        "the first of cudnn, flash, efficient, math "
        "(cuDNN newer than 9.15.0 on compute capability 9 or 10) that takes the call"
    )
    assert choice.rejected == (
        ("cudnn", "dtype float32 is not one of float16, bfloat16"),
        ("flash", "dtype float32 is not one of float16, bfloat16"),
        ("math", "efficient comes before it"),
    )


def test_nothing_left_is_refused():
    target = target_of("cuda:sm80", CPU)
    call = three(dense, *QKV, enabled=Enabled(efficient=False, math=False))
    with pytest.raises(Refusal, match="efficient is switched off") as caught:
        choose_attention(target, call.typed(target.device))
    assert caught.value.kind == "no attention kernel"


def test_the_users_order_is_kept():
    target = target_of("cuda:sm80", CPU)
    call = three(half, *QKV, enabled=Enabled(order=("math", "flash")))
    assert choose_attention(target, call.typed(target.device)).value == "math"


# --------------------------------------------------------------------------------- unknown sizes


def symbolic(batch, length, head_dim, dtype=torch.float16) -> TensorType:
    shape = (batch, 4, length, head_dim)
    stride = (4 * length * head_dim, length * head_dim, head_dim, 1)
    return TensorType(shape, stride, dtype, torch.device("cuda", 0))


@pytest.fixture(scope="module")
def sizes():
    env = ShapeEnv(duck_shape=False)
    make = torch._dynamo.source.ConstantSource
    return {
        name: env.create_symbol(number, make(name))
        for name, number in [("batch", 4), ("length", 16), ("other", 16), ("head", 64)]
    }


def test_equal_symbols_need_no_assumption(sizes):
    operand = symbolic(sizes["batch"], sizes["length"], 64)
    call = AttentionCall(operand, operand, operand, causal=True)
    choice = choose_attention(target_of("cuda:sm80", CPU), call)
    assert (choice.value, "with sizes" in choice.reason) == ("flash", False)


def test_what_was_assumed_of_symbols_is_noted(sizes):
    query = symbolic(sizes["batch"], sizes["length"], 64)
    key = symbolic(sizes["batch"], sizes["other"], 64)
    call = AttentionCall(query, key, key, causal=True, concrete=lambda size: 16)
    choice = choose_attention(target_of("cuda:sm80", CPU), call)
    assert choice.value == "flash"
    relation = f"Eq({sizes['length']}, {sizes['other']})"
    assert choice.reason.endswith(f", with sizes where {relation}")


def test_the_caller_may_decide(sizes):
    asked = []

    def decide(relation):
        asked.append(relation)
        return False

    operand = symbolic(sizes["batch"], sizes["length"], sizes["head"])
    call = AttentionCall(operand, operand, operand, decide=decide)
    choice = choose_attention(target_of("cuda:sm80", CPU), call)
    assert choice.value in ("efficient", "math")
    assert dict(choice.rejected)["flash"] == f"head dim {sizes['head']} is above 256"
    assert asked


def test_an_unknown_target_is_refused():
    for spec in ("cuda:sm8", "cuda:0", "tpu", "sm80"):
        with pytest.raises(Refusal, match="unknown target") as caught:
            target_of(spec, CPU)
        assert caught.value.kind == "unknown target"
        assert "cuda:sm90" in str(caught.value)


def test_targets_by_name():
    pins = {"2.15": "9.26.0", "2.14": "9.24.0", "2.12": "9.20.0", "2.11": "9.19.0"}
    cudnn = next(pin for since, pin in pins.items() if torch.__version__ >= since)
    assert str(target_of("cuda", CPU)) == f"cuda:sm80 (compute capability 8.0, cuDNN {cudnn})"
    assert target_of("cuda:sm120", CPU).capability == (12, 0)
    assert target_of(None, META).name == "meta"
    mine = Target("mine", CPU)
    assert target_of(mine, META) is mine


def test_own_kernels_are_those_of_the_installed_build():
    both = {
        name
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("aten::")
        and torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd")
    }
    for spec, key in (("cpu", "CPU"), ("meta", "Meta")):
        has = partial(lambda key, name: torch._C._dispatch_has_kernel_for_dispatch_key(name, key))
        assert target_of(spec, CPU).own_kernels == {name for name in both if has(key, name)}
