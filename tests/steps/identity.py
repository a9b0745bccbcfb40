"""Parameters that the program knows by identity: as keys, in lists, by `is` and `id`."""

import weakref
from collections import OrderedDict, defaultdict
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from tests.steps.data import mlp, targets
from tests.steps.loops import backward, by_hand, descends, learner, regressor, updated
from tests.steps.registry import Loop, add, step


@regressor(SGD, lr=0.1, momentum=0.9)
def momentum_is_read_by_the_models_parameters(model, optimizer, x, y) -> Tensor:
    updated(optimizer, F.mse_loss(model(x), y))
    return sum(optimizer.state[p]["momentum_buffer"].norm() for p in model.parameters())


@regressor(Adam, lr=0.01)
def adams_step_is_asked_by_parameter(model, optimizer, x, y) -> Tensor:
    loss = updated(optimizer, F.mse_loss(model(x), y))
    ages = [optimizer.state[p]["step"] for p in model.parameters() if p in optimizer.state]
    return loss * torch.stack(ages).mean()


@step()
def some_are_frozen_by_a_list() -> Loop:
    model = mlp(out=1)
    frozen = [model[0].weight, model[2].bias]

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = backward(model, F.mse_loss(model(x), y))
        with torch.no_grad():
            for p in model.parameters():
                if not any(p is each for each in frozen):
                    p.sub_(p.grad, alpha=0.1)
        return loss

    return Loop(train, targets, model=model)


@step()
def no_decay_by_a_set() -> Loop:
    model = mlp(out=1)
    undecayed = {model[0].bias, model[2].bias}

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = backward(model, F.mse_loss(model(x), y))
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad + (0 if p in undecayed else 0.1) * p, alpha=0.1)
        return loss

    return Loop(train, targets, model=model)


def _by_id(ids: Any) -> Any:
    def build() -> Loop:
        model = mlp(out=1)
        chosen = ids([id(model[0].weight), id(model[2].weight)])

        return descends(model, lambda p: 0.1 if id(p) in chosen else 0.01)

    return build


class Named:
    """Holds ids by name."""

    def __init__(self, ids: list[int]) -> None:
        self.first, self.second = ids

    def __contains__(self, item: int) -> bool:
        return item in (self.first, self.second)


class Slotted:
    __slots__ = ("first", "second")

    def __init__(self, ids: list[int]) -> None:
        self.first, self.second = ids

    def __contains__(self, item: int) -> bool:
        return item in (self.first, self.second)


for _name, _kind in {
    "a_set": set, "a_list": list, "a_tuple": tuple, "a_frozenset": frozenset,
    "a_dict": lambda ids: dict.fromkeys(ids, "chosen"),
    "values_of_a_dict": lambda ids: dict(enumerate(ids)).values(),
    "nested": lambda ids: ({"of": (1, *ids)})["of"],
    "attributes": Named, "slots": Slotted,
}.items():  # fmt: skip
    add(f"chosen_by_id_in_{_name}", __name__, _by_id(_kind))


@step()
def an_average_in_a_dict_by_parameter() -> Loop:
    model = mlp(out=1)
    optimizer = SGD(model.parameters(), lr=0.1)
    average = {p: p.detach().clone() for p in model.parameters()}

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = updated(optimizer, F.mse_loss(model(x), y))
        with torch.no_grad():
            for p in model.parameters():
                average[p].lerp_(p, 0.1)
        return loss

    return Loop(train, targets, model=model, optimizer=optimizer, average=list(average.values()))


@step()
def a_dict_by_parameter_that_is_filled_in_the_step() -> Loop:
    model = mlp(out=1)
    optimizer = SGD(model.parameters(), lr=0.1)
    average: dict[Tensor, Tensor] = defaultdict(lambda: torch.zeros(()))

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = updated(optimizer, F.mse_loss(model(x), y))
        for p in model.parameters():
            average[p] = average[p] * 0.5 + p.detach().norm()
        return loss

    return Loop(train, targets, model=model, optimizer=optimizer, average=average)


@step()
def names_by_parameter() -> Loop:
    model = mlp(out=1)
    optimizer = SGD(model.parameters(), lr=0.1)
    names = {p: name for name, p in model.named_parameters()}

    def train(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        updated(optimizer, F.mse_loss(model(x), y))
        return {
            names[p]: p.grad.norm() for group in optimizer.param_groups for p in group["params"]
        }

    return Loop(train, targets, model=model, optimizer=optimizer)


@regressor(SGD, lr=0.1)
def names_by_parameter_made_in_the_step(model, optimizer, x, y) -> dict[str, Tensor]:
    names = {p: name for name, p in model.named_parameters()}
    updated(optimizer, F.mse_loss(model(x), y))
    return {names[p]: p.grad.norm() for group in optimizer.param_groups for p in group["params"]}


@step()
def a_closed_over_weight_is_the_models() -> Loop:
    model = mlp(out=1)
    head = model[2].weight
    return descends(model, lambda p: 0.1 if p is head else 0.01)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 4), nn.Linear(4, 1)
        self.late = [self.two.weight, self.two.bias]
        self.by_name = {"first": self.one.weight}

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x).tanh()) + self.by_name["first"].sum() * 0.1


@by_hand(model=Model, batch=targets)
def parameters_in_a_plain_list_of_the_module(model, x, y) -> Tensor:
    loss = backward(model, F.mse_loss(model(x), y))
    with torch.no_grad():
        for p in model.parameters():
            late = any(p is each for each in model.late)
            first = p is model.by_name["first"]
            p.sub_(p.grad, alpha=0.1 if late else 0.05 if first else 0.01)
    return loss


@step()
def marks_on_parameters() -> Loop:
    model = mlp(out=1)
    model[0].weight.scale = 0.5
    model[2].weight.skip = True

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = backward(model, F.mse_loss(model(x), y))
        with torch.no_grad():
            for p in model.parameters():
                if not getattr(p, "skip", False):
                    p.sub_(p.grad, alpha=0.1 * getattr(p, "scale", 1.0))
        return loss

    return Loop(train, targets, model=model)


@step()
def a_buffer_that_is_kept_on_a_parameter() -> Loop:
    """As a megatron `main_grad`: a tensor in an attribute of the parameter."""
    model = mlp(out=1)
    for p in model.parameters():
        p.main_grad = torch.zeros_like(p)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = backward(model, F.mse_loss(model(x), y))
        with torch.no_grad():
            for p in model.parameters():
                p.main_grad.mul_(0.9).add_(p.grad)
                p.sub_(p.main_grad, alpha=0.1)
        return loss

    held = [p.main_grad for p in model.parameters()]
    return Loop(train, targets, model=model, held=held)


@step()
def a_new_tensor_on_a_parameter() -> Loop:
    """The attribute is bound anew by each step."""
    model = mlp(out=1)
    for p in model.parameters():
        p.last = torch.zeros_like(p)

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = backward(model, F.mse_loss(model(x), y))
        with torch.no_grad():
            for p in model.parameters():
                p.last = p.last * 0.5 + p.grad
                p.sub_(p.last, alpha=0.1)
        return loss

    def batch(index: int) -> tuple[Tensor, ...]:
        seen.extend(p.last.clone() for p in model.parameters())
        return targets(index)

    seen: list[Tensor] = []
    return Loop(train, batch, model=model, seen=seen)


@step()
def a_count_on_a_parameter() -> Loop:
    model = mlp(out=1)
    for p in model.parameters():
        p.seen = 0

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = backward(model, F.mse_loss(model(x), y))
        with torch.no_grad():
            for p in model.parameters():
                p.seen += 1
                p.sub_(p.grad, alpha=0.1 / p.seen)
        return loss

    def batch(index: int) -> tuple[Tensor, ...]:
        counts.append([p.seen for p in model.parameters()])
        return targets(index)

    counts: list[list[int]] = []
    return Loop(train, batch, model=model, counts=counts)


@step()
def a_weak_dict_by_parameter() -> Loop:
    model = mlp(out=1)
    scales = WeakTensorKeyDictionary({model[0].weight: 0.5, model[2].weight: 2.0})
    return descends(model, lambda p: 0.1 * scales.get(p, 1.0))


@step()
def a_weak_reference_to_the_head() -> Loop:
    model = mlp(out=1)
    head = weakref.ref(model[2].weight)
    return descends(model, lambda p: 0.1 if p is head() else 0.01)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x).tanh()).sum(1, keepdim=True)


@learner(SGD, model=Tied, batch=targets, lr=0.1, momentum=0.9)
def tied_weights_are_met_once(model, optimizer, x, y) -> Tensor:
    loss = updated(optimizer, F.mse_loss(model(x), y))
    seen: set[Tensor] = set()
    total = loss.new_zeros(())
    for p in [model.one.weight, model.two.weight, *optimizer.param_groups[0]["params"]]:
        if p not in seen:
            seen.add(p)
            total = total + p.detach().square().sum()
    assert model.one.weight is model.two.weight
    return total


@step()
def groups_are_searched_for_a_parameter() -> Loop:
    model = mlp(out=1)
    optimizer = SGD([
        {"params": list(model[0].parameters()), "lr": 0.1},
        {"params": list(model[2].parameters()), "lr": 0.01},
    ])  # fmt: skip

    def rate(p: Tensor) -> float:
        for group in optimizer.param_groups:
            if any(p is each for each in group["params"]):
                return group["lr"]
        raise LookupError("in no group")

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = updated(optimizer, F.mse_loss(model(x), y))
        return loss + sum(rate(p) * p.grad.norm() for p in model.parameters())

    return Loop(train, targets, model=model, optimizer=optimizer)


@step()
def a_buffer_in_a_list() -> Loop:
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = SGD(model.parameters(), lr=0.1)
    means = [model[1].running_mean]

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = updated(optimizer, F.mse_loss(model(x), y))
        assert model[1].running_mean is means[0]
        return loss + means[0].sum()

    return Loop(train, targets, model=model, optimizer=optimizer, means=means)


class Lookahead(Optimizer):
    """A user's own optimizer around another, by the parameters."""

    def __init__(self, inner: Optimizer, every: int = 2) -> None:
        self.inner, self.every, self.count = inner, every, 0
        self.slow = OrderedDict(
            (p, p.detach().clone()) for g in inner.param_groups for p in g["params"]
        )
        super().__init__(list(self.slow), {})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.inner.step()
        self.count += 1
        for p in self.param_groups[0]["params"]:
            self.slow[p].lerp_(p.detach(), 0.5)


@step()
def a_wrapping_optimizer_by_parameter() -> Loop:
    model = mlp(out=1)
    optimizer = Lookahead(SGD(model.parameters(), lr=0.1, momentum=0.9))

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for p in model.parameters():
                p.lerp_(optimizer.slow[p], 0.1)
        return loss

    return Loop(
        train, targets, model=model, optimizer=optimizer.inner, slow=[*optimizer.slow.values()]
    )


@step()
def a_parameter_is_given_too() -> Loop:
    model = mlp(out=1)
    held = [model[2].weight]

    def train(x: Tensor, y: Tensor, head: Tensor) -> Tensor:
        loss = backward(model, F.mse_loss(model(x), y))
        assert head is held[0]
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1 if p is head else 0.01)
        return loss + head.sum()

    return Loop(train, lambda index: (*targets(index), model[2].weight), model=model)


@step()
def keys_of_several_parts() -> Loop:
    model = mlp(out=1)
    rates = {(p, "rate"): 0.1 / (i + 1) for i, p in enumerate(model.parameters())}
    return descends(model, lambda p: rates.get((p, "rate"), 1.0))


@step()
def a_weight_is_another_from_the_fifth_batch_on() -> Loop:
    """The list goes on with the old one."""
    model = mlp(out=1)
    held = [model[2].weight]

    def train(x: Tensor, y: Tensor) -> Tensor:
        loss = backward(model, F.mse_loss(model(x), y))
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad, alpha=0.1 if p is held[0] else 0.01)
        return loss + held[0].sum()

    def batch(index: int) -> tuple[Tensor, ...]:
        if index == 5:
            model[2].weight = nn.Parameter(torch.zeros(1, 10))
        return targets(index)

    return Loop(train, batch, model=model, held=held)


@step()
def the_set_is_another_from_the_fifth_batch_on() -> Loop:
    model = mlp(out=1)
    chosen = {model[2].weight}

    def batch(index: int) -> tuple[Tensor, ...]:
        if index == 5:
            chosen.clear()
            chosen.add(model[0].weight)
        return targets(index)

    return descends(model, lambda p: 0.1 if p in chosen else 0.01, batch=batch)


@step()
def the_model_and_the_optimizer_are_given() -> Loop:
    model = mlp(out=1)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train(model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> Tensor:
        updated(optimizer, F.mse_loss(model(x), y))
        return sum(optimizer.state[p]["momentum_buffer"].norm() for p in model.parameters())

    def batch(index: int) -> tuple[object, ...]:
        return model, optimizer, *targets(index)

    return Loop(train, batch, model=model, optimizer=optimizer)
