"""Deep copies of models inside the step, trained there or compared with; leaves that it makes."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam

from tests.steps.data import features, mlp, one_number, targets
from tests.steps.loops import backward, by_hand, learner, regressor, updated
from tests.steps.registry import Loop, step


@by_hand(model=one_number, batch=targets)
def reptile_by_a_deep_copy(model, x, y) -> Tensor:
    """A copy is trained for some steps, and the model goes towards it."""
    fast = copy.deepcopy(model)
    optimizer = SGD(fast.parameters(), lr=0.05, momentum=0.9)
    for half in (slice(0, 4), slice(4, 8)):
        loss = updated(optimizer, F.mse_loss(fast(x[half]), y[half]))
    with torch.no_grad():
        for p, q in zip(model.parameters(), fast.parameters(), strict=True):
            p.lerp_(q, 0.5)
    return loss.detach()


@step()
def maml_of_the_first_order_by_a_deep_copy() -> Loop:
    model = mlp(out=1)
    outer = Adam(model.parameters(), lr=0.01)

    def train(x: Tensor, y: Tensor) -> Tensor:
        fast = copy.deepcopy(model)
        inner = SGD(fast.parameters(), lr=0.1)
        F.mse_loss(fast(x[:4]), y[:4]).backward()
        inner.step()
        loss = backward(inner, F.mse_loss(fast(x[4:]), y[4:]))
        for p, q in zip(model.parameters(), fast.parameters(), strict=True):
            p.grad = q.grad
        outer.step()
        return loss.detach()

    return Loop(train, targets, model=model, outer=outer)


@learner(
    SGD,
    model=lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)),
    batch=targets,
    lr=0.1,
)
def a_teacher_is_copied_at_each_step(model, optimizer, x, y) -> tuple[Tensor, ...]:
    """Batch norm's statistics are of the copy, too."""
    teacher = copy.deepcopy(model).requires_grad_(False)
    wanted = teacher(x + 0.1)
    loss = updated(optimizer, F.mse_loss(model(x), y) + F.mse_loss(model(x), wanted))
    return loss.detach(), teacher[1].running_mean, model[1].running_mean.clone()


@by_hand(model=lambda: torch.randn(6, 3, requires_grad=True), batch=features)
def copies_of_tensors_with_gradients(weight, x) -> tuple[Tensor, ...]:
    trial = copy.deepcopy(weight)
    (x @ trial).square().mean().backward()
    again = copy.deepcopy(trial)
    with torch.no_grad():
        weight.sub_(again.grad, alpha=0.1)
        again.add_(1.0)
    return trial.detach(), again.detach(), again.grad


@regressor(SGD, lr=0.05)
def a_leaf_of_the_steps_own_is_written_to(model, optimizer, x, y) -> tuple[Tensor, Tensor]:
    """An attack: a leaf that is used, moved by its gradient, and used again."""
    noise = torch.zeros_like(x).requires_grad_()
    for _ in range(2):
        F.mse_loss(model(x + noise), y).backward()
        with torch.no_grad():
            noise.add_(noise.grad.sign(), alpha=0.05)
        noise.grad = None
    loss = updated(optimizer, F.mse_loss(model(x + noise.detach()), y))
    return loss.detach(), noise.detach()


@step()
def gradients_and_data_are_copied() -> Loop:
    """A gradient that autograd has laid out by columns, and `.data`, at the first step (AccSGD)."""
    model = mlp(out=1)
    averages: dict[Tensor, list[Tensor]] = {}

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = backward(model, F.mse_loss(model(x), y))
        for p in model.parameters():
            if p not in averages:
                averages[p] = [copy.deepcopy(p.grad), copy.deepcopy(p.data)]
            gradient, held = averages[p]
            gradient.lerp_(p.grad, 0.3)
            p.data.sub_(gradient, alpha=0.1)
            held.lerp_(p.data, 0.1)
        return loss.detach()

    return Loop(train, targets, model=model, averages=averages)
