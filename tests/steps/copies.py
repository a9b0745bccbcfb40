"""Deep copies of models inside the step, trained there or compared with; leaves that it makes."""

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam

from tests.steps.registry import Loop, backward, features, mlp, step, targets, updated


@step()
def reptile_by_a_deep_copy() -> Loop:
    """A copy is trained for some steps, and the model goes towards it."""
    model = mlp(out=1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        fast = copy.deepcopy(model)
        optimizer = SGD(fast.parameters(), lr=0.05, momentum=0.9)
        for half in (slice(0, 4), slice(4, 8)):
            loss = updated(optimizer, F.mse_loss(fast(x[half]), y[half]))
        with torch.no_grad():
            for p, q in zip(model.parameters(), fast.parameters(), strict=True):
                p.lerp_(q, 0.5)
        return loss.detach()

    return Loop(train, targets, model=model)


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


@step()
def a_teacher_is_copied_at_each_step() -> Loop:
    """Batch norm's statistics are of the copy, too."""
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = SGD(model.parameters(), lr=0.1)

    def train(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        teacher = copy.deepcopy(model).requires_grad_(False)
        wanted = teacher(x + 0.1)
        loss = updated(optimizer, F.mse_loss(model(x), y) + F.mse_loss(model(x), wanted))
        return loss.detach(), teacher[1].running_mean, model[1].running_mean.clone()

    return Loop(train, targets, model=model, optimizer=optimizer)


@step()
def copies_of_tensors_with_gradients() -> Loop:
    weight = torch.randn(6, 3, requires_grad=True)

    def train(x: Tensor) -> tuple[Tensor, ...]:
        trial = copy.deepcopy(weight)
        (x @ trial).square().mean().backward()
        again = copy.deepcopy(trial)
        with torch.no_grad():
            weight.sub_(again.grad, alpha=0.1)
            again.add_(1.0)
        return trial.detach(), again.detach(), again.grad

    return Loop(train, features, weight=weight)


@step()
def a_leaf_of_the_steps_own_is_written_to() -> Loop:
    """An attack: a leaf that is used, moved by its gradient, and used again."""
    model = mlp(out=1)
    optimizer = SGD(model.parameters(), lr=0.05)

    def train(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        noise = torch.zeros_like(x).requires_grad_()
        for _ in range(2):
            F.mse_loss(model(x + noise), y).backward()
            with torch.no_grad():
                noise.add_(noise.grad.sign(), alpha=0.05)
            noise.grad = None
        loss = updated(optimizer, F.mse_loss(model(x + noise.detach()), y))
        return loss.detach(), noise.detach()

    return Loop(train, targets, model=model, optimizer=optimizer)


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
