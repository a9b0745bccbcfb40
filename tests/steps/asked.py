"""What torch.autograd is asked of inside a step: several losses, options, graphs that are kept."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam

from tests.steps.data import D, K, labelled, mlp, targets
from tests.steps.loops import by_hand, learner, regressor, updated
from tests.steps.registry import Loop, step


@step()
def two_losses_and_a_graph_that_is_kept() -> Loop:
    body, first, second = nn.Linear(D, 6), nn.Linear(6, K), nn.Linear(6, 1)
    optimizer = Adam([*body.parameters(), *first.parameters(), *second.parameters()], lr=0.01)

    def train(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        hidden = body(x).tanh()
        a, b = F.cross_entropy(first(hidden), y), second(hidden).square().mean()
        optimizer.zero_grad()
        a.backward(retain_graph=True)
        b.backward()
        optimizer.step()
        return a.detach(), b.detach()

    return Loop(train, labelled, body=body, first=first, second=second, optimizer=optimizer)


@learner(SGD, model=lambda: mlp(out=2), batch=targets, lr=0.1)
def several_roots_at_once(model, optimizer, x, y) -> Tensor:
    a, b = model(x).chunk(2, dim=1)
    optimizer.zero_grad()
    torch.autograd.backward([a.square().mean(), b], [None, (b.detach() - y) / len(y)])
    optimizer.step()
    return a.detach()


@regressor(SGD, lr=0.1)
def backward_from_a_vector(model, optimizer, x, y) -> Tensor:
    each = (model(x) - y).square()
    optimizer.zero_grad()
    each.backward(torch.full_like(each, 1 / each.numel()))
    optimizer.step()
    return each.detach()


@learner(SGD, lr=0.1)
def backward_for_some_inputs_only(model, optimizer, x, y) -> Tensor:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward(inputs=list(model[2].parameters()))
    optimizer.step()
    return loss.detach()


@step()
def unused_parameters_are_allowed() -> Loop:
    model, spare = mlp(), nn.Linear(2, 2)
    params = [*model.parameters(), *spare.parameters()]
    optimizer = SGD(params, lr=0.1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        for p, g in zip(params, torch.autograd.grad(loss, params, allow_unused=True), strict=True):
            p.grad = g
        optimizer.step()
        return loss.detach()

    return Loop(train, labelled, model=model, spare=spare, optimizer=optimizer)


@step()
def unused_gradients_are_zeros() -> Loop:
    model, spare = mlp(), nn.Linear(2, 2)
    params = [*model.parameters(), *spare.parameters()]
    optimizer = Adam(params, lr=0.01, weight_decay=0.1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        slopes = torch.autograd.grad(loss, params, materialize_grads=True)
        for p, g in zip(params, slopes, strict=True):
            p.grad = g
        optimizer.step()
        return loss.detach()

    return Loop(train, labelled, model=model, spare=spare, optimizer=optimizer)


@by_hand(model=lambda: nn.Parameter(torch.randn(D, 2) * 0.1), batch=targets)
def gradients_of_a_vector_with_its_own_weights(w, x, y) -> Tensor:
    out = (x @ w).tanh()
    (g,) = torch.autograd.grad(out, w, grad_outputs=out.detach() - y)
    w.data.sub_(0.05 * g)
    return g


@regressor(SGD, lr=0.01)
def created_graph_is_added_to_the_gradient(model, optimizer, x, y) -> Tensor:
    """`.grad` has a history: the penalty is on what backward left there."""
    loss = F.mse_loss(model(x), y)
    params = list(model.parameters())
    slopes = torch.autograd.grad(loss, params, create_graph=True)
    return updated(optimizer, loss + 0.1 * sum(g.square().sum() for g in slopes))


@learner(Adam, lr=0.01)
def saliency_of_the_input_in_the_loss(model, optimizer, x, y) -> Tensor:
    x = x.clone().requires_grad_()
    logits = model(x)
    chosen = logits.gather(1, y[:, None]).sum()
    (saliency,) = torch.autograd.grad(chosen, x, create_graph=True)
    updated(optimizer, F.cross_entropy(logits, y) + 0.1 * saliency.abs().mean())
    return saliency.detach()


@learner(SGD, model=lambda: nn.Linear(D, K), lr=0.1)
def gradient_of_each_example_in_a_loop(model, optimizer, x, y) -> Tensor:
    """DP-SGD: each clipped on its own, and noise."""
    params = list(model.parameters())
    sums = [torch.zeros_like(p) for p in params]
    for i in range(len(x)):
        loss = F.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        slopes = torch.autograd.grad(loss, params)
        norm = torch.stack([g.norm() for g in slopes]).norm()
        share = (0.5 / (norm + 1e-6)).clamp(max=1.0)
        for held, g in zip(sums, slopes, strict=True):
            held.add_(share * g)
    for p, held in zip(params, sums, strict=True):
        p.grad = (held + 0.01 * torch.randn_like(held)) / len(x)
    optimizer.step()
    return loss.detach()


@regressor(SGD, lr=0.1)
def gradients_by_torch_func_in_the_step(model, optimizer, x, y) -> Tensor:
    params = {n: p.detach() for n, p in model.named_parameters()}

    def loss(values: dict[str, Tensor]) -> Tensor:
        return F.mse_loss(torch.func.functional_call(model, values, (x,)), y)

    slopes, value = torch.func.grad_and_value(loss)(params)
    for n, p in model.named_parameters():
        p.grad = slopes[n]
    optimizer.step()
    return value


@regressor(SGD, lr=0.1)
def the_loss_goes_out_with_its_history(model, optimizer, x, y) -> tuple[Tensor, Tensor]:
    out = model(x)
    loss = F.mse_loss(out, y)
    updated(optimizer, loss)
    return out, loss


@regressor(SGD, lr=0.1)
def gradients_go_out(model, optimizer, x, y) -> list[Tensor]:
    updated(optimizer, F.mse_loss(model(x), y))
    return [p.grad for p in model.parameters()]
