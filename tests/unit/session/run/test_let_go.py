"""What a record lets go of when its run ends, without the help of the collector of garbage."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from foretrace.python_state.snapshot.heap import HeapSnapshot
from foretrace.tracer.functionalization.alias import Alias
from tests.support.trees import recorded

X = torch.randn(4, 6)


class Views(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x).view(2, 2, 6)
        return y.transpose(0, 1)[..., 1:] + x.t()[:5].t().unsqueeze(0)[:, :2]


@pytest.fixture
def uncollected() -> Iterator[None]:
    foretrace.capture(Views(), (X,))  # what is learned for the first may have torch collect
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def living(kind: type) -> list[Any]:
    return [item for item in gc.get_objects() if type(item) is kind]


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("kind", [HeapSnapshot, Alias])
def test_what_was_kept_for_the_run_alone(kind: type) -> None:
    before = len(living(kind))
    program = foretrace.capture(Views(), (X,))
    assert len(living(kind)) == before
    assert program.recorded.ops


def test_operands_that_are_all_of_the_arguments_are_the_same_tuple() -> None:
    neg, add, mul, square = recorded(lambda x: (x.neg() + x).mul(2).square(), X).ops
    assert neg.operands is neg.args
    assert add.operands is add.args
    assert mul.operands == mul.args[:1]
    assert square.operands == square.args[:1]  # the binding gives `pow` its exponent


def test_operands_that_a_call_has_twice_are_there_once() -> None:
    (op,) = recorded(lambda x: x * x, X).ops
    assert op.operands == op.args[:1]
