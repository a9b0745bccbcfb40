"""Whole models for devices that are not here: captured, cut and well formed; nothing aborts."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import foretrace
from tests.support.turns import crossed

EXAMPLES = Path(__file__).parents[2] / "examples"
MODELS = ("gpt2", "bert", "vit", "resnet", "lstm", "unet")
TARGETS = ("cuda:sm80", "cuda:sm90", "meta")

pytestmark = pytest.mark.filterwarnings("ignore:PyTorch was compiled without cuDNN")


@pytest.mark.parametrize(("model", "target"), crossed(MODELS, TARGETS))
def test_models_are_captured_for_absent_devices(model, target, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    fn, args, *rest = importlib.import_module(model).program()
    program = foretrace.capture(fn, args, *rest, target=target)
    cut = program.cut("joint", loss=0)
    cut.graph_module.graph.lint()
    kinds = {node.meta["val"].device.type for node in cut.graph_module.graph.nodes
             if isinstance(node.meta.get("val"), torch.Tensor)}  # fmt: skip
    assert kinds == {target.partition(":")[0]}
    assert any(output.kind == "gradient" for output in cut.signature.outputs)


ABORTING = """
import torch, foretrace
x = torch.randn(3, requires_grad=True)
for program in (
    lambda x: torch.func.grad(lambda t: (t.sin() * t).sum())(x).sum(),
    lambda x: torch.autograd.grad((x * x).sum(), x)[0].sum(),
):
    try:
        foretrace.capture(program, (x,), target="cuda:sm90")
        print("answered")
    except foretrace.Refusal:
        print("refused")
"""


def test_autograd_inside_a_cuda_program_does_not_abort() -> None:
    done = subprocess.run([sys.executable, "-c", ABORTING], capture_output=True, text=True)  # noqa: PLW1510
    assert (done.returncode, done.stdout.split()) == (0, ["refused", "answered"]), done.stderr


APPLYING = """
import torch, foretrace

class Sine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin()
    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].cos()

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(x, factor=2):
        return x * factor, x.sin()
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]
    @staticmethod
    def backward(ctx, grad, other):
        return grad * ctx.factor + other, None

class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        raise ValueError("as the program wants")

bound, scaled = Sine.apply, Scaled.apply

def program(x):
    y = bound(x) + Sine.apply(x * 2)
    assert torch.is_grad_enabled()
    with torch.no_grad():
        a, _ = scaled(x, 3)
        assert not torch.is_grad_enabled()
    b, c = scaled(y)
    try:
        Raises.apply(y)
    except ValueError:
        assert torch.is_grad_enabled()
    return (y + a + b * c).sum()

def joint(target):
    args = (torch.randn(3, requires_grad=True),)
    return foretrace.capture(program, args, target=target).cut("joint", loss=0).graph_module.code

there = joint("cuda:sm90")
print(there.replace("cuda:0", "cpu") == joint("cpu"), torch.is_grad_enabled())
"""


def test_functions_in_a_cuda_program_do_not_abort() -> None:
    done = subprocess.run([sys.executable, "-c", APPLYING], capture_output=True, text=True)  # noqa: PLW1510
    assert (done.returncode, done.stdout.strip()) == (0, "True True"), done.stderr


def test_hooks_that_a_program_installs_are_refused_and_gone() -> None:
    class Hooking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.inner.register_forward_hook(lambda *_: None)
            return self.inner(x)

    net = Hooking()
    with pytest.raises(foretrace.Refusal, match="registers or removes hooks of inner"):
        foretrace.capture(net, (torch.randn(1, 2),))
    assert len(net.inner._forward_hooks) == 0


def test_a_guard_that_a_derivative_adds_is_kept() -> None:
    x = torch.randn(3, 6, requires_grad=True)
    cut = foretrace.capture(lambda x: x.cumprod(1).sum(), (x,), dynamic_shapes=True)
    joint = cut.cut("joint", loss=0)
    with pytest.raises(foretrace.Refusal, match="guard broken"):
        joint(torch.randn(5, 11, requires_grad=True))


def test_inputs_that_share_memory_are_refused_where_one_is_written() -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return b * 2

    cut = foretrace.capture(program, (torch.ones(3), torch.ones(3))).cut("export")
    one = torch.ones(4)
    with pytest.raises(foretrace.Refusal, match="memory"):
        cut(one[:3], one[1:])


def test_a_size_outside_its_range_is_refused() -> None:
    rows = torch.export.Dim("rows", min=2, max=6)
    program = foretrace.capture(
        lambda x: x * 2, (torch.ones(4, 2),), dynamic_shapes={"x": {0: rows}}
    )
    cut = program.cut("export")
    assert cut(torch.ones(5, 2)).shape == (5, 2)
    for size in (1, 7):
        with pytest.raises(foretrace.Refusal, match="sizes from 2 to 6"):
            cut(torch.ones(size, 2))
