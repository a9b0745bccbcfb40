"""What is read of memory that a step writes to: as it was, as it is, by way of views."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.steps.data import D, labelled, mlp, targets
from tests.steps.loops import by_hand
from tests.steps.registry import Loop, step


@step()
def reads_parameters_as_they_were() -> Loop:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        before = [p.detach().clone() for p in model.parameters()]
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        moved = [(p.detach() - old).norm() for p, old in zip(model.parameters(), before)]  # noqa: B905
        return torch.stack(moved)

    return Loop(train, labelled, model=model)


@step()
def views_of_parameters_see_the_update() -> Loop:
    w, b = nn.Parameter(torch.randn(D, 1)), nn.Parameter(torch.zeros(1))

    def train(x: Tensor, y: Tensor) -> Tensor:
        first, rest = w.detach()[:1], w.detach()[1:]
        before = first * 2
        F.mse_loss(x @ w + b, y).backward()
        with torch.no_grad():
            for p in (w, b):
                p.sub_(p.grad, alpha=0.1)
                p.grad = None
        return torch.cat([before, first, rest.sum(0, keepdim=True)])

    return Loop(train, targets, w=w, b=b)


@by_hand(model=lambda: nn.Parameter(torch.randn(D, 2)), batch=targets)
def writes_through_views_of_parameters(w, x, y) -> Tensor:
    loss = F.mse_loss((x @ w).sum(1, keepdim=True), y)
    (grad,) = torch.autograd.grad(loss, w)
    with torch.no_grad():
        w[:, 0].sub_(grad[:, 0], alpha=0.1)
        w.t()[1].add_(w[:, 0], alpha=0.01)
        w.view(-1)[::3].mul_(0.9)
    return loss.detach()


@step()
def the_new_state_is_computed_of_the_old() -> Loop:
    w, fast, slow = nn.Parameter(torch.randn(D, 1)), torch.zeros(D, 1), torch.zeros(D, 1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        (grad,) = torch.autograd.grad(F.mse_loss(x @ w, y), w)
        with torch.no_grad():
            old = fast
            fast.lerp_(grad, 0.5)
            slow.lerp_(old, 0.1)
            held = slow.clone()
            slow.copy_(fast)
            fast.copy_(held)
            w.sub_(slow + fast, alpha=0.1)
        return old.detach().clone()

    return Loop(train, targets, w=w, fast=fast, slow=slow)


@by_hand(model=lambda: nn.Parameter(torch.randn(D, 1)), batch=targets)
def parameters_are_returned(w, x, y) -> tuple[Tensor, Tensor, Tensor]:
    (grad,) = torch.autograd.grad(F.mse_loss(x @ w, y), w)
    with torch.no_grad():
        seen = w.detach()[1:]
        w.sub_(grad, alpha=0.1)
    return seen, w.detach(), w.detach().view(-1) * 1


@step()
def gradients_are_changed_and_kept() -> Loop:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept: dict[str, Tensor] = {}

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for name, p in model.named_parameters():
            if name in kept:
                kept[name].mul_(0.5).add_(p.grad)
                p.grad.copy_(kept[name])
            else:
                kept[name] = p.grad.clone()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss.detach()

    return Loop(train, labelled, model=model, kept=kept)


@step()
def asks_after_it_has_written() -> Loop:
    """Both answers come, and the state is that of one step each time."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            if model[0].weight.norm() > 2.1:
                model[0].weight.mul_(0.9)
        return loss.detach()

    return Loop(train, labelled, model=model, optimizer=optimizer)


@step()
def gradients_there_before_the_first_op() -> Loop:
    model = mlp()
    for p in model.parameters():
        p.grad = torch.ones_like(p)

    def train(x: Tensor, y: Tensor) -> Tensor:
        for p in model.parameters():
            p.grad.mul_(0.1)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        return loss.detach()

    return Loop(train, labelled, model=model)


@step()
def indices_into_what_is_written() -> Loop:
    """What may raise comes after writes: a table that each batch adds to."""
    table, w = torch.zeros(3, D), nn.Parameter(torch.randn(D, 1))
    seen = torch.zeros(3)

    def train(x: Tensor, y: Tensor) -> Tensor:
        seen.index_add_(0, y, torch.ones(len(y)))
        table.index_add_(0, y, x)
        loss = (table[y] @ w).square().mean()
        (grad,) = torch.autograd.grad(loss, w)
        with torch.no_grad():
            w.sub_(grad, alpha=0.01)
            table.mul_(0.9)
        return loss.detach()

    return Loop(train, labelled, table=table, w=w, seen=seen)
