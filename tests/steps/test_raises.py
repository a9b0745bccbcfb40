"""Steps whose gradient eager refuses: refused with the line, and nothing has changed."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foretrace
from tests.support.bits import differences
from tests.support.steps import Loop, _look

Made = tuple[nn.Module, Callable[[Tensor], Any]]
RAISING: list[Callable[[], Made]] = []


def raising(model: Callable[[], nn.Module] = lambda: nn.Linear(3, 2)) -> Callable[..., Any]:
    """Register `step(model, x)`, which eager refuses."""

    def put(step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def make() -> Made:
            made = model()
            return made, lambda x: step(made, x)

        RAISING.append(make)
        return step

    return put


@raising()
def twice_through_a_graph_that_is_freed(model, x) -> None:
    loss = model(x).exp().sum()
    loss.backward()
    loss.backward()


@raising()
def twice_by_grad(model, x) -> Tensor:
    loss = model(x).exp().sum()
    torch.autograd.grad(loss, model.weight)
    return torch.autograd.grad(loss, model.bias)[0]


def a_part_is_freed_by_another_loss() -> Made:
    body, model = nn.Linear(3, 2), nn.Linear(2, 1)

    def train(x: Tensor) -> None:
        hidden = body(x).tanh()
        model(hidden).sum().backward()
        hidden.square().sum().backward()

    return nn.ModuleList([body, model]), train


@raising(lambda: nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)))
def weights_are_changed_between_forward_and_backward(model, x) -> None:
    loss = model(x).sum()
    with torch.no_grad():
        model[1].weight.mul_(0.9)
    loss.backward()


@raising()
def what_was_saved_is_written_over(model, x) -> None:
    y = model(x).exp()
    z = y.sum()
    y.add_(1)
    z.backward()
    y.sum().backward()


def after_the_step_of_an_optimizer() -> Made:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(x: Tensor) -> None:
        loss = model(x).square().sum()
        loss.backward(retain_graph=True)
        optimizer.step()
        loss.backward()

    return model, train


@raising()
def of_what_has_no_history(model, x) -> None:
    with torch.no_grad():
        loss = model(x).sum()
    loss.backward()


@raising()
def of_several_elements(model, x) -> Any:
    return model(x).backward()


@raising()
def by_a_tangent_of_another_shape(model, x) -> Any:
    return model(x).backward(torch.ones(3))


@raising()
def of_what_is_not_used(model, x) -> Any:
    return torch.autograd.grad(model.bias.sum(), model.weight)


@raising()
def of_what_requires_none(model, x) -> Any:
    return torch.autograd.grad(model(x).sum(), x)


@raising()
def of_a_gradient_without_a_graph(model, x) -> None:
    (g,) = torch.autograd.grad(model(x).square().sum(), model.weight)
    g.sum().backward()


@raising()
def a_gradient_of_another_shape_is_bound(model, x) -> None:
    F.relu(model(x)).sum().backward()
    model.weight.grad = model.bias.grad


@raising()
def a_hook_gives_another_shape(model, x) -> None:
    y = model(x)
    y.register_hook(lambda g: g[0])
    y.sum().backward()


@raising()
def a_norm_that_is_not_finite(model, x) -> None:
    (model(x) * float("inf")).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)


RAISING += [a_part_is_freed_by_another_loss, after_the_step_of_an_optimizer]


def run(make: Callable[[], Made], call: Callable[..., Any]) -> tuple[Any, Exception]:
    """What an attempt ends in, and what is left then."""
    torch.manual_seed(0)
    model, train = make()
    loop = Loop(train, lambda i: (), model=model)
    before = _look(loop, None)
    with pytest.raises(Exception) as caught:  # noqa: PT011  (eager's own are of many kinds)
        call(train)(torch.ones(4, 3))
    return list(differences(before, _look(loop, None), "after it")), caught.value


@pytest.mark.parametrize("make", RAISING)
def test_refused(make: Callable[[], Made]) -> None:
    """Either by name and line, and nothing has run; or by the program's own error, as in eager."""
    left, eager = run(make, lambda train: train)
    changed, ours = run(make, lambda train: foretrace.compile(train, fullgraph=True))
    if not isinstance(ours, foretrace.Refusal):
        assert (type(ours), str(ours)) == (type(eager), str(eager))
        assert [p for p in left if "random" not in p] == [p for p in changed if "random" not in p]
        return
    assert not changed, changed
    assert ours.at is not None, str(ours)
    assert ours.at.file == __file__, str(ours)
    assert not isinstance(eager, foretrace.Refusal)


@pytest.mark.parametrize("make", RAISING)
@pytest.mark.filterwarnings("ignore:[^\n]*is not captured whole")
def test_in_part_as_eager(make: Callable[[], Made]) -> None:
    """The very error of eager, and what eager leaves."""
    left, eager = run(make, lambda train: train)
    ours_left, ours = run(make, foretrace.compile)
    assert type(ours) is type(eager), repr(ours)
    assert str(ours) == str(eager)
    assert [each for each in left if "random" not in each] == [
        each for each in ours_left if "random" not in each
    ]
