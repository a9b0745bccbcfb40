"""When hooks run: each as soon as all of its gradient is there, in the midst of the backward."""

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD
from torch.utils.checkpoint import checkpoint

from tests.steps.data import D, labelled, mlp
from tests.steps.registry import Loop, step


def updated(parameters: list[Any]) -> None:
    """A step of plain descent; no gradient is left."""
    with torch.no_grad():
        for p in parameters:
            if p.grad is not None:
                p.sub_(0.1 * p.grad)
                p.grad = None


@step()
def hooks_after_and_in_between() -> Loop:
    """What follows a parameter is told of it before the layers below are gone through."""
    model = mlp()
    told: list[str] = []
    for name, p in model.named_parameters():
        p.register_post_accumulate_grad_hook(lambda p, name=name: told.append(name))

    def train(x: Tensor, y: Tensor) -> tuple[Tensor, str]:
        told.clear()
        h = model[1](model[0](x))
        h.register_hook(lambda g: told.append("h"))
        doubled = h * 2
        doubled.register_hook(lambda g: told.append("doubled"))
        loss = F.cross_entropy(model[2](doubled), y)
        loss.backward()
        updated(list(model.parameters()))
        return loss.detach(), " ".join(told)

    return Loop(train, labelled, model=model)


@step()
def hooks_on_leaves_and_in_between() -> Loop:
    model = mlp()
    told: list[str] = []
    for name, p in model.named_parameters():
        p.register_hook(lambda g, name=name: told.append(name))

    def train(x: Tensor, y: Tensor) -> tuple[Tensor, str]:
        told.clear()
        h = model[1](model[0](x.requires_grad_()))
        handle = x.register_hook(lambda g: told.append("x"))
        h.register_hook(lambda g: told.append("h"))
        loss = F.cross_entropy(model[2](h), y)
        slopes = torch.autograd.grad(loss, [*model.parameters(), x, h])
        handle.remove()
        with torch.no_grad():
            for p, slope in zip(model.parameters(), slopes, strict=False):
                p.sub_(0.1 * slope)
        return loss.detach(), " ".join(told)

    return Loop(train, labelled, model=model)


@step()
def hooks_that_look_at_other_gradients() -> Loop:
    model = mlp()
    parameters = list(model.parameters())
    there: list[int] = []

    def after(p: Tensor) -> None:
        there.append(sum(each.grad is not None for each in parameters))
        for each in parameters:
            if each.grad is not None:
                each.grad.mul_(1.1)

    for p in parameters:
        p.register_post_accumulate_grad_hook(after)

    def train(x: Tensor, y: Tensor) -> tuple[Tensor, str]:
        there.clear()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        updated(parameters)
        return loss.detach(), str(there)

    return Loop(train, labelled, model=model)


@step()
def optimizers_in_the_backward() -> Loop:
    model = mlp()
    optimizers = {p: SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}

    def after(p: Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(after)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss.detach()

    return Loop(train, labelled, model=model, optimizers=list(optimizers.values()))


@step()
def hooks_on_what_is_used_twice() -> Loop:
    weight, bias, last = (nn.Parameter(torch.randn(*size)) for size in ((D, D), (D,), (D,)))
    told: list[str] = []
    for name, p in {"weight": weight, "bias": bias, "last": last}.items():
        p.register_post_accumulate_grad_hook(lambda p, name=name: told.append(name))

    def train(x: Tensor, y: Tensor) -> str:
        told.clear()
        h = F.linear(F.linear(x, weight, bias).tanh(), weight, bias) + last + bias
        h.square().mean().backward()
        updated([weight, bias, last])
        return " ".join(told)

    return Loop(train, labelled, weight=weight, bias=bias, last=last)


@step()
def hooks_around_a_checkpoint() -> Loop:
    model = mlp()
    parameters = list(model.parameters())
    sums: list[Tensor] = []
    for p in parameters:
        p.register_post_accumulate_grad_hook(lambda p: sums.append(p.grad.sum()))

    def train(x: Tensor, y: Tensor) -> Tensor:
        sums.clear()
        h: Any = checkpoint(model[:2], x, use_reentrant=False)
        F.cross_entropy(model[2](h), y).backward()
        F.cross_entropy(model(x * 2), y).backward(inputs=parameters[:3])
        updated(parameters)
        return torch.stack(sums)

    return Loop(train, labelled, model=model)


@step()
def updated_by_hooks_that_ask_for_overflow() -> Loop:
    """LOMO: a gradient is asked about in the midst of the backward, by what a composite saved."""
    model = mlp()

    @torch.no_grad()
    def update(p: Tensor) -> None:
        if bool(torch.isnan(p.grad).any()):
            p.grad = None
            return
        p.sub_(p.grad, alpha=0.1)
        p.grad = None

    for each in model.parameters():
        each.register_post_accumulate_grad_hook(update)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss.detach()

    return Loop(train, labelled, model=model)


@step()
def a_projection_that_is_made_anew_now_and_then() -> Loop:
    """GaLore: one way of the step binds the tensor that the other one reads."""
    model = mlp()
    projector = SimpleNamespace(basis=torch.eye(4, D), count=0)

    def train(x: Tensor, y: Tensor) -> Tensor:
        F.cross_entropy(model(x), y).backward()
        gradient = model[0].weight.grad
        if projector.count % 3 == 0:
            projector.basis = torch.linalg.svd(gradient.T @ gradient).Vh[:4].contiguous()
        projector.count += 1
        with torch.no_grad():
            model[0].weight.sub_(gradient @ projector.basis.T @ projector.basis, alpha=0.1)
        model.zero_grad()
        return gradient.norm()

    return Loop(train, labelled, model=model, projector=projector)
