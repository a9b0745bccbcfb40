"""The comparison of training steps fails when it should: captures wrong in one way each."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.steps.data import features
from tests.support.steps import Loop, same_steps

Fault = Callable[["Trainer"], None]
BATCHES = 4


class Trainer:
    """Has a bit of everything that a step may leave."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.scaler = torch.amp.GradScaler("cpu")
        self.count, self.log, self.kept = 0, [0.0], {"mean": torch.zeros(3)}
        self.pair = [torch.zeros(3), torch.zeros(3)]

    def __call__(self, x: Tensor) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.count += 1
        self.log[0] += loss.item()
        self.kept["mean"] = x.mean(0)
        return loss.detach()


def build() -> Loop:
    trainer = Trainer()
    return Loop(trainer, lambda i: (features(i)[0][:, :3],), trainer=trainer)


def faulty(fault: Fault) -> Callable[..., Any]:
    """A capture that does the step, and at the third batch something else."""

    class Captured:
        _entries, _first_calls, breaks = (), (), ()

        def __init__(self, trainer: Trainer) -> None:
            self.trainer = trainer

        def __call__(self, x: Tensor) -> Tensor:
            result = self.trainer(x)
            if self.trainer.count == 3:
                fault(self.trainer)
            return result

    return Captured


def last_bit(tensor: Tensor) -> None:
    tensor.data.view(-1)[0] = torch.nextafter(tensor.data.view(-1)[0], torch.tensor(9.0))


def weight(trainer: Trainer) -> nn.Parameter:
    return trainer.model[0].weight


def replaced_gradient(trainer: Trainer) -> None:
    """In another layout."""
    weight(trainer).grad = weight(trainer).grad.t().contiguous().t()


FAULTS: dict[str, Fault] = {
    "a bit of a parameter": lambda t: last_bit(weight(t)),
    "a bit of a gradient": lambda t: last_bit(weight(t).grad),
    "no gradient": lambda t: setattr(weight(t), "grad", None),
    "strides of a gradient": replaced_gradient,
    "a parameter that is frozen": lambda t: weight(t).requires_grad_(requires_grad=False),
    "a buffer": lambda t: t.model[1].running_var.add_(1),
    "a mode": lambda t: t.model.eval(),
    "a momentum": lambda t: last_bit(t.optimizer.state[weight(t)]["momentum_buffer"]),
    "a momentum that is gone": lambda t: t.optimizer.state.pop(weight(t)),
    "a learning rate": lambda t: t.optimizer.param_groups[0].update(lr=0.3),
    "a schedule": lambda t: setattr(t.scheduler, "last_epoch", 0),
    "a scale": lambda t: setattr(t.scaler, "_growth_interval", 1),
    "a counter": lambda t: setattr(t, "count", 4),
    "the kind of a number": lambda t: setattr(t, "count", 3.0),
    "what a list holds": lambda t: t.log.append(1.0),
    "a tensor in a dict": lambda t: last_bit(t.kept["mean"]),
    "one tensor in the place of two": lambda t: t.pair.__setitem__(1, t.pair[0]),
    "memory that is shared": lambda t: t.pair.__setitem__(1, t.pair[0].view(3)),
    "torch's random state": lambda t: torch.rand(1),
    "Python's random state": lambda t: random.random(),
    "grad mode": lambda t: torch.set_grad_enabled(mode=False),
}


def test_a_right_one() -> None:
    ran = same_steps(build, compile=faulty(lambda _: None), batches=BATCHES)
    assert ran.captures == 0


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_one(name: str) -> None:
    try:
        with pytest.raises(AssertionError, match="batch 2 differs from eager"):
            same_steps(build, compile=faulty(FAULTS[name]), batches=BATCHES)
    finally:
        torch.set_grad_enabled(mode=True)


def test_a_result() -> None:
    def wrong(trainer: Trainer) -> Callable[..., Any]:
        made = faulty(lambda _: None)(trainer)
        return type("Other", (type(made),), {"__call__": lambda _, x: trainer(x) * 1.0001})(trainer)

    with pytest.raises(AssertionError, match=r"batch 0 differs from eager:\n.*result"):
        same_steps(build, compile=wrong, batches=BATCHES)


def test_a_history_of_a_result() -> None:
    def wrong(trainer: Trainer) -> Callable[..., Any]:
        made = faulty(lambda _: None)(trainer)
        follow = {"__call__": lambda _, x: trainer(x).requires_grad_()}
        return type("Other", (type(made),), follow)(trainer)

    with pytest.raises(AssertionError, match="requires_grad"):
        same_steps(build, compile=wrong, batches=BATCHES)
