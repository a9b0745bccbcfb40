"""A gradient of a gradient of what compilers made: of the tree, and equal to eager's."""

import copy
import gc
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import config
from torch._inductor.utils import fresh_cache
from torch.autograd import gradgradcheck
from torch.nn import functional as F

import foretrace
from tests.support.bits import differences

Call = Callable[..., Tensor]
Task = Callable[[Call, Sequence[Tensor], Sequence[Tensor]], list[Any]]
BACKENDS = {
    "graphs": lambda: lambda module, inputs: module,
    "compilers": lambda: foretrace.aot_autograd(fw_compiler=lambda module, inputs: module),
}
backends = pytest.mark.parametrize("backend", BACKENDS.values(), ids=list(BACKENDS))


class Stretched(torch.autograd.Function):
    """Its backward is not the derivative of its forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, unreached: Tensor) -> Tensor:
        ctx.save_for_backward(x, unreached)
        return x.sin() * unreached.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, unreached = ctx.saved_tensors
        return gradient * x.cos() * 1.5 * unreached, None


class Program(nn.Module):
    def __init__(self, body: Callable[..., Tensor]) -> None:
        super().__init__()
        self.linear, self.body = nn.Linear(3, 3), body
        self.register_buffer("kept", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


def smooths_a_buffer(m: Any, x: Tensor) -> Tensor:
    """The buffer is written to after what the gradient needs of it was saved."""
    m.kept.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
    return (x * m.kept).sin() * m.kept


def under_no_grad(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.abs().max()
    return (m.linear(x) / scale).exp() * x.detach() * x


def draws_equal_twice(m: Any, x: Tensor) -> Tensor:
    y = m.linear(x).sin()
    return F.dropout(y, 0.5) * F.dropout(y, 0.5).exp()


def hooked(m: Any, x: Tensor) -> Tensor:
    y = x.sin()
    y.register_hook(lambda gradient: gradient * 2 * gradient)
    return y.exp()


def attends(m: Any, x: Tensor) -> Tensor:
    y = m.linear(x)
    return (y @ y.t() / 3).softmax(-1) @ x


BODIES: dict[str, Callable[..., Tensor]] = {
    "linear": lambda m, x: m.linear(torch.tanh(m.linear(x))),
    "a power": lambda m, x: (m.linear(x) ** 3 + x) ** 2,
    "a view": lambda m, x: (m.linear(x) ** 3).reshape(3, -1).t()[1:],
    "a number of data": lambda m, x: x**3 * x.detach().sum().item(),
    "sizes of data": lambda m, x: m.linear(x)[x > 0] ** 3,
    "a Function": lambda m, x: Stretched.apply(x * 2, m.linear(x).cos()) * x,
    "a gradient inside": lambda m, x: (
        torch.autograd.grad((m.linear(x) ** 3).sum(), x, create_graph=True)[0].sin() * x
    ),
    "a checkpoint": lambda m, x: torch.utils.checkpoint.checkpoint(
        lambda x: m.linear(x).sin().exp(), x, use_reentrant=False
    ),
    "a part without a gradient": lambda m, x: x.sum(0) + (x * 2)[0],
    "dropout": lambda m, x: m.linear(F.dropout(torch.tanh(m.linear(x)), 0.5)),
    "a buffer": smooths_a_buffer,
    "no_grad": under_no_grad,
    "equal draws": draws_equal_twice,
    "a hook": hooked,
    "attention": attends,
}
MODULES: dict[str, Callable[[], nn.Module]] = {
    **{name: partial(Program, body) for name, body in BODIES.items()},
    "norms": lambda: nn.Sequential(
        nn.Linear(3, 6), nn.BatchNorm1d(6), nn.GELU(), nn.LayerNorm(6), nn.Tanh()
    ),
    "convolution": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 4, 2), nn.GroupNorm(2, 4), nn.SiLU()
    ),
    "recurrent": lambda: nn.GRUCell(3, 4),
}


def penalty(call: Call, inputs: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Any]:
    result = call(*inputs)
    slopes = torch.autograd.grad(result.sum(), inputs, create_graph=True)
    total = sum(((slope * slope).sum() for slope in slopes), torch.zeros(()))
    given = [*inputs, *parameters]
    found = [None] * len(given)
    if total.requires_grad:
        found = [*torch.autograd.grad(total, given, allow_unused=True)]
    return [result, *slopes, *found]


def third(call: Call, inputs: Sequence[Tensor], parameters: Sequence[Tensor]) -> list[Any]:
    first = torch.autograd.grad(call(*inputs).square().sum(), inputs, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), inputs, create_graph=True)
    last = sum(g.square().sum() for g in second)
    given = [*inputs, *parameters]
    return [*first, *second, *torch.autograd.grad(last, given, allow_unused=True)]


def module_and_input(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return MODULES[name]().double(), torch.randn(4, 3, dtype=torch.double)


def run(task: Task, call: Call, module: nn.Module, x: Tensor) -> list[Any]:
    torch.manual_seed(1)
    found = task(call, [x.clone().requires_grad_()], [*module.parameters()])
    return [*found, *(b.clone() for b in module.buffers()), torch.get_rng_state()]


@pytest.mark.one_in(3)
@backends
@pytest.mark.parametrize("name", MODULES)
def test_a_penalty_is_eagers(name: str, backend: Callable[[], Any]) -> None:
    """Bit for bit, at three calls with other values, of which one has another size."""
    eager, x = module_and_input(name)
    other = copy.deepcopy(eager)
    compiled = foretrace.compile(other, backend=backend(), fullgraph=True)
    for given in (x, x + 1, torch.cat([x, x])):
        expected, found = run(penalty, eager, eager, given), run(penalty, compiled, other, given)
        assert not list(differences(expected, found, "result"))


@backends
@pytest.mark.parametrize("name", ["a power", "dropout", "a buffer", "attention", "a Function"])
def test_a_third_derivative(name: str, backend: Callable[[], Any]) -> None:
    """Its sums over several nodes are added in another order."""
    eager, x = module_and_input(name)
    other = copy.deepcopy(eager)
    compiled = foretrace.compile(other, backend=backend(), fullgraph=True)
    for given in (x, x + 1):
        expected, found = run(third, eager, eager, given), run(third, compiled, other, given)
        for one, each in zip(expected, found, strict=True):
            assert (one is None) == (each is None)
            torch.testing.assert_close(each, one, rtol=1e-11, atol=1e-14)


@backends
@pytest.mark.parametrize("name", ["norms", "convolution", "recurrent", "attention"])
def test_gradgradcheck(name: str, backend: Callable[[], Any]) -> None:
    module, x = module_and_input(name)
    compiled = foretrace.compile(module, backend=backend(), fullgraph=True)
    assert gradgradcheck(compiled, [x.requires_grad_()])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", [*BACKENDS.values(), lambda: "foretrace"])
@pytest.mark.parametrize("name", ["linear", "dropout", "norms"])
def test_behind_dynamo(name: str, backend: Callable[[], Any]) -> None:
    torch._dynamo.reset()
    eager, x = module_and_input(name)
    other = copy.deepcopy(eager)
    compiled = torch.compile(other, backend=backend())
    for given in (x, x + 1, torch.cat([x, x]), torch.cat([x, x, x])):
        expected, found = run(penalty, eager, eager, given), run(penalty, compiled, other, given)
        assert not list(differences(expected, found, "result"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "task"),
    [
        *((name, penalty) for name in ("linear", "a power", "dropout", "norms", "attention")),
        *((name, third) for name in ("linear", "a power", "dropout", "attention")),
    ],
)
def test_by_inductor(name: str, task: Task) -> None:
    """Within what torch allows Inductor on whole models."""
    eager, x = module_and_input(name)
    other = copy.deepcopy(eager)
    with fresh_cache(), config.patch(fallback_random=True):
        compiled = foretrace.compile(other, backend="inductor", fullgraph=True)
        expected, found = run(task, eager, eager, x), run(task, compiled, other, x)
    for one, each in zip(expected[:-1], found[:-1], strict=True):
        assert (one is None) == (each is None)
        torch.testing.assert_close(each, one, rtol=1e-4, atol=1e-4)


@backends
def test_a_product_with_the_hessian(backend: Callable[[], Any]) -> None:
    module, x = module_and_input("a power")
    vector = torch.randn(4, 3, dtype=torch.double)

    def product(call: Call) -> Tensor:
        at = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(call(at).sum(), at, create_graph=True)
        return torch.autograd.grad(slope, at, vector)[0]

    compiled = foretrace.compile(module, backend=backend(), fullgraph=True)
    assert torch.equal(product(compiled), product(module))


@backends
def test_an_inner_step_that_is_differentiated(backend: Callable[[], Any]) -> None:
    """As of MAML: the outer loss is of parameters that the inner gradient has made."""

    def fn(weight: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return ((x @ weight).tanh() - y).square().mean()

    def outer(call: Call) -> Tensor:
        weight = torch.randn(3, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
        x, y = torch.linspace(-1, 1, 12).reshape(4, 3), torch.linspace(0, 1, 8).reshape(4, 2)
        fast = weight
        for _ in range(3):
            (slope,) = torch.autograd.grad(call(fast, x, y), fast, create_graph=True)
            fast = fast - 0.1 * slope
        return torch.autograd.grad(call(fast, x + 1, y), weight)[0]

    compiled = foretrace.compile(fn, backend=backend(), fullgraph=True)
    torch.testing.assert_close(outer(compiled), outer(fn), rtol=1e-5, atol=1e-7)


@backends
def test_inputs_are_let_go_of_with_what_is_saved(backend: Callable[[], Any]) -> None:
    compiled = foretrace.compile(lambda x: x.relu() * 2, backend=backend(), fullgraph=True)
    x = torch.randn(8).requires_grad_() * 1
    alive, result = weakref.ref(x), compiled(x)
    del x
    result.sum().backward(retain_graph=True)
    gc.collect()
    assert alive() is not None
    result.sum().backward()
    gc.collect()
    assert alive() is None


def test_an_input_that_was_written_to_is_not_read() -> None:
    """Neither by the derivative nor by its derivative, which alone needs it."""
    scale = torch.full((4, 3), 2.0)
    compiled = foretrace.compile(
        lambda x, scale: (x + scale).exp() * 1, backend=lambda module, _: module, fullgraph=True
    )
    x = torch.zeros(4, 3).requires_grad_()
    result = compiled(x, scale)
    scale.mul_(3)
    (slope,) = torch.autograd.grad(result.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
    assert torch.equal(torch.autograd.grad(second.sum(), x)[0], result)
