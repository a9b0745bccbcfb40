"""What a compiler gets of a program, and which views a call takes of what its graph gives."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from foretrace.ir.program.op import target_name
from foretrace.lowering.partition.outer_views import outer_views
from foretrace.runtime.calls.core import core_of
from tests.support.trees import recorded, semantics


def after(program: Callable[[Tensor], Any]) -> tuple[list[str], int]:
    """The views that a call takes outside of its graph, and how many results that has."""
    found = recorded(program, torch.ones(2, 3, requires_grad=True))
    views = outer_views(found, semantics(), trained=True)
    return [target_name(op.target) for op in views.all], len(core_of(found, views).outputs)


def two_views(x: Tensor) -> list[Tensor]:
    y = x * 2
    return [y.view(-1), y.t()]


def read_inside(x: Tensor) -> list[Tensor]:
    y = x.view(-1)
    return [y, y * 2]


def read_afterwards(x: Tensor) -> list[Tensor]:
    y = x * 2
    return [y.view(-1), y.sin(), y.cos()]


@pytest.mark.parametrize(("program", "views", "results"), [
    (lambda x: x.view(-1), ["view"], 0),
    (lambda x: (x * 2).view(-1), ["view"], 1),
    (two_views, ["view", "t"], 1),
    (lambda x: x[1:].t(), ["slice", "t"], 0),
    (lambda x: [x * 2, x.view(-1)], ["view"], 1),
    (lambda x: x.unbind(0), ["unbind"], 0),
    (lambda x: [x.view(-1), x * x], ["view"], 1),  # before the graph: x * x comes first
    (read_inside, ["view"], 1),
    (lambda x: x * 2, [], 1),
])  # fmt: skip
def test_views_are_taken_outside_of_the_graph(program: Any, views: list[str], results: int) -> None:
    assert after(program) == (views, results)


def test_a_graph_gets_the_views_that_it_reads() -> None:
    def program(x: Tensor) -> list[Tensor]:
        flat = x.view(-1)
        part = flat[1:]
        return [part, part * 2, flat]

    found = recorded(program, torch.ones(2, 3, requires_grad=True))
    core = core_of(found, outer_views(found, semantics(), trained=True))
    assert [target_name(op.target) for op in core.ops] == ["mul"]
    assert [item.value.type.shape for item in core.inputs] == [(2, 3), (5,)]
    assert core.inputs[1].value in core.ops[0].operands


def test_a_graph_gets_a_view_once_for_each_op_where_autograd_adds_up() -> None:
    def program(x: Tensor) -> list[Tensor]:
        part = x[1:]
        return [part, part.sin() + part.cos(), x.exp(), x.tan()]

    found = recorded(program, torch.ones(2, 3, requires_grad=True))
    core = core_of(found, outer_views(found, semantics(), trained=True))
    readers = {op.operands[0]: target_name(op.target) for op in core.ops}
    shapes = [tuple(item.value.type.shape) for item in core.inputs]
    assert shapes == [(2, 3), (1, 3), (1, 3), (2, 3), (2, 3)]
    read = [readers[item.value] for item in core.inputs[1:]]
    assert read == ["cos", "sin", "tan", "exp"]  # the last first, as in eager


@pytest.mark.parametrize("program", [
    lambda x: [x * x, x.view(-1)],  # eager adds up the gradient of x in another order
    read_afterwards,
    lambda x: torch.no_grad()(x.view)(-1),  # no view to autograd
    lambda x: (x * 2).detach(),
])  # fmt: skip
def test_other_views_stay_in_the_graph(program: Any) -> None:
    assert after(program)[0] == []


def test_a_view_from_before_a_change_of_shape_stays_in_the_graph() -> None:
    def program(x: Tensor) -> Tensor:
        seen = x[0]
        x.t_()
        return seen

    found = recorded(program, torch.arange(9.0).view(3, 3))
    assert outer_views(found, semantics(), trained=True).all == []


def test_what_nothing_reads_is_no_use_of_what_is_viewed() -> None:
    def program(x: Tensor) -> Tensor:
        _ = x * x
        return x.view(-1)

    assert after(program) == (["view"], 0)


def test_a_write_that_autograd_follows_is_a_result() -> None:
    found = recorded(lambda x: x.mul_(2) + 1, torch.ones(2, requires_grad=True) * 1)
    core = core_of(found)
    assert [len(found.mutations), len(core.mutations), len(core.outputs)] == [1, 0, 2]
