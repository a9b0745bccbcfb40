"""Gradients that others hold, too: whose memory they are, and who sees what is written to them."""

import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

from tests.steps.data import D, mlp, one_number, targets
from tests.steps.loops import backward, by_hand, fits, regressor, updated
from tests.steps.registry import Loop, step


@regressor(SGD, lr=0.01)
def an_older_gradient_is_added_to_in_place(model, optimizer, x, y) -> tuple[Tensor, Tensor]:
    """Who holds `.grad` sees what the next backward adds."""
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    held = model[0].weight.grad
    before = held.clone()
    F.l1_loss(model(x), y).backward()
    optimizer.step()
    return held - before, held


@regressor(SGD, lr=0.01)
def gradients_that_went_out_are_added_to_later(model, optimizer, x, y) -> list[Tensor]:
    F.mse_loss(model(x), y).backward()
    optimizer.step()
    return [p.grad for p in model.parameters()]


@regressor(SGD, lr=0.01)
def gradients_that_went_out_are_zeroed_later(model, optimizer, x, y) -> list[Tensor]:
    optimizer.zero_grad(set_to_none=False)
    F.mse_loss(model(x), y).backward()
    optimizer.step()
    return [p.grad for p in model.parameters()]


@regressor(SGD, lr=0.01)
def gradients_that_went_out_are_left_alone(model, optimizer, x, y) -> list[Tensor]:
    updated(optimizer, F.mse_loss(model(x), y))
    return [p.grad for p in model.parameters()]


@step()
def a_gradient_is_bound_and_clipped_in_place() -> Loop:
    model = mlp(out=1)
    params = list(model.parameters())

    def train(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        found = torch.autograd.grad(F.mse_loss(model(x), y), params)
        for p, g in zip(params, found, strict=True):
            p.grad = g
        nn.utils.clip_grad_norm_(params, 0.01)
        with torch.no_grad():
            for p in params:
                p.sub_(p.grad)
        return found

    return Loop(train, targets, model=model)


@step()
def one_gradient_for_two_parameters() -> Loop:
    """Both get the same tensor from the backward of a sum."""
    a, b, w = (nn.Parameter(torch.randn(8, D)) for _ in range(3))

    def train(x: Tensor, y: Tensor) -> Tensor:
        for p in (a, b, w):
            p.grad = None
        loss = ((a + b) * w * x).sum()
        loss.backward()
        a.grad.mul_(2)
        with torch.no_grad():
            for p in (a, b, w):
                p.sub_(0.01 * p.grad)
        return loss.detach()

    return Loop(train, targets, a=a, b=b, w=w)


@step()
def one_gradient_asked_for_two() -> Loop:
    a, b = (nn.Parameter(torch.randn(8, D)) for _ in range(2))

    def train(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        ga, gb = torch.autograd.grad(((a + b) * x).sum(), (a, b))
        with torch.no_grad():
            a.sub_(0.01 * ga)
            ga.zero_()
            b.sub_(0.01 * gb)
        return ga, gb

    return Loop(train, targets, a=a, b=b)


@by_hand(model=lambda: nn.Parameter(torch.randn(8, D)), batch=targets)
def the_given_gradient_comes_back(w, x, y) -> tuple[Tensor, Tensor]:
    v = x.clone()
    (g,) = torch.autograd.grad(w + 0, w, v)
    g.mul_(2)
    with torch.no_grad():
        w.sub_(0.01 * v)
    return g, v


@by_hand(model=lambda: nn.Parameter(torch.randn(8, D)), batch=targets)
def the_given_gradient_becomes_grad(w, x, y) -> Tensor:
    w.grad = None
    v = x.clone()
    (w * 1).backward(v)
    w.backward(v)
    v.add_(1)
    with torch.no_grad():
        w.sub_(0.01 * w.grad)
    return v


@by_hand(model=lambda: nn.Parameter(torch.randn(D, 8)), batch=targets)
def gradients_through_a_view(w, x, y) -> tuple[Tensor, Tensor]:
    flat = w.t()
    gw, gf = torch.autograd.grad((flat * x).sum(), (w, flat))
    gf.add_(1)
    with torch.no_grad():
        w.sub_(0.01 * gw)
    return gw, gf


@step()
def a_hook_holds_the_gradient() -> Loop:
    model = mlp(out=1)
    held: dict[str, Tensor] = {}
    for name, p in model.named_parameters():
        p.register_hook(lambda g, name=name: held.update({name: g}))
    optimizer = SGD(model.parameters(), lr=0.01)

    def train(x: Tensor, y: Tensor) -> Tensor:
        backward(optimizer, F.mse_loss(model(x), y))
        nn.utils.clip_grad_value_(model.parameters(), 0.001)
        optimizer.step()
        return held["0.weight"].abs().max()

    return Loop(train, targets, model=model, held=held, optimizer=optimizer)


@by_hand(model=lambda: nn.Parameter(torch.randn(D, 1) * 0.1), batch=targets)
def a_gradient_that_has_a_graph_stays(w, x, y) -> tuple[Tensor, bool]:
    """`backward(create_graph=True)`: `.grad` has a history when the step ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss = F.mse_loss(x @ w, y)
        loss.backward(create_graph=True)
    with torch.no_grad():
        w.sub_(0.1 * w.grad)
    return loss.detach(), w.grad.requires_grad


@by_hand(model=lambda: nn.Parameter(torch.randn(D, 1) * 0.1), batch=targets)
def a_gradient_with_a_graph_is_added_to(w, x, y) -> Tensor:
    w.grad = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (x @ w).pow(3).sum().backward(create_graph=True)
        w.grad.square().sum().backward()
    with torch.no_grad():
        w.sub_(0.001 * w.grad)
    return w.grad.detach().clone()


@by_hand(model=one_number, batch=targets)
def gradients_of_values_between(model, x, y) -> Tensor:
    """`inputs=` names what is no leaf."""
    hidden = model[1](model[0](x))
    loss = F.mse_loss(model[2](hidden), y)
    hidden.retain_grad()
    loss.backward(inputs=[hidden, model[2].weight])
    with torch.no_grad():
        model[2].weight.sub_(0.01 * model[2].weight.grad)
    model[2].weight.grad = None
    return hidden.grad


@step()
def a_gradient_in_another_layout_is_there() -> Loop:
    """What is added goes into the layout of what is there."""
    model = mlp(out=1)
    for p in model.parameters():
        if p.dim() == 2:
            p.grad = torch.zeros(p.shape[::-1]).t()

    def train(x: Tensor, y: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of strides that do not match
            loss = F.mse_loss(model(x), y)
            loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(0.01 * p.grad)
        return loss.detach()

    return Loop(train, targets, model=model)


@step()
def a_parameter_that_lies_transposed() -> Loop:
    w = nn.Parameter(torch.randn(1, D).t())
    v = nn.Parameter(torch.randn(3, D).t())

    def train(x: Tensor, y: Tensor) -> Tensor:
        w.grad = v.grad = None
        loss = F.mse_loss(x @ w + (x @ v).sum(1, keepdim=True), y)
        loss.backward()
        with torch.no_grad():
            w.sub_(0.01 * w.grad)
            v.sub_(0.01 * v.grad)
        return loss.detach()

    return Loop(train, targets, w=w, v=v)


@step()
def a_hook_for_several_gradients() -> Loop:
    model = mlp(out=1)
    optimizer = SGD(model.parameters(), lr=0.01)
    seen: dict[str, Tensor] = {}

    def together(grads: tuple[Tensor | None, ...]) -> None:
        seen["norm"] = torch.stack([g.norm() for g in grads if g is not None]).norm()

    torch.autograd.graph.register_multi_grad_hook(list(model.parameters()), together)

    def train(x: Tensor, y: Tensor) -> Tensor:
        updated(optimizer, F.mse_loss(model(x), y))
        return seen["norm"]

    return Loop(train, targets, model=model, optimizer=optimizer, seen=seen)


@step()
def hooks_replace_grad_in_the_backward() -> Loop:
    model = mlp(out=1)

    def halve(p: Tensor) -> None:
        p.grad = p.grad * 0.5

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(halve)

    return fits(model, SGD(model.parameters(), lr=0.1))


@by_hand(model=lambda: nn.Parameter(torch.randn(D) * 0.1), batch=targets)
def jacobians_by_torch_autograd_functional(w, x, y) -> Tensor:
    def out(values: Tensor) -> Tensor:
        return torch.tanh(x @ values)

    jacobian = torch.autograd.functional.jacobian(out, w.detach())
    with torch.no_grad():
        w.sub_(0.1 * jacobian.T @ (out(w) - y[:, 0]) / len(x))
    return jacobian
