"""Updates that the user writes: under no_grad, an Optimizer of one's own, around another one."""

import math
from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from tests.steps.registry import (
    D,
    Loop,
    backward,
    classifies,
    labelled,
    mlp,
    step,
    targets,
    updated,
)


@step()
def descends_under_no_grad() -> Loop:
    w, b = nn.Parameter(torch.zeros(D, 1)), nn.Parameter(torch.zeros(1))

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(x @ w + b, y)
        loss.backward()
        with torch.no_grad():
            for p in (w, b):
                p -= 0.1 * p.grad  # noqa: PLW2901  (as users write it)
                p.grad.zero_()
        return loss.detach()

    return Loop(train, targets, w=w, b=b)


@step()
def descends_through_data() -> Loop:
    model = mlp()

    def train(x: Tensor, y: Tensor) -> float:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for p in model.parameters():
            p.data -= 0.1 * p.grad.data
            p.grad.data.zero_()
        return loss.item()

    return Loop(train, labelled, model=model)


@step()
def descends_by_autograd_grad() -> Loop:
    model = mlp()

    def train(x: Tensor, y: Tensor) -> Tensor:
        params = list(model.parameters())
        loss = F.cross_entropy(model(x), y)
        with torch.no_grad():
            for p, g in zip(params, torch.autograd.grad(loss, params), strict=True):
                p.add_(g, alpha=-0.1)
        return loss.detach()

    return Loop(train, labelled, model=model)


@step()
def momentum_kept_in_a_list() -> Loop:
    model = mlp()
    speeds = [torch.zeros_like(p) for p in model.parameters()]

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = backward(model, F.cross_entropy(model(x), y))
        with torch.no_grad():
            for i, p in enumerate(model.parameters()):
                speeds[i] = 0.9 * speeds[i] + p.grad
                p.sub_(0.1 * speeds[i])
        return loss.detach()

    return Loop(train, labelled, model=model, speeds=speeds)


@step()
def adam_from_its_paper() -> Loop:
    class Trainer:
        def __init__(self) -> None:
            self.model = mlp(out=1)
            self.t = 0
            self.m = {n: torch.zeros_like(p) for n, p in self.model.named_parameters()}
            self.v = {n: torch.zeros_like(p) for n, p in self.model.named_parameters()}

        def train(self, x: Tensor, y: Tensor) -> Tensor:
            self.t += 1
            loss = backward(self.model, F.mse_loss(self.model(x), y))
            with torch.no_grad():
                for n, p in self.model.named_parameters():
                    self.m[n].lerp_(p.grad, 0.1)
                    self.v[n].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
                    m, v = self.m[n] / (1 - 0.9**self.t), self.v[n] / (1 - 0.999**self.t)
                    p.sub_(0.01 * m / (v.sqrt() + 1e-8))
            return loss.detach()

    trainer = Trainer()
    return Loop(trainer.train, targets, trainer=trainer)


@step()
def by_foreach_of_torch() -> Loop:
    model = mlp()
    params = list(model.parameters())
    speeds = [torch.zeros_like(p) for p in params]

    @torch.no_grad()
    def update() -> None:
        slopes = [p.grad for p in params]
        torch._foreach_mul_(speeds, 0.9)
        torch._foreach_add_(speeds, slopes)
        torch._foreach_add_(params, speeds, alpha=-0.1)
        torch._foreach_zero_(slopes)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        update()
        return loss.detach()

    return Loop(train, labelled, model=model, speeds=speeds)


# ------------------------------------------------------------------------- optimizers of the user


class Lion(Optimizer):
    """By the sign of an interpolated momentum."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                state = self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                beta1, beta2 = group["betas"]
                update = state["exp_avg"] * beta1 + p.grad * (1 - beta1)
                p.add_(update.sign_(), alpha=-group["lr"])
                state["exp_avg"].mul_(beta2).add_(p.grad, alpha=1 - beta2)
        return loss


@step()
def lion() -> Loop:
    model = mlp()
    optimizer = Lion(model.parameters(), lr=0.01, weight_decay=0.1)

    return classifies(model, optimizer)


@step()
def lion_with_a_closure() -> Loop:
    model = mlp()
    optimizer = Lion(model.parameters(), lr=0.01)

    def train(x: Tensor, y: Tensor) -> Tensor:
        def closure() -> Tensor:
            return backward(optimizer, F.cross_entropy(model(x), y))

        return optimizer.step(closure)

    return Loop(train, labelled, model=model, optimizer=optimizer)


@step()
def an_optimizer_that_counts_in_python() -> Loop:
    class Counting(Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    state = self.state[p]
                    if not state:
                        state["step"], state["mean"] = 0, torch.zeros_like(p)
                    state["step"] += 1
                    state["mean"].mul_(0.9).add_(p.grad, alpha=0.1)
                    size = group["lr"] / (1 - 0.9 ** state["step"])
                    p.add_(state["mean"], alpha=-size)

    model = mlp()
    optimizer = Counting(model.parameters(), lr=0.1)

    return classifies(model, optimizer)


class LayerwiseRates(SGD):
    """LARS: the norm of a weight over that of its gradient."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                w, g = p.norm(), p.grad.norm()
                trust = torch.where((w > 0) & (g > 0), 0.01 * w / (g + 1e-9), torch.ones_like(w))
                p.grad.mul_(trust)
        return super().step(closure)


@step()
def an_optimizer_derived_from_torchs() -> Loop:
    model = mlp()
    optimizer = LayerwiseRates(model.parameters(), lr=1.0, momentum=0.9)

    return classifies(model, optimizer)


class Lookahead:
    """Slow weights follow the fast ones every k steps."""

    def __init__(self, base: Optimizer, k: int = 3, alpha: float = 0.5) -> None:
        self.base, self.k, self.alpha, self.counter = base, k, alpha, 0
        self.slow = [[p.clone().detach() for p in g["params"]] for g in base.param_groups]

    def step(self) -> None:
        self.base.step()
        self.counter += 1
        if self.counter % self.k:
            return
        for group, slow in zip(self.base.param_groups, self.slow, strict=True):
            for p, q in zip(group["params"], slow, strict=True):
                q.data.add_(p.data - q.data, alpha=self.alpha)
                p.data.copy_(q.data)

    def zero_grad(self) -> None:
        self.base.zero_grad()


@step()
def lookahead() -> Loop:
    model = mlp()
    optimizer = Lookahead(Adam(model.parameters(), lr=0.01))

    return classifies(model, optimizer)


@step()
def lookahead_with_state_in_a_defaultdict() -> Loop:
    model = mlp()
    base = SGD(model.parameters(), lr=0.1)
    state: dict[str, Tensor] = defaultdict()
    counts = {"steps": 0}

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = updated(base, F.cross_entropy(model(x), y))
        counts["steps"] += 1
        with torch.no_grad():
            for name, p in model.named_parameters():
                if name not in state:
                    state[name] = p.detach().clone()
                elif counts["steps"] % 2 == 0:
                    state[name].lerp_(p, 0.5)
                    p.copy_(state[name])
        return loss.detach()

    return Loop(train, labelled, model=model, base=base, state=state, counts=counts)


@step()
def stochastic_langevin() -> Loop:
    model = mlp(out=1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        model.zero_grad(set_to_none=True)
        loss = F.mse_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(-0.01 * p.grad + math.sqrt(2 * 0.01) * 0.01 * torch.randn_like(p))
        return loss.detach()

    return Loop(train, targets, model=model)


@step()
def weights_are_kept_on_a_sphere() -> Loop:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = updated(optimizer, F.cross_entropy(model(x), y))
        with torch.no_grad():
            for p in model.parameters():
                if p.dim() == 2:
                    torch.renorm(p, 2, 0, 0.5, out=p)
        return loss.detach()

    return Loop(train, labelled, model=model, optimizer=optimizer)


@step()
def warm_restarts_of_momentum() -> Loop:
    """Momentum is thrown away every fourth step."""
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    counts = {"steps": 0}

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = updated(optimizer, F.cross_entropy(model(x), y))
        counts["steps"] += 1
        if counts["steps"] % 4 == 0:
            for p in model.parameters():
                optimizer.state[p]["momentum_buffer"].zero_()
        return loss.detach()

    return Loop(train, labelled, model=model, optimizer=optimizer, counts=counts)
