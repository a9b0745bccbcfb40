"""Dispatch modes and contexts that a program brings, and torch.jit.trace around a compiled one.

Eager runs a mode below autograd, and backwards through it: such a program runs as Python.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import foretrace

PAIR = foretrace.aot_autograd(fw_compiler=lambda module, _: module)
LINEAR = nn.Linear(3, 3)


class Tripling(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        return out * 3 if func is torch.ops.aten.mul.Tensor else out


class Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def forward_alone(w: Tensor) -> Tensor:
    with Tripling():
        y = w * 2
    return y.sin()


def backward_alone(w: Tensor) -> Tensor:
    y = (w * 2).sum()
    with Tripling():
        return w * torch.autograd.grad(y, w)[0]


def names_them(w: Tensor) -> tuple[Tensor, str]:
    with Names() as mode:
        y = LINEAR(w)
    return y, " ".join(mode.names)


def counts_them(w: Tensor) -> tuple[Tensor, int]:
    with FlopCounterMode(display=False) as mode:
        y = LINEAR(w)
        torch.autograd.grad(y.sum(), LINEAR.weight, retain_graph=True)
    return y, mode.get_total_flops()


def runs_again_in_it(w: Tensor) -> Tensor:
    found: Tensor = checkpoint(
        lambda w: (w * 2).sin(), w, use_reentrant=False,
        context_fn=lambda: (nullcontext(), Tripling()),
    )  # fmt: skip
    return found


PROGRAMS = [forward_alone, backward_alone, names_them, counts_them, runs_again_in_it]


def trained(program: Callable[..., Any], x: Tensor) -> Any:
    w = x.clone().requires_grad_()
    result = program(w)
    y, *rest = result if isinstance(result, tuple) else (result,)
    return [y.tolist(), torch.autograd.grad(y.sum(), w)[0].tolist(), *rest]


@pytest.mark.filterwarnings("ignore:.*is not captured whole")
@pytest.mark.parametrize("backend", ["eager", PAIR], ids=["eager", "pair"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_mode_inside(program: Callable[..., Any], backend: Any) -> None:
    x = torch.randn(2, 3)
    compiled = foretrace.compile(program, backend=backend)
    assert trained(compiled, x) == trained(program, x)
    with pytest.raises(foretrace.Refusal):
        foretrace.compile(program, backend=backend, fullgraph=True)(x.requires_grad_())


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*is not captured whole")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("warm", [False, True])
def test_traced_by_torch_jit(warm: bool) -> None:
    """Once it ended the process."""
    x, module = torch.randn(2, 3), nn.Sequential(nn.Linear(3, 3), nn.ReLU()).requires_grad_(False)
    program = lambda x: module(x) * 2  # noqa: E731
    for fullgraph in (True, False):
        compiled = foretrace.compile(program, fullgraph=fullgraph)
        if warm:
            compiled(x)
        traced = torch.jit.trace(compiled, x)  # type: ignore[no-untyped-call]
        assert torch.equal(traced(x + 1), program(x + 1))
    with pytest.raises(foretrace.Refusal, match=r"inside of torch\.jit\.trace"):
        torch.jit.trace(lambda x: foretrace.capture(program, (x,)), x)  # type: ignore[no-untyped-call]


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore:.*is not captured whole")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_program_that_traces() -> None:
    x, module = torch.randn(2, 3), nn.Sequential(nn.Linear(3, 3), nn.ReLU())

    def program(x: Tensor) -> Any:
        return torch.jit.trace(module, x)(x)  # type: ignore[no-untyped-call]

    assert torch.equal(foretrace.compile(program)(x), module(x))
