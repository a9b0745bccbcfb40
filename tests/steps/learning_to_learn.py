"""Gradients of gradients in a step: MAML, physics, several tasks, sharpness, implicit layers."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import SGD, Adam

from tests.steps.data import D, K, drawn, labelled, mlp, one_number, targets
from tests.steps.loops import by_hand, learner, updated
from tests.steps.registry import Loop, step


def tasks(index: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """To adapt to, and to be judged by."""
    g = drawn(index)
    return tuple(torch.randn(5, n, generator=g) for n in (D, 1, D, 1))  # type: ignore[return-value]


@learner(Adam, model=one_number, batch=tasks, lr=0.01)
def maml_by_functional_call(model, optimizer, x, y, qx, qy) -> Tensor:
    fast = dict(model.named_parameters())
    for _ in range(2):
        loss = F.mse_loss(functional_call(model, fast, (x,)), y)
        slopes = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
        fast = {n: p - 0.1 * g for (n, p), g in zip(fast.items(), slopes, strict=True)}
    return updated(optimizer, F.mse_loss(functional_call(model, fast, (qx,)), qy))


@step()
def maml_of_the_first_order_by_hand() -> Loop:
    w = nn.Parameter(torch.randn(D, 1) * 0.1)
    b = nn.Parameter(torch.zeros(1))
    optimizer = SGD([w, b], lr=0.1)

    def train(x: Tensor, y: Tensor, qx: Tensor, qy: Tensor) -> Tensor:
        fast_w, fast_b = w, b
        for _ in range(3):
            loss = F.mse_loss(x @ fast_w + fast_b, y)
            gw, gb = torch.autograd.grad(loss, (fast_w, fast_b))
            fast_w, fast_b = fast_w - 0.1 * gw, fast_b - 0.1 * gb
        return updated(optimizer, F.mse_loss(qx @ fast_w + fast_b, qy))

    return Loop(train, tasks, w=w, b=b, optimizer=optimizer)


@by_hand(model=one_number, batch=tasks)
def reptile(model, x, y, qx, qy) -> Tensor:
    """A few steps on a copy, and the weights move towards it."""
    old = [p.detach().clone() for p in model.parameters()]
    for _ in range(3):
        loss = F.mse_loss(model(x), y)
        for p, g in zip(
            model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
        ):
            p.data.sub_(0.1 * g)
    with torch.no_grad():
        for p, before in zip(model.parameters(), old, strict=True):
            p.copy_(before + 0.5 * (p - before))
    return F.mse_loss(model(qx), qy).detach()


@step()
def the_rate_is_learned_too() -> Loop:
    """Hypergradient: the step's own rate is a parameter."""
    w = nn.Parameter(torch.randn(D, 1))
    rate = nn.Parameter(torch.tensor(0.05))
    optimizer = SGD([rate], lr=0.001)

    def train(x: Tensor, y: Tensor, qx: Tensor, qy: Tensor) -> Tensor:
        (slope,) = torch.autograd.grad(F.mse_loss(x @ w, y), w)
        new = w.detach() - rate * slope
        loss = updated(optimizer, F.mse_loss(qx @ new, qy))
        with torch.no_grad():
            w.copy_(new)
        return loss.detach()

    return Loop(train, tasks, w=w, rate=rate, optimizer=optimizer)


# -------------------------------------------------------------------------------------- physics


def points(index: int) -> tuple[Tensor, Tensor]:
    """Where an equation is to hold, in space and time."""
    g = drawn(index)
    return torch.rand(6, 1, generator=g), torch.rand(6, 1, generator=g)


def slope(of: Tensor, by: Tensor) -> Tensor:
    """The derivative, point by point."""
    return torch.autograd.grad(of, by, torch.ones_like(of), create_graph=True)[0]


@learner(Adam, model=lambda: mlp(given=2, out=1), batch=points, lr=0.01)
def korteweg_de_vries_with_third_derivatives(model, optimizer, x, t) -> Tensor:
    x, t = x.clone().requires_grad_(), t.clone().requires_grad_()
    u = model(torch.cat([x, t], dim=1))
    ux = slope(u, x)
    uxxx = slope(slope(ux, x), x)
    residual = slope(u, t) + 6 * u * ux + uxxx
    start = model(torch.cat([x, torch.zeros_like(t)], dim=1)) - torch.cosh(x).pow(-2)
    return updated(optimizer, residual.square().mean() + start.square().mean())


@step()
def heat_equation_with_a_learned_constant() -> Loop:
    model = mlp(given=2, out=1)
    k = nn.Parameter(torch.tensor(0.5))
    optimizer = Adam([*model.parameters(), k], lr=0.01)

    def train(x: Tensor, t: Tensor) -> Tensor:
        x.requires_grad_()
        t.requires_grad_()
        u = model(torch.hstack([x, t]))
        ut, ux = torch.autograd.grad(u.sum(), (t, x), create_graph=True)
        (uxx,) = torch.autograd.grad(ux.sum(), x, create_graph=True)
        return updated(optimizer, F.mse_loss(ut, k * uxx))

    return Loop(train, points, model=model, k=k, optimizer=optimizer)


@step()
def forces_are_derivatives_of_an_energy() -> Loop:
    model = nn.Sequential(nn.Linear(3, 8), nn.SiLU(), nn.Linear(8, 1))
    optimizer = Adam(model.parameters(), lr=0.01)

    def train(places: Tensor, energy: Tensor, force: Tensor) -> Tensor:
        places = places.detach().requires_grad_()
        found = model(places).sum()
        forces = -torch.autograd.grad(found, places, create_graph=True, retain_graph=True)[0]
        return updated(optimizer, (found - energy).square() + 10 * F.mse_loss(forces, force))

    def batch(index: int) -> tuple[Tensor, ...]:
        g = drawn(index)
        return tuple(torch.randn(shape, generator=g) for shape in ((5, 3), (), (5, 3)))

    return Loop(train, batch, model=model, optimizer=optimizer)


# ---------------------------------------------------------------------------------- several tasks


@step()
def conflicting_gradients_are_projected() -> Loop:
    """PCGrad: where two disagree, each loses what goes against the other."""
    body, first, second = nn.Linear(D, 6), nn.Linear(6, K), nn.Linear(6, 1)
    optimizer = SGD([*body.parameters(), *first.parameters(), *second.parameters()], lr=0.05)

    def train(x: Tensor, y: Tensor) -> Tensor:
        hidden = body(x).tanh()
        losses = [F.cross_entropy(first(hidden), y), F.mse_loss(second(hidden)[:, 0], y.float())]
        params = list(body.parameters())
        slopes = [
            torch.cat([g.flatten() for g in torch.autograd.grad(each, params, retain_graph=True)])
            for each in losses
        ]
        a, b = slopes
        dot = a @ b
        if dot < 0:
            a, b = a - dot / b.dot(b) * b, b - dot / a.dot(a) * a
        optimizer.zero_grad()
        sum(losses).backward()
        start = 0
        for p in params:
            p.grad = (a + b)[start : start + p.numel()].view_as(p)
            start += p.numel()
        optimizer.step()
        return torch.stack(losses).detach()

    return Loop(train, labelled, body=body, first=first, second=second, optimizer=optimizer)


@step()
def conflicting_gradients_without_a_question() -> Loop:
    body, heads = nn.Linear(D, 6), nn.ModuleList([nn.Linear(6, 1) for _ in range(3)])
    optimizer = Adam([*body.parameters(), *heads.parameters()], lr=0.01)

    def train(x: Tensor, y: Tensor) -> Tensor:
        hidden = body(x).relu()
        losses = torch.stack([F.mse_loss(head(hidden), y) for head in heads])
        rows = torch.stack([
            torch.autograd.grad(each, body.weight, retain_graph=True)[0].flatten()
            for each in losses
        ])  # fmt: skip
        dots = rows @ rows.T
        share = dots.clamp(max=0) / dots.diagonal().clamp(min=1e-6)
        optimizer.zero_grad()
        losses.sum().backward()
        body.weight.grad.sub_((share.sum(0) @ rows).view_as(body.weight))
        optimizer.step()
        return losses.detach()

    return Loop(train, targets, body=body, heads=heads, optimizer=optimizer)


@step()
def tasks_are_weighed_by_their_uncertainty() -> Loop:
    body, heads = nn.Linear(D, 6), nn.ModuleList([nn.Linear(6, 1), nn.Linear(6, 1)])
    doubts = nn.Parameter(torch.zeros(2))
    optimizer = Adam([*body.parameters(), *heads.parameters(), doubts], lr=0.01)

    def train(x: Tensor, y: Tensor) -> Tensor:
        hidden = body(x).relu()
        losses = torch.stack([F.mse_loss(heads[0](hidden), y), F.l1_loss(heads[1](hidden), y)])
        return updated(optimizer, (torch.exp(-doubts) * losses + doubts).sum())

    return Loop(train, targets, body=body, heads=heads, doubts=doubts, optimizer=optimizer)


@step()
def gradients_are_balanced_between_tasks() -> Loop:
    """GradNorm: weights of the losses follow the norms of their gradients."""
    body, heads = nn.Linear(D, 6), nn.ModuleList([nn.Linear(6, 1), nn.Linear(6, 1)])
    weights = nn.Parameter(torch.ones(2))
    optimizer = SGD([*body.parameters(), *heads.parameters()], lr=0.05)
    of_weights = SGD([weights], lr=0.02)
    first = torch.ones(2)

    def train(x: Tensor, y: Tensor) -> Tensor:
        hidden = body(x).tanh()
        losses = torch.stack([F.mse_loss(heads[0](hidden), y), F.l1_loss(heads[1](hidden), y)])
        optimizer.zero_grad()
        of_weights.zero_grad()
        (weights.detach() * losses).sum().backward(retain_graph=True)
        norms = torch.stack([
            torch.autograd.grad(weights[i] * losses[i], body.weight, retain_graph=True,
                                create_graph=True)[0].norm()
            for i in range(2)
        ])  # fmt: skip
        ratio = (losses / first).detach()
        aim = (norms.mean() * (ratio / ratio.mean()) ** 0.5).detach()
        weights.grad = torch.autograd.grad((norms - aim).abs().sum(), weights)[0]
        optimizer.step()
        of_weights.step()
        with torch.no_grad():
            weights.mul_(2 / weights.sum())
        return losses.detach()

    return Loop(
        train, targets, body=body, heads=heads, weights=weights, optimizer=optimizer,
        of_weights=of_weights,
    )  # fmt: skip


# ------------------------------------------------------------------------------- sharpness, others


@learner(SGD, lr=0.1, momentum=0.9)
def sharpness_aware(model, optimizer, x, y) -> Tensor:
    """Two backward passes: to the worst point nearby, and down from there."""
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    with torch.no_grad():
        norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm() + 1e-12
        up = [p.grad * (0.05 / norm) for p in model.parameters()]
        for p, e in zip(model.parameters(), up, strict=True):
            p.add_(e)
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for p, e in zip(model.parameters(), up, strict=True):
            p.sub_(e)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


@step()
def sharpness_aware_as_an_optimizer() -> Loop:
    class SAM(torch.optim.Optimizer):
        def __init__(self, params, base, rho=0.05, **kwargs):
            super().__init__(params, {"rho": rho, **kwargs})
            self.base = base(self.param_groups, **kwargs)

        @torch.no_grad()
        def first_step(self) -> None:
            norm = torch.norm(torch.stack([
                p.grad.norm(p=2) for group in self.param_groups for p in group["params"]
            ]), p=2)  # fmt: skip
            for group in self.param_groups:
                scale = group["rho"] / (norm + 1e-12)
                for p in group["params"]:
                    self.state[p]["old"] = p.data.clone()
                    p.add_(p.grad * scale)

        @torch.no_grad()
        def second_step(self) -> None:
            for group in self.param_groups:
                for p in group["params"]:
                    p.data = self.state[p]["old"]
            self.base.step()

    model = mlp()
    optimizer = SAM(model.parameters(), SGD, lr=0.1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.first_step()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.second_step()
        optimizer.zero_grad()
        return loss.detach()

    return Loop(train, labelled, model=model, optimizer=optimizer)


@step()
def elastic_weights_with_a_fisher_matrix() -> Loop:
    """What mattered before is held: the square of gradients, kept as a running mean."""
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.05)
    fisher = [torch.zeros_like(p) for p in model.parameters()]
    anchor = [p.detach().clone() for p in model.parameters()]

    def train(x: Tensor, y: Tensor) -> Tensor:
        params = list(model.parameters())
        loss = F.cross_entropy(model(x), y)
        for held, g in zip(
            fisher, torch.autograd.grad(loss, params, retain_graph=True), strict=True
        ):
            held.mul_(0.9).addcmul_(g, g, value=0.1)
        parts = zip(fisher, params, anchor, strict=True)
        return updated(optimizer, loss + sum((f * (p - a).square()).sum() for f, p, a in parts))

    return Loop(train, labelled, model=model, fisher=fisher, anchor=anchor, optimizer=optimizer)


@by_hand(model=lambda: nn.Parameter(torch.randn(D, K) * 0.1))
def newton_by_conjugate_gradients(w, x, y) -> Tensor:
    """Hessian-free: products with the Hessian by double backward."""
    loss = F.cross_entropy(x @ w, y) + 0.05 * w.square().sum()
    (g,) = torch.autograd.grad(loss, w, create_graph=True)
    step, left = torch.zeros_like(w), -g.detach()
    way = left.clone()
    for _ in range(3):
        (product,) = torch.autograd.grad((g * way).sum(), w, retain_graph=True)
        far = left.square().sum() / (way * product).sum()
        step += far * way
        new = left - far * product
        way = new + new.square().sum() / left.square().sum() * way
        left = new
    with torch.no_grad():
        w.add_(step)
    return loss.detach()


@by_hand(model=lambda: nn.Parameter(torch.randn(D) * 0.1), batch=targets)
def a_natural_gradient_from_per_example_ones(w, x, y) -> Tensor:
    losses = (x @ w - y[:, 0]).square()
    rows = torch.stack([torch.autograd.grad(each, w, retain_graph=True)[0] for each in losses])
    matrix = rows.T @ rows / len(rows) + 0.1 * torch.eye(D)
    with torch.no_grad():
        w.sub_(0.1 * torch.linalg.solve(matrix, rows.mean(0)))
    return losses.mean().detach()
