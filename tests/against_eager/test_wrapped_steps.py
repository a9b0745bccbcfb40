"""Steps over parameters of classes that wrap tensors: gradients and updates of the class."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import foretrace
from tests.support.wrapped import Int8, differences, masked

BATCHES = 4
Step = Callable[..., Any]
Made = tuple[Step, Callable[[], list[Any]]]


def pair_of(tensor: Tensor) -> nn.Parameter:
    whole = tensor.detach()
    return nn.Parameter(TwoTensor(whole.clone(), whole * 2))


def network(wrap: Callable[[Tensor], Any] = pair_of) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 2))
    for name, parameter in [*model.named_parameters()]:
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, wrap(parameter))
    return model


def state_of(model: nn.Module, optimizer: Any) -> Callable[[], list[Any]]:
    def state() -> list[Any]:
        held = [each for p in optimizer.state.values() for each in p.values()]
        gradients = [p.grad for p in model.parameters()]
        return [*model.parameters(), *held, *(g for g in gradients if g is not None)]

    return state


def trained(optimizer: Callable[..., Any], rounds: int = 1, none: bool = True) -> Made:
    model = network()
    made = optimizer(model.parameters())

    def step(x: Tensor, y: Tensor) -> Any:
        for rows in range(rounds):
            loss = F.mse_loss(model(x[rows:]), y[rows:])
            (loss / rounds).backward()
        made.step()
        made.zero_grad(set_to_none=none)
        return loss.detach()

    return step, state_of(model, made)


def by_hand() -> Made:
    model = network()

    def step(x: Tensor, y: Tensor) -> Any:
        loss = F.mse_loss(model(x), y)
        gradients = torch.autograd.grad(loss, [*model.parameters()])
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(gradient, alpha=0.1)
        return loss.detach()

    return step, lambda: [*model.parameters()]


def beside_quantized() -> Made:
    torch.manual_seed(0)
    frozen, scale = Int8.of(torch.randn(6, 8)), nn.Parameter(torch.randn(6))
    optimizer = torch.optim.AdamW([scale], lr=0.1)

    def step(x: Tensor, y: Tensor) -> Any:
        loss = ((x @ frozen.t()) * scale).sum(1).sub(y[:, 0]).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, lambda: [scale, *optimizer.state[scale].values()]


WAYS: dict[str, Callable[[], Made]] = {
    "sgd": lambda: trained(lambda p: torch.optim.SGD(p, lr=0.1)),
    "momentum": lambda: trained(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    "adamw": lambda: trained(lambda p: torch.optim.AdamW(p, lr=0.1)),
    "adagrad": lambda: trained(lambda p: torch.optim.Adagrad(p, lr=0.1)),
    "accumulated": lambda: trained(lambda p: torch.optim.RMSprop(p, lr=0.1), rounds=3),
    "kept": lambda: trained(lambda p: torch.optim.SGD(p, lr=0.1), none=False),
    "by_hand": by_hand,
    "beside_quantized": beside_quantized,
}


def batch(index: int) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(index)
    return torch.randn(4, 8, generator=g), torch.randn(4, 2, generator=g)


@pytest.mark.parametrize("way", WAYS)
def test_as_eager(way: str) -> None:
    (eager, eagers), (step, ours) = WAYS[way](), WAYS[way]()
    compiled = foretrace.compile(step, fullgraph=True)
    for index in range(BATCHES):
        expected, found = eager(*batch(index)), compiled(*batch(index))
        assert not differences([expected, *eagers()], [found, *ours()])
    assert len(compiled.recaptures) <= 1


@pytest.mark.parametrize("level", ["aten", "step"])
def test_by_a_cut(level: str) -> None:
    made = [WAYS["adamw"](), WAYS["adamw"]()]
    for step, _ in made:
        step(*batch(0))
    (eager, eagers), (step, ours) = made
    cut = foretrace.capture(step, batch(1), verify=True).cut(level)
    for index in range(1, 3):
        assert not differences([eager(*batch(index))], [cut(*batch(index))])
        assert not differences(eagers(), ours())


def test_a_gradient_of_a_class_that_is_returned() -> None:
    def slope(w: Any) -> Any:
        return torch.autograd.grad(w.sin().sum() * 2, w)[0]

    given = masked(3, 4, grad=True)
    try:
        expected = slope(given)
    except (RuntimeError, NotImplementedError) as error:
        pytest.skip(str(error))
    assert not differences([expected], [foretrace.compile(slope, fullgraph=True)(given)])


def test_a_backward_that_needs_what_an_update_wrote_over() -> None:
    """As for plain tensors, eager's raises."""

    def step(w: Any, x: Tensor) -> Any:
        loss = (w * w * x).sum()
        loss.backward(retain_graph=True)
        with torch.no_grad():
            w.mul_(2)
        loss.backward()

    def fresh() -> Any:
        return pair_of(torch.ones(3))

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        step(fresh(), torch.ones(3))
    with pytest.raises(foretrace.Refusal):
        foretrace.capture(step, (fresh(), torch.ones(3)))


def reads(x: Tensor, w: Any) -> Any:
    return x if w.grad is None else x * w.grad


def binds(x: Tensor, w: Any) -> Any:
    w.grad = (w * 2).detach()
    return x * w.grad


def clears(x: Tensor, w: Any) -> Any:
    before, w.grad = w.grad, None
    return x * 2 if before is None else x + before


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("program", [reads, binds, clears])
def test_gradients_that_are_read_and_bound(program: Callable[..., Any], there: bool) -> None:
    made = [pair_of(torch.arange(3.0)) for _ in range(2)]
    for each in made if there else ():
        each.grad = TwoTensor(torch.ones(3), torch.zeros(3))
    x = torch.ones(3)
    expected, compiled = program(x, made[0]), foretrace.compile(program, fullgraph=True)
    assert not differences([expected, made[0].grad], [compiled(x, made[1]), made[1].grad])
