"""`partition`: the two halves, and what the forward hands to the backward."""

from typing import Any

import pytest

from foretrace.ir.program.recording import Graph
from foretrace.ir.values.value import Value
from foretrace.lowering.partition.partition import SAVED_COPY, WRITTEN, Pair, partition
from tests.support.trees import assert_tree, joint_of, semantics

TREE = """\
%x: f32[4, 4] grad
%w: f32[4, 4] grad
%m = aten.mm.default(%x, %w): f32[4, 4] grad
%s = aten.sin.default(%m): f32[4, 4] grad
%y = aten.sum.default(%s): f32[] grad
"""


def pair(
    policy: Any, text: str = TREE, written: dict[str, str] | None = None
) -> tuple[dict[str, Value], Graph, Pair]:
    values, found, joint = joint_of(text, ("y",), written)
    return values, joint, partition(joint, found, semantics(), policy)


def hints(saved: set[str]) -> list[str]:
    return [item.value.hint for item in saved]


def test_save_all() -> None:
    _, _, halves = pair("save_all")
    assert hints(halves.saved) == ["x", "w", "m"]
    assert_tree(
        halves.forward.ops,
        """\
%m = aten.mm.default(%x, %w): f32[4, 4] grad
%s = aten.sin.default(%m): f32[4, 4] grad
%y = aten.sum.default(%s): f32[] grad
""",
    )
    assert_tree(
        halves.backward.ops,
        """\
%1 = aten.expand.default(%0, [4, 4]): f32[4, 4] by [0, 0]
%2 = aten.cos.default(%m): f32[4, 4]
%3 = aten.mul.Tensor(%1, %2): f32[4, 4]
%4 = aten.t.default(%x): f32[4, 4] by [1, 4]
%5 = aten.mm.default(%4, %3): f32[4, 4]
%6 = aten.t.default(%w): f32[4, 4] by [1, 4]
%7 = aten.mm.default(%3, %6): f32[4, 4]
""",
    )


def test_recompute_all_runs_the_forward_again_before_what_needs_it() -> None:
    _, _, halves = pair("recompute_all")
    assert hints(halves.saved) == ["x", "w"]
    assert_tree(
        halves.backward.ops,
        """\
%1 = aten.expand.default(%0, [4, 4]): f32[4, 4] by [0, 0]
%m = aten.mm.default(%x, %w): f32[4, 4] grad
%2 = aten.cos.default(%m): f32[4, 4]
%3 = aten.mul.Tensor(%1, %2): f32[4, 4]
%4 = aten.t.default(%x): f32[4, 4] by [1, 4]
%5 = aten.mm.default(%4, %3): f32[4, 4]
%6 = aten.t.default(%w): f32[4, 4] by [1, 4]
%7 = aten.mm.default(%3, %6): f32[4, 4]
""",
    )


def test_an_op_that_runs_in_both_is_one_op() -> None:
    _, joint, halves = pair("recompute_all")
    both = [op for op in halves.backward.ops if op in halves.forward.ops]
    assert [str(op.target) for op in both] == ["aten.mm.default"]
    assert set(halves.forward.ops) | set(halves.backward.ops) == set(joint.ops)


@pytest.mark.parametrize("policy", ["save_all", "recompute_all", "min_cut"])
def test_what_the_forward_gives_the_backward_takes(policy: Any) -> None:
    _, joint, halves = pair(policy)
    given, (*taken, tangent) = halves.forward.outputs[1:], halves.backward.inputs
    assert tangent is joint.inputs[-1]
    assert [(each.value, each.role) for each in given] == [(i.value, i.role) for i in taken]
    assert halves.backward.outputs == joint.outputs[1:]


def test_what_is_there_anyway_is_free_and_takes_no_bytes() -> None:
    _, _, halves = pair("save_all")
    assert [item.free for item in halves.saved] == [True, True, False]
    assert halves.bytes == 4 * 4 * 4


WRITES = """\
%x: f32[4]
%w: f32[4] grad
%m = aten.mul.Tensor(%x, %w): f32[4] grad
%new = aten.add.Tensor(%x, 1): f32[4]
%y = aten.sum.default(%m): f32[] grad
"""


def test_an_input_that_is_written_is_saved_as_it_was() -> None:
    values, _, halves = pair("save_all", WRITES, {"x": "new"})
    (copy,) = [item for item in halves.saved if not item.free]
    assert (copy.reason, copy.op.choice.what) == (WRITTEN, SAVED_COPY)
    assert copy.op.args == (values["x"],)
    assert copy.op in halves.forward.ops
    assert copy.op not in halves.backward.ops


def test_the_copy_lies_as_the_input_does() -> None:
    text = WRITES.replace("f32[4]", "f32[2, 2]").replace("%x: f32[2, 2]", "%x: f32[2, 2] by [4, 1]")
    _, _, halves = pair("save_all", text, {"x": "new"})
    (copy,) = [item for item in halves.saved if not item.free]
    assert copy.value.type.stride == (4, 1)
