"""Tensors that share memory: who owns it, who has the history, who is stale."""

from typing import Any

import pytest
import torch

from foretrace.errors import Refusal
from foretrace.operators.schemas.dispatch_result import Share
from foretrace.tracer.functionalization.alias import alias_of
from tests.support.trees import assert_tree, recorded

X = torch.zeros(2, 3)


def told(fn: Any, *args: Any) -> list[Any]:
    """What a program says of its own tensors while it runs."""
    return [output.value for output in recorded(fn, *args).outputs]


def test_the_owner_of_a_view_of_a_view() -> None:
    def fn(x):
        y = x.neg()
        row = y[0]
        part = row[1:]
        one, two, three = map(alias_of, (y, row, part))
        return (
            three.root is one, three.parent is two, one.is_view, three.is_view,
            three.up_to_history() == (one, [two, three]), list(one.members()) == [one, two, three],
        )  # fmt: skip

    assert told(fn, X) == [True, True, False, True, True, True]


def test_the_distance_of_a_view_is_in_bytes_behind_its_parent() -> None:
    def fn(x):
        y = x.neg()
        row = y[1]
        return alias_of(row).distance, alias_of(row[2:]).distance

    assert told(fn, X) == [12, 8]


def test_what_a_member_has_of_the_owner() -> None:
    def fn(x):
        y = x.neg()
        given = y[0], y.detach(), y.data, y.unsafe_split(1)[0]
        return [alias_of(each).share for each in given]

    assert told(fn, X) == [Share.VIEW, Share.VERSION, Share.MEMORY, Share.MEMORY]


def test_a_write_is_counted_for_all_but_data() -> None:
    def fn(x):
        y = x.neg()
        row, data = y[0], y.data
        y.add_(1)
        return alias_of(y).version.count, alias_of(row).rewritten, alias_of(data).rewritten

    assert told(fn, X) == [1, True, False]


def test_views_are_stale_after_a_write_and_current_when_they_are_read() -> None:
    def fn(x):
        y = x.neg()
        row = y[0]
        before = alias_of(row).value
        y.add_(1)
        stale = alias_of(row).value is None
        row.sin()
        return stale, alias_of(row).value is not before, alias_of(row).value is alias_of(row).last

    assert told(fn, X) == [True, True, True]


def untracked(make: Any) -> Any:
    return told(lambda x: alias_of(make(x.neg())).untracked, X)[0]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda y: y[0], ""),
        (lambda y: y.unbind(0)[0], "one of several views that one call returned"),
        (lambda y: y.unbind(0)[0].t(), "one of several views that one call returned"),
        (lambda y: torch.no_grad()(y.select)(0, 0), "a view that was taken under no_grad"),
        (lambda y: y.unbind(0)[0].detach(), ""),
    ],
)
def test_views_that_autograd_follows_no_further(make: Any, why: str) -> None:
    assert untracked(make) == why


def test_a_view_of_followed_memory_is_taken_anew_by_strides() -> None:
    def fn(x):
        y = x.neg()
        column = y.t()[1]
        y.mul_(2)
        return column.sin()

    ops = recorded(fn, X.clone().requires_grad_()).ops
    assert_tree(
        ops[3:],
        """\
%1 = aten.mul_.Tensor!(%0, 2): f32[2, 3] grad
    %1 = aten.mul.Tensor(%0, 2): f32[2, 3] grad
%2 = aten.as_strided.default(%1, [2], [3], 1): f32[2] by [3] at 1 grad
%3 = aten.sin.default(%2): f32[2] grad
""",
    )


def test_a_view_that_autograd_lost_is_refused_when_it_is_used() -> None:
    def fn(x):
        y = x.neg()
        row, _ = y.unbind(0)
        y.mul_(2)
        return row.sin()

    with pytest.raises(Refusal, match="one of several views") as refusal:
        recorded(fn, X.clone().requires_grad_())
    assert refusal.value.kind == "in-place on view"


def test_what_has_no_history_stays_without_one_whatever_is_written_to_its_memory() -> None:
    def fn(c, x):
        y = c.neg()
        part = y.unsafe_split(1)[0]
        y.mul_(x)
        return part.sin(), y

    ops = recorded(fn, X, X.clone().requires_grad_()).ops
    assert_tree(
        ops[3:],
        """\
%1, %2 = aten.unsafe_split.Tensor(%0, 1): f32[1, 3] grad, f32[1, 3] at 3 grad
%3 = aten.detach.default(%1): f32[1, 3]
%4 = aten.sin.default(%3): f32[1, 3]
%5, %6 = aten.unsafe_split.Tensor(%0, 1): f32[1, 3] grad, f32[1, 3] at 3 grad
%7 = aten.detach.default(%6): f32[1, 3] at 3
""",
    )


def test_what_was_detached_sees_the_new_content_detached() -> None:
    def fn(x):
        y = x.neg()
        apart = y.detach()
        y.mul_(2)
        return apart.sin(), y

    ops = recorded(fn, X.clone().requires_grad_()).ops
    assert_tree(
        ops[3:],
        """\
%1 = aten.detach.default(%0): f32[2, 3]
%2 = aten.sin.default(%1): f32[2, 3]
""",
    )
