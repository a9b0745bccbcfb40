"""Training steps put together at random: of each part that a step has, one of several."""

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import SGD, Adagrad, Adam, AdamW, NAdam, RMSprop
from torch.optim.lr_scheduler import ExponentialLR, LambdaLR, StepLR
from torch.utils.checkpoint import checkpoint

from tests.steps.data import ROWS, D, K, drawn
from tests.steps.registry import Loop


class _Square(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * x.sigmoid() + x.roll(1, -1)


class _Writes(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 1.5
        y[:, 0].add_(1)
        y[:, 1:3] = y[:, 1:3].tanh()
        return y


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(2, D, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x.unflatten(1, (3, 2)))[0][:, -1]


class _Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(2, 6)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x.unflatten(1, (3, 2))).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v).flatten(1)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(D, D),
    "no bias": lambda: nn.Linear(D, D, bias=False),
    "layer norm": lambda: nn.LayerNorm(D),
    "batch norm": lambda: nn.BatchNorm1d(D),
    "rms norm": lambda: nn.RMSNorm(D),
    "dropout": lambda: nn.Dropout(0.3),
    "gelu": nn.GELU,
    "relu in place": lambda: nn.ReLU(inplace=True),
    "tanh": nn.Tanh,
    "softplus": nn.Softplus,
    "bilinear": _Square,
    "view and write": _Writes,
    "gru": _Recurrent,
    "attention": _Attends,
}
OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: SGD(p, lr=0.05),
    "momentum": lambda p: SGD(p, lr=0.05, momentum=0.9, foreach=True),
    "nesterov": lambda p: SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda p: Adam(p, lr=0.01, foreach=False),
    "adamw": lambda p: AdamW(p, lr=0.01, amsgrad=True),
    "fused": lambda p: AdamW(p, lr=0.01, fused=True),
    "rmsprop": lambda p: RMSprop(p, lr=0.01, momentum=0.5),
    "adagrad": lambda p: Adagrad(p, lr=0.05),
    "nadam": lambda p: NAdam(p, lr=0.01),
}
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross entropy": F.cross_entropy,
    "smoothed": lambda out, y: F.cross_entropy(out, y, label_smoothing=0.1),
    "mean square": lambda out, y: F.mse_loss(out, F.one_hot(y, K).float()),
    "by hand": lambda out, y: -out.log_softmax(-1).gather(1, y[:, None]).mean(),
    "margin": lambda out, y: F.relu(1 - out.gather(1, y[:, None]) + out).mean(),
    "each": lambda out, y: F.cross_entropy(out, y, reduction="none").sort().values[:5].mean(),
}
CHOICES: dict[str, list[str]] = {
    "optimizer": [*OPTIMIZERS],
    "loss": [*LOSSES],
    "cleared": ["before", "after", "to zeros", "between", "by hand", "after, to zeros"],
    "scheduler": ["none", "none", "step", "exponential", "warm-up", "exponential outside"],
    "clipped": ["none", "none", "norm", "value", "norm in a loop", "by hand"],
    "penalty": ["none", "none", "input gradient", "weight gradient", "decay", "hessian"],
    "parts": ["one", "one", "two micro-batches", "retained"],
    "average": ["none", "none", "in a module", "in a dict"],
    "hook": ["none", "none", "none", "on the output", "on parameters", "after accumulation"],
    "precision": ["float32", "float32", "float32", "autocast"],
    "checkpoint": ["none", "none", "none", "first layer"],
    "told": ["tensor", "item", "with history", "dict"],
    "counted": ["nothing", "attribute", "mean"],
    "sizes": ["one", "one", "smaller last"],
}


def _clamp(p: Tensor) -> None:
    p.grad.clamp_(-0.1, 0.1)


class Composed:
    """One of them, with all that it keeps."""

    def __init__(self, choice: dict[str, str], layers: list[str]) -> None:
        self.choice, self.layers = choice, layers
        self.model = nn.Sequential(*(LAYERS[each]() for each in self.layers), nn.Linear(D, K))
        self.optimizer = OPTIMIZERS[self.choice["optimizer"]](self.model.parameters())
        self.scheduler = self._scheduler()
        self.average = nn.ModuleList([nn.Linear(D, K)])
        self.kept = {n: p.detach().clone() for n, p in self.model.named_parameters()}
        self.steps, self.mean = 0, 0.0
        self._hooks()

    def _scheduler(self) -> Any:
        kind = self.choice["scheduler"]
        if kind == "step":
            return StepLR(self.optimizer, 3, 0.5)
        if kind.startswith("exponential"):
            return ExponentialLR(self.optimizer, 0.9)
        return LambdaLR(self.optimizer, lambda n: min(1.0, (n + 1) / 4)) if kind != "none" else None

    def _hooks(self) -> None:
        for p in self.model.parameters():
            if self.choice["hook"] == "on parameters":
                p.register_hook(lambda g: g * 0.5)
            elif self.choice["hook"] == "after accumulation":
                p.register_post_accumulate_grad_hook(_clamp)

    def batch(self, index: int) -> tuple[Tensor, Tensor]:
        """Features and classes."""
        if index and self.choice["scheduler"] == "exponential outside":
            self.scheduler.step()
        g = drawn(index)
        rows = 6 if self.choice["sizes"] == "smaller last" and index % 4 == 3 else ROWS
        return torch.randn(rows, D, generator=g), torch.randint(K, (rows,), generator=g)

    # ---- the step --------------------------------------------------------------------------------

    def step(self, x: Tensor, y: Tensor) -> Any:
        """All of it."""
        if self.choice["cleared"] == "before":
            self.optimizer.zero_grad()
        elif self.choice["cleared"] == "to zeros":
            self.optimizer.zero_grad(set_to_none=False)
        if self.choice["parts"] == "two micro-batches":
            for part, wanted in zip(x.chunk(2), y.chunk(2), strict=True):
                loss = self.loss(part, wanted) / 2
                loss.backward()
        else:
            loss = self.loss(x, y)
            if self.choice["cleared"] == "between":
                self.optimizer.zero_grad()
            elif self.choice["cleared"] == "by hand":
                for p in self.model.parameters():
                    p.grad = None
            if self.choice["parts"] == "retained":
                (loss * 0.5).backward(retain_graph=True)
            loss.backward()
        self._clip()
        self.optimizer.step()
        self._afterwards()
        return self._told(loss)

    def out(self, x: Tensor) -> Tensor:
        """What the model says."""
        if self.choice["checkpoint"] == "none":
            return self.model(x)
        hidden = checkpoint(self.model[0], x, use_reentrant=False)
        return self.model[1:](hidden)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """With its penalty."""
        penalty = self.choice["penalty"]
        x = x * 1
        if penalty == "input gradient":
            x = x.detach().requires_grad_() * 1
        with torch.autocast("cpu", torch.bfloat16, enabled=self.choice["precision"] == "autocast"):
            out = self.out(x)
            if self.choice["hook"] == "on the output":
                out.register_hook(lambda g: g.clamp(-0.2, 0.2))
        loss = LOSSES[self.choice["loss"]](out.float(), y)
        weight = self.model[-1].weight
        if penalty == "input gradient":
            (g,) = torch.autograd.grad(out.float().square().sum(), x, create_graph=True)
            return loss + 0.01 * g.square().mean()
        if penalty == "weight gradient":
            (g,) = torch.autograd.grad(loss, weight, create_graph=True)
            return loss + 0.01 * g.abs().sum()
        if penalty == "hessian":
            (g,) = torch.autograd.grad(loss, weight, create_graph=True)
            (h,) = torch.autograd.grad((g * weight.detach()).sum(), weight, create_graph=True)
            return loss + 0.01 * (h * h).sum()
        return loss + 0.01 * weight.square().sum() if penalty == "decay" else loss

    def _clip(self) -> None:
        way, params = self.choice["clipped"], list(self.model.parameters())
        if way == "norm":
            clip_grad_norm_(params, 0.5)
        elif way == "norm in a loop":
            clip_grad_norm_(params, 0.5, norm_type=1.0, foreach=False)
        elif way == "value":
            clip_grad_value_(params, 0.1)
        elif way == "by hand":
            for p in params:
                if p.grad is not None:
                    p.grad = p.grad.clamp(-0.1, 0.1)

    def _afterwards(self) -> None:
        if self.choice["average"] == "in a module":
            with torch.no_grad():
                pairs = zip(self.average.parameters(), self.model[-1].parameters(), strict=True)
                for kept, p in pairs:
                    kept.lerp_(p, 0.1)
        elif self.choice["average"] == "in a dict":
            for name, p in self.model.named_parameters():
                self.kept[name] = 0.9 * self.kept[name] + 0.1 * p.detach()
        if self.choice["cleared"] == "after":
            self.optimizer.zero_grad()
        elif self.choice["cleared"] == "after, to zeros":
            self.optimizer.zero_grad(set_to_none=False)
        if self.choice["scheduler"] in ("step", "exponential", "warm-up"):
            self.scheduler.step()

    def _told(self, loss: Tensor) -> Any:
        if self.choice["counted"] == "attribute":
            self.steps += 1
        elif self.choice["counted"] == "mean":
            self.steps += 1
            self.mean += (loss.item() - self.mean) / self.steps
        told = self.choice["told"]
        if told == "item":
            return loss.item()
        if told == "dict":
            return {"loss": loss.detach(), "lr": self.optimizer.param_groups[0]["lr"]}
        return loss if told == "with history" else loss.detach()


def chosen(seed: int) -> tuple[dict[str, str], list[str]]:
    """The parts and the layers of a seed."""
    draw = random.Random(seed)
    choice = {part: draw.choice(ways) for part, ways in CHOICES.items()}
    layers = draw.choices([*LAYERS], k=draw.randint(1, 4))
    if layers[0] == "batch norm":
        choice["checkpoint"] = "none"  # its statistics would be written twice, which is refused
    return choice, layers


def composed(seed: int) -> Loop:
    """The loop of a seed."""
    return of(*chosen(seed))


def of(choice: dict[str, str], layers: list[str]) -> Loop:
    """The loop of some parts."""
    made = Composed(choice, layers)
    return Loop(made.step, made.batch, made=made)
