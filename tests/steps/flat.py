"""Parameters and gradients that are parts of one flat tensor, as flat optimizers have them."""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from tests.steps.data import mlp, targets
from tests.steps.registry import Loop, add, step


def parts(flat: Tensor, model: nn.Module) -> Iterator[tuple[nn.Parameter, Tensor]]:
    begin = 0
    for p in model.parameters():
        yield p, flat[begin : begin + p.numel()].view_as(p)
        begin += p.numel()


def flat_of(model: nn.Module) -> Tensor:
    return torch.zeros(sum(p.numel() for p in model.parameters()))


def trained(model: nn.Module, optimizer: Optimizer, **held: Tensor) -> Loop:
    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        return loss.detach()

    return Loop(train, targets, model=model, optimizer=optimizer, **held)


@step()
def gradients_are_parts_of_one_tensor() -> Loop:
    model = mlp(out=1)
    flat = flat_of(model)
    for p, part in parts(flat, model):
        p.grad = part
    return trained(model, Adam(model.parameters(), lr=0.1), flat=flat)


def by_data(foreach: bool) -> Callable[[], Loop]:
    def make() -> Loop:
        model = mlp(out=1)
        flat, of_gradients = flat_of(model), flat_of(model)
        for p, part in parts(flat, model):
            part.copy_(p.detach())
            p.data = part
        for p, part in parts(of_gradients, model):
            p.grad = part
        optimizer = AdamW(model.parameters(), lr=0.1, foreach=foreach)
        return trained(model, optimizer, flat=flat, gradients=of_gradients)

    return make


add("all_are_parts_of_flat_tensors", __name__, by_data(foreach=False))
add("all_are_parts_of_flat_tensors_foreach", __name__, by_data(foreach=True))


class Flat(nn.Module):
    """A linear layer whose parameters are views of one tensor, which count writes together."""

    def __init__(self) -> None:
        super().__init__()
        count = targets(0)[0].shape[1]
        flat = torch.randn(count + 1)
        self.weight = nn.Parameter(flat[:count].view(1, count))
        self.bias = nn.Parameter(flat[count:])

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@step()
def parameters_count_writes_together() -> Loop:
    model = Flat()
    return trained(model, SGD(model.parameters(), lr=0.1, momentum=0.9))


@step()
def laid_into_one_tensor_and_some_are_written() -> Loop:
    model = nn.ModuleList([mlp(out=1), nn.Linear(3, 2), mlp(out=1)])  # the second is not used
    optimizer = SGD(model.parameters(), lr=0.1)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = F.mse_loss(model[2](model[0](x).expand(x.shape)), y)
        flat = nn.utils.parameters_to_vector(model.parameters()) * 0.99
        nn.utils.vector_to_parameters(flat, model.parameters())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Loop(train, targets, model=model, optimizer=optimizer)
