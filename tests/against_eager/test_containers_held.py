"""What containers hold that the program reads and leaves alone: another content is a guard."""

from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.recaptured import captured_again_after

LAYER, KEY = nn.Linear(3, 3), torch.ones(3)


class Scale:
    """By an attribute."""

    def __init__(self, factor: float) -> None:
        self.factor = factor


Made = tuple[Callable[[Tensor], Tensor], Callable[[], object]]
"""A program, and what changes a container that it reads"""


def in_a_deque() -> Made:
    held = deque([1.0, 2.0])
    return lambda x: x * sum(held), lambda: held.append(3.0)


def an_item_of_a_deque() -> Made:
    held = deque([1.0, 2.0])
    return lambda x: x * held[0], lambda: held.__setitem__(0, 5.0)


def an_object_in_a_deque() -> Made:
    held = deque([Scale(0.5)])
    return lambda x: x * held[0].factor, lambda: setattr(held[0], "factor", 2.0)


def by_a_module() -> Made:
    held = {LAYER: 0.5}
    return lambda x: x * held[LAYER], lambda: held.update({LAYER: 2.0})


def by_a_tensor_and_a_name() -> Made:
    held = {(KEY, "rate"): 0.5}
    return lambda x: x * held[KEY, "rate"], lambda: held.update({(KEY, "rate"): 2.0})


def a_set_of_tensors() -> Made:
    held = {KEY}
    return lambda x: x * (2 if KEY in held else 1), held.clear


def another_tensor_in_a_set() -> Made:
    held = {KEY}

    def change() -> None:
        held.clear()
        held.add(torch.ones(3))

    return lambda x: x * (2 if KEY in held else 1), change


def a_set_of_modules() -> Made:
    held = {LAYER, 1}
    return lambda x: x * (2 if LAYER in held else 1), lambda: held.remove(LAYER)


def an_object_in_a_set() -> Made:
    held = {Scale(0.5)}
    return (
        lambda x: x * next(iter(held)).factor,
        lambda: setattr(next(iter(held)), "factor", 2.0),
    )


@pytest.mark.parametrize("made", [
    in_a_deque, an_item_of_a_deque, an_object_in_a_deque, by_a_module, by_a_tensor_and_a_name,
    a_set_of_tensors, another_tensor_in_a_set, a_set_of_modules, an_object_in_a_set,
])  # fmt: skip
def test_another_content_is_another_capture(made: Callable[[], Made]) -> None:
    captured_again_after(*made(), torch.ones(3))


@pytest.mark.parametrize("used", [False, True])
def test_a_weight_that_becomes_what_is_held(used: bool) -> None:
    """It was another tensor when the program asked, and is that one now; and back."""
    model, held = nn.Linear(3, 1), [nn.Parameter(torch.ones(1, 3))]
    x, before = torch.ones(2, 3), model.weight

    def program(x: Tensor) -> Tensor:
        y = model(x) * (2 if model.weight is held[0] else 1)
        return y + held[0].sum() if used else y

    compiled: Any = foretrace.compile(program, fullgraph=True)
    for weight in (before, held[0], before, held[0]):
        model.weight = weight
        assert torch.equal(compiled(x), program(x))
    assert len(compiled.recaptures) == 1
