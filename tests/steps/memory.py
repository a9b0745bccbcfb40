"""Parameters that get other memory by `.data`: whose it is then, and who sees what is written."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam

from tests.steps.data import features, mlp, one_number, targets
from tests.steps.loops import by_hand, learner, regressor
from tests.steps.registry import Loop, step


@by_hand(model=one_number, batch=targets)
def descends_by_data(model, x, y) -> Tensor:
    model.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    for p in model.parameters():
        p.data = p.data - 0.1 * p.grad.data
    return loss.detach()


@step()
def an_average_takes_its_place_and_leaves_again() -> Loop:
    model = mlp(out=1)
    optimizer = SGD(model.parameters(), lr=0.1)
    average = {name: p.detach().clone() for name, p in model.named_parameters()}

    def train(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        held = {}
        for name, p in model.named_parameters():
            average[name].lerp_(p.detach(), 0.1)
            held[name], p.data = p.data, average[name]
        with torch.no_grad():
            judged = F.mse_loss(model(x), y)
        for name, p in model.named_parameters():
            p.data = held[name]
        return loss.detach(), judged

    return Loop(train, targets, model=model, optimizer=optimizer, average=average)


@step()
def noise_before_the_backward() -> Loop:
    """What autograd has saved of a parameter itself it reads where the parameter is by then."""
    model = nn.Sequential(nn.Conv1d(1, 3, 3), nn.Flatten(), nn.Linear(12, 1))
    scale = nn.Parameter(torch.ones(8, 1))

    def train(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        x = (x * 1).requires_grad_()
        loss = F.mse_loss(model((x * scale[:, 0:1]).unsqueeze(1)) * scale, y)
        for i, p in enumerate(model.parameters()):
            p.data = p.data + 0.01 * i
        scale.data = scale.data * 1.5
        loss.backward()
        with torch.no_grad():
            for p in (*model.parameters(), scale):
                p.sub_(p.grad, alpha=0.05)
                p.grad = None
        return loss.detach(), x.grad

    return Loop(train, targets, model=model, scale=scale)


@by_hand(model=one_number, batch=targets)
def the_giver_is_written_to(model, x, y) -> tuple[Tensor, ...]:
    model.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    new = model[0].weight.detach() - 0.1 * model[0].weight.grad
    model[0].weight.data = new
    new.mul_(0.9)
    seen = model[0].weight.detach().clone()
    with torch.no_grad():
        model[0].weight.add_(0.01)
    return loss.detach(), seen, new.clone()


@step()
def the_giver_is_left_elsewhere() -> Loop:
    """In a dict and in an attribute, as a whole and in part; both see what is written to it."""
    model = mlp(out=1)
    left: dict[str, Tensor] = {}

    def train(x: Tensor, y: Tensor) -> Tensor:
        model.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        for name, p in model.named_parameters():
            left[name] = p.detach() - 0.1 * p.grad
            p.data = left[name]
        with torch.no_grad():
            model[2].bias.add_(0.01)
        return loss.detach()

    return Loop(train, targets, model=model, left=left)


@step()
def the_giver_is_returned_and_written_later() -> Loop:
    model = mlp(out=1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        model.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        new = model[2].weight.detach() - 0.1 * model[2].weight.grad
        model[2].weight.data = new
        return new

    def batch(index: int) -> tuple[Tensor, ...]:
        with torch.no_grad():
            model[2].weight.mul_(0.99)
        return targets(index)

    return Loop(train, batch, model=model)


@step()
def what_saw_it_before_goes_on_seeing_that() -> Loop:
    model = mlp(out=1)
    kept: dict[str, Tensor] = {}

    def train(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        model.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        weight = model[0].weight
        seen, row = weight.detach(), weight.detach()[0]
        weight.data = weight.data - 0.1 * weight.grad
        row.add_(1.0)
        kept["difference"] = weight.detach() - seen
        return loss.detach(), seen.clone()

    return Loop(train, targets, model=model, kept=kept)


@regressor(Adam, lr=0.01)
def momentum_goes_on_with_the_same_parameter(model, optimizer, x, y) -> Tensor:
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    for p in model.parameters():
        p.data = p.data.clamp(-0.5, 0.5)
    optimizer.step()
    return loss.detach()


def halve(p: Tensor) -> None:
    """A hook."""
    p.grad.mul_(0.5)


@step()
def hooks_stay_on_it() -> Loop:
    model = mlp(out=1)
    model[0].weight.register_hook(lambda g: g * 0.5)
    model[2].weight.register_post_accumulate_grad_hook(halve)

    def train(x: Tensor, y: Tensor) -> Tensor:
        model.zero_grad()
        for p in model.parameters():
            p.data = p.data * 0.99
        loss = F.mse_loss(model(x), y)
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1)
        return loss.detach()

    return Loop(train, targets, model=model)


@by_hand(model=one_number, batch=targets)
def twice_in_one_step(model, x, y) -> Tensor:
    losses = []
    for _ in range(2):
        loss = F.mse_loss(model(x), y)
        slopes = torch.autograd.grad(loss, [*model.parameters()])
        for p, g in zip(model.parameters(), slopes, strict=True):
            p.data = p.data - 0.05 * g
        losses.append(loss.detach())
    return torch.stack(losses)


@learner(
    SGD,
    model=lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)),
    batch=targets,
    lr=0.1,
)
def statistics_get_other_memory(model, optimizer, x, y) -> Tensor:
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    model[1].running_mean.data = model[1].running_mean * 0.5
    return loss.detach()


@by_hand(model=lambda: nn.Parameter(torch.randn(6, 3)), batch=features)
def what_the_step_has_made_gets_other_memory(weight, x) -> tuple[Tensor, ...]:
    made = torch.zeros(8, 3)
    made.data = x @ weight.detach()
    leaf = torch.zeros(6, 3, requires_grad=True)
    leaf.data = weight.detach() * 2
    (x @ leaf).square().sum().backward()
    with torch.no_grad():
        weight.sub_(leaf.grad, alpha=0.001)
    made.add_(1)
    return made, leaf.grad


@step()
def two_share_one_memory_that_nobody_writes() -> Loop:
    """The second is the first from the first step on; both get new memory at the end of each."""
    one, two = nn.Parameter(torch.randn(6, 3)), nn.Parameter(torch.randn(6, 3))

    def train(x: Tensor) -> Tensor:
        two.data = one.data
        loss = (x @ one).square().mean() + (x @ two).sum()
        a, b = torch.autograd.grad(loss, [one, two])
        one.data = one.data - 0.1 * a
        two.data = one.data
        return b

    return Loop(train, features, one=one, two=two)


@by_hand(model=lambda: nn.Parameter(torch.randn(6, 6)), batch=features)
def from_columns(weight, x) -> Tensor:
    """Strides that are others; from the second step on they are the same."""
    loss = (x @ weight).square().mean()
    (g,) = torch.autograd.grad(loss, [weight])
    weight.data = (weight.data - 0.1 * g).contiguous().t()
    return loss.detach()
