"""Learning rates that change: schedulers called in the step and after it, warm-up, param groups."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, lr_scheduler as schedule

from tests.steps.data import labelled, mlp, targets
from tests.steps.loops import classifies, regressor, updated
from tests.steps.registry import Loop, add, step

Scheduling = Callable[[Optimizer], Any]

SCHEDULES: dict[str, Scheduling] = {
    "step_lr": lambda o: schedule.StepLR(o, step_size=3, gamma=0.5),
    "multi_step": lambda o: schedule.MultiStepLR(o, milestones=[2, 5], gamma=0.1),
    "exponential": lambda o: schedule.ExponentialLR(o, gamma=0.9),
    "constant": lambda o: schedule.ConstantLR(o, factor=0.5, total_iters=4),
    "linear": lambda o: schedule.LinearLR(o, start_factor=0.1, total_iters=5),
    "polynomial": lambda o: schedule.PolynomialLR(o, total_iters=8, power=2.0),
    "cosine": lambda o: schedule.CosineAnnealingLR(o, T_max=10),
    "cosine_restarts": lambda o: schedule.CosineAnnealingWarmRestarts(o, T_0=4),
    "warm_up_then_cosine": lambda o: schedule.LambdaLR(o, warm_up_then_cosine),
    "multiplicative": lambda o: schedule.MultiplicativeLR(o, lambda epoch: 0.95),
    "one_cycle": lambda o: schedule.OneCycleLR(o, max_lr=0.1, total_steps=12),
    "cyclic": lambda o: schedule.CyclicLR(o, base_lr=0.01, max_lr=0.1, step_size_up=3),
    "sequential": lambda o: schedule.SequentialLR(
        o, [schedule.LinearLR(o, total_iters=3), schedule.ExponentialLR(o, 0.9)], milestones=[3]
    ),
    "chained": lambda o: schedule.ChainedScheduler(
        [schedule.ConstantLR(o, total_iters=3), schedule.ExponentialLR(o, 0.9)]
    ),
}


def warm_up_then_cosine(epoch: int) -> float:
    """A factor of the learning rate."""
    if epoch < 4:
        return (epoch + 1) / 4
    return 0.5 * (1 + math.cos(math.pi * (epoch - 4) / 10))


def scheduled(make: Scheduling, *, inside: bool) -> Loop:
    """The usual step; the scheduler follows in it, or in the loop around it."""
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = make(optimizer)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = updated(optimizer, F.cross_entropy(model(x), y))
        if inside:
            scheduler.step()
        return loss.detach()

    def batch(index: int) -> tuple[Tensor, Tensor]:
        if index and not inside:
            scheduler.step()
        return labelled(index)

    return Loop(train, batch, model=model, optimizer=optimizer, scheduler=scheduler)


for _name, _make in SCHEDULES.items():
    add(f"{_name}_in_the_step", __name__, partial(scheduled, _make, inside=True))
    add(f"{_name}_after_the_step", __name__, partial(scheduled, _make, inside=False))


FUSED: dict[str, Callable[[Any], Optimizer]] = {
    "adam": lambda p: Adam(p, lr=0.1, amsgrad=True, fused=True),
    "adamw": lambda p: AdamW(p, lr=0.1, fused=True),
    "sgd": lambda p: SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, fused=True),
}


def fused(make: Callable[[Any], Optimizer]) -> Loop:
    """Its update takes the learning rate as a plain float, or as a tensor."""
    model = mlp()
    optimizer = make(model.parameters())
    scheduler = schedule.ExponentialLR(optimizer, gamma=0.8)

    def batch(index: int) -> tuple[Tensor, Tensor]:
        if index:
            scheduler.step()
        return labelled(index)

    return classifies(model, optimizer, batch=batch, scheduler=scheduler)


for _name, _kind in FUSED.items():
    add(f"fused_{_name}_under_a_schedule", __name__, partial(fused, _kind))


@step()
def reduced_on_a_plateau_after_the_step() -> Loop:
    model = mlp(out=1)
    optimizer = SGD(model.parameters(), lr=0.5)
    scheduler = schedule.ReduceLROnPlateau(optimizer, patience=1, factor=0.5)
    losses: list[float] = []

    def train(x: Tensor, y: Tensor) -> Tensor:
        return updated(optimizer, F.mse_loss(model(x), y))

    def after(x: Tensor, y: Tensor) -> Tensor:
        return train(x, y)

    def batch(index: int) -> tuple[Tensor, Tensor]:
        if index:
            with torch.no_grad():
                losses.append(F.mse_loss(model(targets(0)[0]), targets(0)[1]).item())
            scheduler.step(losses[-1])
        return targets(index)

    return Loop(after, batch, model=model, optimizer=optimizer, scheduler=scheduler, losses=losses)


@step()
def reduced_on_a_plateau_in_the_step() -> Loop:
    """Better or not, reduced or not; and each number that it keeps is found to change."""
    model = mlp(out=1)
    optimizer = SGD(model.parameters(), lr=0.5)
    scheduler = schedule.ReduceLROnPlateau(optimizer, patience=1, factor=0.5)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = updated(optimizer, F.mse_loss(model(x), y))
        scheduler.step(loss.detach())
        return loss.detach()

    return Loop(train, targets, model=model, optimizer=optimizer, scheduler=scheduler)


@step()
def warm_up_by_hand_in_a_class() -> Loop:
    class Trainer:
        def __init__(self) -> None:
            self.model = mlp()
            self.optimizer = AdamW(self.model.parameters(), lr=0.0)
            self.steps = 0

        def train(self, x: Tensor, y: Tensor) -> Tensor:
            for group in self.optimizer.param_groups:
                group["lr"] = 0.01 * min(1.0, (self.steps + 1) / 5)
            loss = F.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
            self.steps += 1
            return loss.detach()

    trainer = Trainer()
    return Loop(trainer.train, labelled, trainer=trainer)


@step()
def groups_with_their_own_rates() -> Loop:
    model = mlp()
    optimizer = Adam([
        {"params": model[0].parameters(), "lr": 0.001},
        {"params": [model[2].weight], "lr": 0.01, "weight_decay": 0.1},
        {"params": [model[2].bias], "lr": 0.1, "betas": (0.5, 0.9)},
    ])  # fmt: skip

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return Loop(train, labelled, model=model, optimizer=optimizer)


@step()
def rates_that_decay_layer_by_layer() -> Loop:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.GELU()) for _ in range(3)))
    groups = [
        {"params": layer.parameters(), "lr": 0.1 * 0.5**depth}
        for depth, layer in enumerate(reversed(model))
    ]
    optimizer = SGD(groups, lr=0.1, momentum=0.9)
    scheduler = schedule.LambdaLR(optimizer, [lambda e, d=d: 1 / (1 + d * e) for d in range(3)])

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(model(x), y.expand(-1, 6))
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return loss.detach()

    return Loop(train, targets, model=model, optimizer=optimizer, scheduler=scheduler)


@step(first_calls=2)
def a_group_is_added_later() -> Loop:
    """The head alone at first, the body from the fifth batch on; added outside of the step."""
    model = mlp()
    optimizer = SGD(model[2].parameters(), lr=0.1, momentum=0.9)

    def batch(index: int) -> tuple[Tensor, Tensor]:
        if index == 5:
            optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.01})
        return labelled(index)

    return classifies(model, optimizer, batch=batch)


@regressor(SGD, lr=0.05, momentum=0.5, weight_decay=1e-3)
def momentum_and_decay_are_scheduled_by_hand(model, optimizer, x, y) -> Tensor:
    loss = updated(optimizer, F.mse_loss(model(x), y))
    group = optimizer.param_groups[0]
    group["momentum"] = min(0.95, group["momentum"] + 0.05)
    group["weight_decay"] *= 1.1
    return loss.detach()
