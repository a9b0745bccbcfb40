"""torch's optim_db: each optimizer with its settings, made in the program or before it."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.testing._internal.common_optimizers import optim_db

from tests.databases.sample import Case, Sample, seeded, spread, stateless
from tests.support.subject import Subject


def inside(database: str) -> Iterator[Case]:
    """Two steps of an optimizer that the program makes, over parameters and gradients given."""
    yield from _cases(database, _inside)


def outside(database: str) -> Iterator[Case]:
    """A step of an optimizer made before, which has made one already; its state is written."""
    yield from _cases(database, _outside)


def _cases(database: str, sample: Callable[..., Sample]) -> Iterator[Case]:
    for info in optim_db:
        yield Case(database, info.optim_cls.__name__, partial(_samples, info, sample))


def _samples(info: Any, sample: Callable[..., Sample], most: int | None) -> Iterator[Sample]:
    if info.step_requires_closure:
        return  # it calls backward() itself, as often as it likes
    seeded()
    given = info.optim_inputs_func(device=torch.device("cpu"), dtype=torch.float32)
    ways = (
        [{"foreach": way} for way in (False, True)] if "foreach" in info.supported_impls else [{}]
    )
    found = [(i, {**one.kwargs, **way}) for i, one in enumerate(given) for way in ways]
    for index in spread(len(found), most):
        label, options = found[index]
        yield sample(f"{label} {options}", info.optim_cls, options)


def _tensors(optimizer: Any) -> tuple[Tensor, ...]:
    seeded()
    shapes = ((4, 3), (5, 6)) if optimizer.__name__ == "Muon" else ((4, 3), (3,))
    return tuple(torch.randn(shape) for shape in (*shapes, *shapes))


def _inside(label: str, optimizer: Any, options: dict[str, Any]) -> Sample:
    def program(*tensors: Tensor) -> tuple[Tensor, ...]:
        parameters, gradients = list(tensors[:2]), tensors[2:]
        made = optimizer(parameters, **options)
        for _ in range(2):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient
            made.step()
        return tuple(parameter * 1 for parameter in parameters)

    return Sample(label, stateless(program, _tensors(optimizer)))


class Stepping:
    """A step as a program: the gradients are set before it, and its state is what it returns."""

    def __init__(self, optimizer: Any, options: dict[str, Any]) -> None:
        first, second, *self.gradients = _tensors(optimizer)
        self.parameters = [first.requires_grad_(), second.requires_grad_()]
        self.optimizer = optimizer(self.parameters, **options)
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient.clone()
        self.optimizer.step()

    def __call__(self) -> list[Tensor]:
        self.optimizer.step()
        return [parameter.detach() * 1 for parameter in self.parameters]


def _outside(label: str, optimizer: Any, options: dict[str, Any]) -> Sample:
    def fresh() -> Subject:
        made = Stepping(optimizer, options)
        return Subject(made.__call__, ())

    return Sample(label, fresh, stateful=True)
