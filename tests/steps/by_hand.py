"""Updates that the user writes: under no_grad, an Optimizer of one's own, around another one."""

import math
from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from tests.steps.data import D, labelled, mlp, one_number, targets
from tests.steps.loops import backward, by_hand, classifies, learner, updated
from tests.steps.registry import Loop, step


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


@by_hand()
def descends_through_data(model, x, y) -> float:
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    for p in model.parameters():
        p.data -= 0.1 * p.grad.data
        p.grad.data.zero_()
    return loss.item()


@by_hand()
def descends_by_autograd_grad(model, x, y) -> Tensor:
    params = list(model.parameters())
    loss = F.cross_entropy(model(x), y)
    with torch.no_grad():
        for p, g in zip(params, torch.autograd.grad(loss, params), strict=True):
            p.add_(g, alpha=-0.1)
    return loss.detach()


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
    return classifies(model, Lion(model.parameters(), lr=0.01, weight_decay=0.1))


@learner(Lion, lr=0.01)
def lion_with_a_closure(model, optimizer, x, y) -> Tensor:
    def closure() -> Tensor:
        return backward(optimizer, F.cross_entropy(model(x), y))

    return optimizer.step(closure)


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
    return classifies(model, Counting(model.parameters(), lr=0.1))


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
    return classifies(model, LayerwiseRates(model.parameters(), lr=1.0, momentum=0.9))


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
    return classifies(model, Lookahead(Adam(model.parameters(), lr=0.01)))


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


@by_hand(model=one_number, batch=targets)
def stochastic_langevin(model, x, y) -> Tensor:
    model.zero_grad(set_to_none=True)
    loss = F.mse_loss(model(x), y)
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(-0.01 * p.grad + math.sqrt(2 * 0.01) * 0.01 * torch.randn_like(p))
    return loss.detach()


@learner(SGD, lr=0.1)
def weights_are_kept_on_a_sphere(model, optimizer, x, y) -> Tensor:
    loss = updated(optimizer, F.cross_entropy(model(x), y))
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() == 2:
                torch.renorm(p, 2, 0, 0.5, out=p)
    return loss.detach()


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
