"""Steps as methods of trainers: counters, logs, hidden states, early stopping, frameworks."""

from collections import Counter, deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import StepLR

from tests.steps.data import D, K, drawn, labelled, mlp, targets
from tests.steps.loops import backward, learner, updated
from tests.steps.registry import Loop, step


@step()
def a_method_that_counts() -> Loop:
    class Trainer:
        def __init__(self) -> None:
            self.model = mlp()
            self.optimizer = AdamW(self.model.parameters(), lr=0.01)
            self.step = 0
            self.seen = 0

        def train_step(self, x: Tensor, y: Tensor) -> Tensor:
            loss = updated(self.optimizer, F.cross_entropy(self.model(x), y))
            self.step += 1
            self.seen += x.shape[0]
            return loss.detach()

    trainer = Trainer()
    return Loop(trainer.train_step, labelled, trainer=trainer)


@step()
def losses_are_logged_in_a_list() -> Loop:
    """The list is only filled (decision 058)."""
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    log: list[float] = []

    def train(x: Tensor, y: Tensor) -> None:
        loss = updated(optimizer, F.cross_entropy(model(x), y))
        log.append(loss.item())

    return Loop(train, labelled, model=model, optimizer=optimizer, log=log)


@step()
def losses_are_logged_by_name() -> Loop:
    model = mlp(out=1)
    optimizer = SGD(model.parameters(), lr=0.1)
    history: dict[str, list[float]] = {"near": [], "small": []}

    def train(x: Tensor, y: Tensor) -> Tensor:
        near = F.mse_loss(model(x), y)
        small = 0.01 * sum(p.square().sum() for p in model.parameters())
        updated(optimizer, near + small)
        history["near"].append(near.item())
        history["small"].append(float(small.detach()))
        return near.detach()

    return Loop(train, targets, model=model, optimizer=optimizer, history=history)


@step()
def losses_are_logged_by_whatever_name() -> Loop:
    class Logger:
        def __init__(self) -> None:
            self.values: dict[str, list[float]] = {"loss": [], "norm": []}
            self.rows: list[dict[str, Any]] = []

        def note(self, step: int, **values: float) -> None:
            for name, value in values.items():
                self.values[name].append(value)
            self.rows.append({"step": step, **values})

    model, logger, count = mlp(), Logger(), Counter[str]()
    optimizer = SGD(model.parameters(), lr=0.1)

    def train(x: Tensor, y: Tensor) -> None:
        loss = backward(optimizer, F.cross_entropy(model(x), y))
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        count["steps"] += 1
        logger.note(count["steps"], loss=loss.item(), norm=norm.item())

    return Loop(train, labelled, model=model, optimizer=optimizer, logger=logger, count=count)


@step()
def losses_are_averaged_now_and_then() -> Loop:
    """One way only fills the list; the other reads it and clears it."""
    model, means = mlp(), SimpleNamespace(steps=0, last=0.0)
    optimizer = SGD(model.parameters(), lr=0.1)
    log: list[float] = []

    def train(x: Tensor, y: Tensor) -> None:
        loss = updated(optimizer, F.cross_entropy(model(x), y))
        log.append(loss.item())
        means.steps += 1
        if means.steps % 3 == 0:
            means.last = sum(log) / len(log)
            log.clear()

    return Loop(train, labelled, model=model, optimizer=optimizer, log=log, means=means)


@step()
def the_last_three_losses() -> Loop:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    recent: deque[float] = deque(maxlen=3)

    def train(x: Tensor, y: Tensor) -> float:
        loss = updated(optimizer, F.cross_entropy(model(x), y))
        recent.append(loss.item())
        return sum(recent) / len(recent)

    return Loop(train, labelled, model=model, optimizer=optimizer, recent=recent)


@step()
def a_running_mean_of_the_loss() -> Loop:
    @dataclass
    class Meter:
        total: float = 0.0
        count: int = 0
        mean: float = 0.0

        def update(self, value: float, n: int) -> None:
            self.total += value * n
            self.count += n
            self.mean = self.total / self.count

    model, meter = mlp(), Meter()
    optimizer = SGD(model.parameters(), lr=0.1)

    def train(x: Tensor, y: Tensor) -> float:
        loss = updated(optimizer, F.cross_entropy(model(x), y))
        meter.update(loss.item(), len(x))
        return meter.mean

    return Loop(train, labelled, model=model, optimizer=optimizer, meter=meter)


@step()
def stops_early_by_patience() -> Loop:
    @dataclass
    class Stopping:
        best: float = float("inf")
        waited: int = 0
        stop: bool = False

        def told(self, loss: float) -> None:
            if loss < self.best - 1e-3:
                self.best, self.waited = loss, 0
            else:
                self.waited += 1
                self.stop = self.waited >= 20

    model, stopping = mlp(out=1), Stopping()
    optimizer = SGD(model.parameters(), lr=0.1)

    def train(x: Tensor, y: Tensor) -> bool:
        loss = updated(optimizer, F.mse_loss(model(x), y))
        stopping.told(loss.item())
        return stopping.stop

    return Loop(train, targets, model=model, optimizer=optimizer, stopping=stopping)


@step()
def the_best_weights_are_kept() -> Loop:
    model = mlp(out=1)
    optimizer = SGD(model.parameters(), lr=0.1)
    best: dict[str, Any] = {
        "loss": 1e9,
        "weights": [p.detach().clone() for p in model.parameters()],
    }

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = updated(optimizer, F.mse_loss(model(x), y))
        if loss.item() < best["loss"]:
            best["loss"] = loss.item()
            for kept, p in zip(best["weights"], model.parameters(), strict=True):
                kept.copy_(p.detach())
        return loss.detach()

    return Loop(train, targets, model=model, optimizer=optimizer, best=best)


@learner(Adam, lr=0.01)
def accuracy_beside_the_loss(model, optimizer, x, y) -> dict[str, Any]:
    model.train()
    logits = model(x)
    loss = updated(optimizer, F.cross_entropy(logits, y, label_smoothing=0.1))
    right = (logits.argmax(-1) == y).sum().item()
    return {"loss": loss.item(), "accuracy": right / len(y), "logits": logits.detach()}


@step()
def trained_and_evaluated_in_one() -> Loop:
    model = nn.Sequential(
        nn.Linear(D, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, K)
    )
    optimizer = SGD(model.parameters(), lr=0.1)
    held_out = labelled(1000)

    def train(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        model.train()
        loss = updated(optimizer, F.cross_entropy(model(x), y))
        model.eval()
        with torch.no_grad():
            judged = F.cross_entropy(model(held_out[0]), held_out[1])
        model.train()
        return loss.detach(), judged

    return Loop(train, labelled, model=model, optimizer=optimizer)


# ---------------------------------------------------------------------------------- hidden states


@step()
def truncated_backpropagation_with_a_kept_state() -> Loop:
    class Trainer:
        def __init__(self) -> None:
            self.cell, self.out = nn.GRUCell(3, 4), nn.Linear(4, 1)
            params = [*self.cell.parameters(), *self.out.parameters()]
            self.optimizer = Adam(params, lr=0.01)
            self.hidden = torch.zeros(2, 4)

        def train(self, xs: Tensor, ys: Tensor) -> Tensor:
            hidden, loss = self.hidden, torch.zeros(())
            for x, y in zip(xs, ys, strict=True):
                hidden = self.cell(x, hidden)
                loss = loss + F.mse_loss(self.out(hidden), y)
            updated(self.optimizer, loss)
            self.hidden = hidden.detach()
            return loss.detach()

    trainer = Trainer()
    return Loop(trainer.train, sequences, trainer=trainer)


def sequences(index: int) -> tuple[Tensor, Tensor]:
    """Four steps of two series, and what follows."""
    g = drawn(index)
    return torch.randn(4, 2, 3, generator=g), torch.randn(4, 2, 1, generator=g)


@step()
def a_state_of_an_lstm_in_a_tuple() -> Loop:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.out = nn.LSTM(3, 4), nn.Linear(4, 1)
            self.state: tuple[Tensor, Tensor] | None = None

        def forward(self, xs: Tensor) -> Tensor:
            found, state = self.rnn(xs, self.state)
            self.state = tuple(each.detach() for each in state)
            return self.out(found)

    model = Network()
    optimizer = SGD(model.parameters(), lr=0.1)

    def train(xs: Tensor, ys: Tensor) -> Tensor:
        loss = backward(optimizer, F.mse_loss(model(xs), ys))
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
        return loss.detach()

    return Loop(train, sequences, model=model, optimizer=optimizer)


@step()
def a_state_in_a_buffer_that_is_detached_in_place() -> Loop:
    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = nn.RNNCell(3, 4)
            self.out = nn.Linear(4, 1)
            self.register_buffer("hidden", torch.zeros(2, 4))

        def forward(self, xs: Tensor) -> Tensor:
            hidden = self.hidden
            outs = []
            for x in xs:
                hidden = self.cell(x, hidden)
                outs.append(self.out(hidden))
            self.hidden = hidden.detach()
            return torch.stack(outs)

    model = Network()
    optimizer = SGD(model.parameters(), lr=0.1)

    def train(xs: Tensor, ys: Tensor) -> Tensor:
        return updated(optimizer, F.mse_loss(model(xs), ys))

    return Loop(train, sequences, model=model, optimizer=optimizer)


# --------------------------------------------------------------------------------- frameworks


class Module(nn.Module):
    """What a framework gives: optimizers by a method, a backward of its own, a log."""

    def __init__(self) -> None:
        super().__init__()
        self.global_step = 0
        self.logged: dict[str, Any] = {}
        self._made: list[Any] = []

    def optimizers(self) -> Any:
        if not self._made:
            self._made = self.configure_optimizers()
        return self._made if len(self._made) > 1 else self._made[0]

    def manual_backward(self, loss: Tensor, **kwargs: Any) -> None:
        loss.backward(**kwargs)

    def log(self, name: str, value: Tensor) -> None:
        self.logged[name] = value.detach()


@step()
def manual_optimization_of_two() -> Loop:
    class Both(Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = mlp(out=4), nn.Linear(4, K)

        def configure_optimizers(self) -> list[Any]:
            return [Adam(self.first.parameters(), 0.01), SGD(self.second.parameters(), 0.1)]

        def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
            x, y = batch
            of_first, of_second = self.optimizers()
            loss = F.cross_entropy(self.second(self.first(x)), y)
            of_first.zero_grad()
            of_second.zero_grad()
            self.manual_backward(loss)
            of_first.step()
            of_second.step()
            self.global_step += 1
            self.log("loss", loss)
            return loss.detach()

    model = Both()
    return Loop(model.training_step, lambda i: (labelled(i), 0), model=model, made=model._made)


@step()
def automatic_optimization_by_a_trainer() -> Loop:
    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def training_step(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
            logits = self.net(batch["x"])
            return {"loss": F.cross_entropy(logits, batch["y"]), "logits": logits.detach()}

    @dataclass
    class Fit:
        module: Classifier
        optimizer: Any
        scheduler: Any
        every: int = 1
        callbacks: list[Any] = field(default_factory=list)

        def run(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
            out = self.module.training_step(batch)
            self.optimizer.zero_grad()
            out["loss"].backward()
            for callback in self.callbacks:
                callback(self)
            self.optimizer.step()
            return {name: value.detach() for name, value in out.items()}

    def clip(fit: Fit) -> None:
        nn.utils.clip_grad_norm_(fit.module.parameters(), 1.0)

    module = Classifier()
    optimizer = AdamW(module.parameters(), lr=0.01)
    fit = Fit(module, optimizer, StepLR(optimizer, 100), callbacks=[clip])

    def batch(index: int) -> tuple[dict[str, Tensor]]:
        x, y = labelled(index)
        return ({"x": x, "y": y},)

    return Loop(fit.run, batch, module=module, optimizer=optimizer)


@step()
def a_module_is_the_program_and_holds_its_optimizer() -> Loop:
    class Learner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()
            self.optimizer = SGD(self.net.parameters(), lr=0.1)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return updated(self.optimizer, F.cross_entropy(self.net(x), y))

    model = Learner()
    return Loop(model, labelled, model=model)


@step()
def the_model_is_an_argument() -> Loop:
    """A function of a model, an optimizer and a batch, as in torch's tutorials."""
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train(net: nn.Module, opt: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return updated(opt, F.cross_entropy(net(x), y))

    return Loop(train, lambda i: (model, optimizer, labelled(i)), model=model, optimizer=optimizer)
