"""Levels of torch.func in programs for a device that is not here: the graphs of the CPU."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vjp, vmap
from torch.nn import functional as F

import foretrace
from foretrace import torch_api
from tests.programs.registry import CASES

ON_TWO_DEVICES = {
    "layers_under_jvp", "drawn_for_each_row", "drawn_for_all_rows", "laplacian_of_a_network"
}  # fmt: skip
"""These make a tensor without a device, as on the device"""
OTHERWISE = {
    "clipped_gradients_of_examples": ("cuda:sm90", "xpu"),  # dropout is `native_dropout`
    "rows_written": ("xpu",),  # `x[0] = 1` has the number on the device, but for CUDA
}


def code(fn: Callable[..., Any], args: Any, kwargs: Any, target: str) -> str:
    program = foretrace.capture(fn, args, kwargs, target=target)
    found = program.cut("aten").graph_module.code
    return re.sub(r"device\(type='\w+'(, index=0)?\)", "there", found)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", [name for name, each in CASES.items() if each.section == "levels"])
@pytest.mark.parametrize("target", ["cuda:sm90", "xpu"])
def test_programs_are_those_of_the_cpu(name: str, target: str) -> None:
    made = (CASES[name].subject() for _ in range(2))
    here, there = ((each.fn, each.args, each.kwargs) for each in made)
    if name in ON_TWO_DEVICES:
        with pytest.raises(foretrace.Refusal, match="to be on the same device"):
            code(*there, target)
    elif target in OTHERWISE.get(name, ()):
        assert code(*there, target)
    else:
        assert code(*there, target) == code(*here, "cpu")


class Parted(torch.autograd.Function):
    """Has an operand that is no tensor, and a result whose gradient is None."""

    @staticmethod
    def forward(x: Tensor, by: int, y: Tensor) -> tuple[Tensor, Tensor]:
        return x * by, x.sin() * y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)
        ctx.by = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor, other: Tensor | None) -> Any:
        assert other is None
        return g * ctx.by, None, None


NET = nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.SiLU(), nn.Flatten())


def of_each(x: Tensor) -> Any:
    def loss(parameters: dict[str, Tensor], one: Tensor) -> Tensor:
        found: Tensor = functional_call(NET, parameters, (one[None],))
        return found.square().sum()

    return vmap(grad(loss), (None, 0))(dict(NET.named_parameters()), x)


def added_in_another_dtype(x: Tensor) -> Any:
    return grad(lambda y: (y.double() * y[:, :, :1].half()).float().sum() + y.sum())(x)


def pulled_without_a_history(x: Tensor) -> Any:
    with torch.no_grad():
        pulled = vjp(lambda y: F.silu(y) * F.mish(y), x)[1]
        return pulled(x), pulled(x * 2)


PROGRAMS = (
    of_each,
    added_in_another_dtype,
    grad(lambda y: Parted.apply(y, 3, y * 2)[0].sum()),
    lambda x: grad(lambda y: (y[1:] * y[:1] + y.clone().copy_(x)).sum())(x),
    jacrev(lambda y: torch.linalg.inv(y[0, 0]).cumprod(0)),
    lambda x: grad(lambda y: y.sum())(grad(lambda y: y.sum())(x)),
    pulled_without_a_history,
)


@pytest.mark.parametrize("fn", PROGRAMS, ids=range(len(PROGRAMS)))
def test_what_engines_pass_to_nodes(fn: Callable[..., Any]) -> None:
    x = torch.randn(2, 1, 4, 4)
    assert code(fn, (x,), {}, "cuda:sm90") == code(fn, (x,), {}, "cpu")


def test_a_composite_with_a_kernel_of_the_device_is_whole_in_a_level() -> None:
    norm = nn.RMSNorm(4)

    def program(x: Tensor) -> Any:
        return grad(lambda y: norm(y).square().sum())(x)

    x = torch.randn(3, 4)
    nodes = foretrace.capture(program, (x,), target="cuda:sm90").cut("aten").nodes
    assert "_fused_rms_norm" in nodes
    assert "rsqrt" not in nodes


def test_a_hook_that_nothing_would_run_is_refused() -> None:
    def hooks_its_node(x: Tensor) -> Any:
        return grad(lambda y: [z := y.sin(), z.grad_fn.register_hook(print), z.sum()][-1])(x)

    for program in (hooks_its_node, grad(lambda y: [y.register_hook(print), y.sum()][1])):
        with pytest.raises(foretrace.Refusal, match="inside a transform of") as refused:
            foretrace.capture(program, (torch.ones(2),), target="cuda:sm90")
        assert refused.value.kind == "autograd inside"


def test_nothing_of_the_device_stays() -> None:
    foretrace.capture(of_each, (torch.randn(2, 1, 4, 4),), target="xpu")
    assert not torch_api.kernel_for("aten::_fused_rms_norm", "XPU")
    with pytest.raises((RuntimeError, AssertionError)):
        torch.ones(1, device="xpu:0")
