"""What a program learns from the class of a tensor is what eager tells it."""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.compare import same_as_eager


class Asks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("scale", torch.ones(3) * 2)

    def forward(self, x: Tensor) -> Tensor:
        y = x * self.weight * self.scale
        given = {"x": x, "weight": self.weight, "scale": self.scale, "y": y}
        raise LookupError({name: _told(type(each)) for name, each in given.items()})


def _told(kind: type) -> tuple[Any, ...]:
    names = (kind.__name__, kind.__qualname__, kind.__module__, str(kind), hash(kind))
    equal = (kind == Tensor, kind == nn.Parameter, kind != Tensor, kind == list)  # noqa: E721
    return (*names, *equal, kind in {Tensor, int}, {(Tensor, 1): 2}.get((kind, 1)))


@functools.cache
def library_of(kind: type) -> str:
    """As opt_einsum and autoray find the library for a tensor."""
    return kind.__module__.partition(".")[0]


def test_classes() -> None:
    with pytest.raises(LookupError) as eager:
        Asks()(torch.ones(3))
    with pytest.raises(foretrace.Refusal) as ours:
        foretrace.capture(Asks(), (torch.ones(3),))
    assert isinstance(ours.value.__cause__, LookupError)
    assert ours.value.__cause__.args == eager.value.args


def test_branches_by_class() -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        y = x * (2 if type(x) == Tensor else 3)  # noqa: E721
        return y * len(library_of(type(w)))

    same_as_eager(program, (torch.randn(3, requires_grad=True), torch.randn(3)), loss=None)
