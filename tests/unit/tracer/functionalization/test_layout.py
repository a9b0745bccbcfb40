"""New contents in the layout of what they are written over."""

from typing import Any

import pytest
import torch

from foretrace.ir.values.value import Value
from foretrace.tracer.functionalization.alias import alias_of
from foretrace.tracer.functionalization.op_call import Call
from foretrace.tracer.functionalization.written_layout import (
    copy_content,
    draw,
    draws_same,
    in_layout,
    lay_out,
)
from tests.support.notation import read
from tests.support.trees import assert_tree, recorder, tree

aten = torch.ops.aten
VALUES = """\
%x: f32[2, 3]
%turned: f32[2, 3] by [1, 2]
%gaps: f32[2, 3] by [6, 1]
%row: f32[3]
%whole: i64[2, 3]
"""


@pytest.fixture(scope="module")
def values() -> dict[str, Value]:
    return tree(VALUES)[0]


def test_laid_out_in_another_order(values: dict[str, Value]) -> None:
    calls = recorder()
    new = lay_out(calls, values["turned"].type, values["x"])
    assert new.type.stride == (1, 2)
    assert_tree(
        calls.scope.ops,
        """\
%0 = aten.permute.default(%x, [1, 0]): f32[3, 2] by [1, 3]
%1 = aten.clone.default(%0, memory_format=torch.contiguous_format): f32[3, 2]
%2 = aten.permute.default(%1, [1, 0]): f32[2, 3] by [1, 2]
""",
    )


def test_laid_out_with_gaps(values: dict[str, Value]) -> None:
    calls = recorder()
    new = lay_out(calls, values["gaps"].type, values["x"])
    assert new.type.stride == (6, 1)
    assert_tree(
        calls.scope.ops,
        """\
%0 = aten.clone.default(%x, memory_format=torch.contiguous_format): f32[2, 3]
%1 = aten.new_empty_strided.default(%x, [2, 3], [6, 1]): f32[2, 3] by [6, 1]
%2 = aten.copy.default(%1, %x): f32[2, 3] by [6, 1]
""",
    )


def test_copied_is_expanded_first_and_cast_last(values: dict[str, Value]) -> None:
    calls = recorder()
    copy_content(calls, values["whole"], values["row"], whole=True)
    assert_tree(
        calls.scope.ops,
        """\
%0 = aten.expand.default(%row, [2, 3]): f32[2, 3] by [0, 1]
%1 = aten._to_copy.default(%0, dtype=torch.int64, device=device('cpu')): i64[2, 3]
""",
    )


def test_copied_has_memory_of_its_own(values: dict[str, Value]) -> None:
    calls = recorder()
    assert copy_content(calls, values["x"], values["x"], whole=True) is not values["x"]
    assert_tree(
        calls.scope.ops,
        """\
%0 = aten.clone.default(%x): f32[2, 3]
""",
    )


@pytest.mark.parametrize(("whole", "stride"), [(True, (1, 2)), (False, (3, 1))])
def test_copied_lies_as_the_old_if_it_is_the_whole(
    values: dict[str, Value], whole: bool, stride: tuple[int, ...]
) -> None:
    new = copy_content(recorder(), values["turned"], values["x"], whole=whole)
    assert new.type.stride == stride


@pytest.mark.parametrize(
    ("func", "like", "same"),
    [
        (aten.normal_.default, "f32[2, 3]", True),
        (aten.normal_.default, "f32[2, 3] by [1, 2]", True),
        (aten.normal_.default, "f32[2, 3] by [6, 1]", False),
        (aten.bernoulli_.float, "f32[2, 3]", True),
        (aten.bernoulli_.float, "f32[2, 3] by [1, 2]", False),
    ],
)
def test_draws_same(func: Any, like: str, same: bool) -> None:
    assert draws_same(func, read(f"%x: {like}\n")[0]["x"].type) == same


def call(calls: Any, func: Any, value: Value, *args: Any) -> Call:
    return Call(calls, func, (value, *args), {}, [calls.abstract(value)], [value])


def test_drawn_in_another_order_stays_in_place_on_new_memory(values: dict[str, Value]) -> None:
    """In which order is the kernel's to say: it is not the same on each processor."""
    calls = recorder()
    draw(call(calls, aten.bernoulli_.float, values["turned"], 0.5))
    assert_tree(
        calls.scope.ops,
        """\
%0 = aten.empty_strided.default([2, 3], [1, 2], dtype=torch.float32, device=device('cpu')): \
f32[2, 3] by [1, 2]
%1 = aten.bernoulli_.float(%0, 0.5): f32[2, 3] by [1, 2]
""",
    )


def test_drawn_with_gaps_stays_in_place_on_new_memory(values: dict[str, Value]) -> None:
    calls = recorder()
    new = draw(call(calls, aten.normal_.default, values["gaps"]))
    assert new.type.stride == (6, 1)
    empty, drawn = calls.scope.ops
    assert (empty.target, empty.args) == (aten.empty_strided.default, ([2, 3], [6, 1]))
    assert (drawn.target, drawn.args, drawn.outs) == (aten.normal_.default, empty.outs, (new,))


def test_in_layout_casts_and_lays_out_what_owns_memory(values: dict[str, Value]) -> None:
    calls = recorder()
    owner = calls.abstract(values["turned"])
    new = in_layout(calls, alias_of(owner), values["whole"])
    assert new.type == values["turned"].type
    assert_tree(
        calls.scope.ops,
        """\
%0 = aten._to_copy.default(%whole, dtype=torch.float32): f32[2, 3]
%1 = aten.permute.default(%0, [1, 0]): f32[3, 2] by [1, 3]
%2 = aten.clone.default(%1, memory_format=torch.contiguous_format): f32[3, 2]
%3 = aten.permute.default(%2, [1, 0]): f32[2, 3] by [1, 2]
""",
    )
