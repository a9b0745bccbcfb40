"""`with_writes`: what a graph does that is called without foretrace, and has to write by itself."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from foretrace.errors import Refusal
from foretrace.ir.program.interface import Mutation, Output, Role
from foretrace.ir.program.recording import Recording
from foretrace.ir.values.value import Value
from foretrace.lowering.cuts.writeback import Written, check_begins, with_writes
from tests.support.trees import assert_tree, program

TREE = """\
%x: f32[2, 3]
%new = aten.mul.Tensor(%x, 2): f32[2, 3]
%y = aten.sin.default(%new): f32[2, 3]
"""
FOLLOWED = TREE.replace(": f32[2, 3]", ": f32[2, 3] grad")


def explicit(
    text: str = TREE, outputs: tuple[str, ...] = ("y",), **facts: Any
) -> tuple[dict[str, Value], Recording, Written]:
    """A program that writes to x; `facts` of that write."""
    values, found = program(text, outputs, {"x": "new"})
    found.mutations = [replace(found.mutations[0], **facts)]
    return values, found, with_writes(found, found.ops, hidden=())


def test_new_content_is_an_output_to_be_copied_back() -> None:
    values, found, written = explicit()
    assert written.ops == found.ops
    assert written.news == [(0, values["new"])]
    assert written.outputs == [values["y"]]


def test_new_content_that_is_returned_too_has_a_name_of_its_own() -> None:
    values, _, written = explicit(outputs=("new",))
    assert written.outputs == [values["new"]]
    assert_tree(
        written.ops[2:],
        """\
%0 = aten.alias.default(%new): f32[2, 3]
""",
    )


def test_a_followed_leaf_is_written_through_detach_inside() -> None:
    _, _, written = explicit(FOLLOWED)
    assert written.news == []
    assert_tree(
        written.ops[2:],
        """\
%0 = aten.detach.default(%x): f32[2, 3]
%1 = aten.detach.default(%new): f32[2, 3]
%2 = aten.copy_.default(%0, %1): f32[2, 3]
""",
    )


def test_a_followed_tensor_that_is_no_leaf_is_copied_back() -> None:
    values, found = program(FOLLOWED, ("y",), {"x": "new"})
    found.inputs = [replace(found.inputs[0], leaf=False)]
    assert with_writes(found, found.ops, hidden=()).news == [(0, values["new"])]


def test_the_input_itself_is_returned_where_the_program_did() -> None:
    values, found = program(FOLLOWED, ("new",), {"x": "new"})
    found.outputs = [Output(values["new"], Role("output", ""), same_as=0)]
    assert with_writes(found, found.ops, hidden=()).outputs == [values["x"]]


VIEW = TREE + "%row = aten.select.int(%new, 0, 1): f32[3] at 3\n"


def test_an_output_that_sees_the_written_memory_is_a_view_of_it() -> None:
    values, found = program(VIEW, ("row",), {"x": "new"})
    found.outputs = [replace(found.outputs[0], view_of=0, view_type=values["row"].type)]
    written = with_writes(found, found.ops, hidden=())
    assert written.news == []
    assert written.outputs == [written.ops[-1].outs[0]]
    assert_tree(
        written.ops[3:],
        """\
%0 = aten.copy_.default(%x, %new): f32[2, 3]
%1 = aten.as_strided.default(%0, [3], [1], 3): f32[3] at 3
""",
    )


def test_one_view_returned_twice_is_one() -> None:
    values, found = program(VIEW, ("row", "row"), {"x": "new"})
    seen = {"view_of": 0, "view_type": values["row"].type}
    found.outputs = [replace(output, **seen) for output in found.outputs]
    one, two = with_writes(found, found.ops, hidden=()).outputs
    assert one is two


def test_what_reads_what_is_written_without_autograd_reads_a_copy() -> None:
    _, _, written = explicit(hidden=True)
    assert_tree(
        written.ops,
        """\
%0 = aten.clone.default(%x): f32[2, 3]
%new = aten.mul.Tensor(%0, 2): f32[2, 3]
%y = aten.sin.default(%new): f32[2, 3]
""",
    )


def test_a_write_by_data_that_a_backward_reads_is_refused() -> None:
    with pytest.raises(Refusal, match="in a way that autograd does not see"):
        explicit(FOLLOWED, hidden=True)


def test_a_buffer_bound_to_another_type_is_refused() -> None:
    text = "%x: f32[2]\n%new = aten.to.dtype(%x, torch.float64): f64[2]\n"
    values, found = program(text, (), {})
    found.mutations = [Mutation(0, values["new"], rebound=True)]
    with pytest.raises(Refusal, match=r"f64\[2\] with strides \[1\], it was f32\[2\]"):
        with_writes(found, found.ops, hidden=())


def test_the_old_tensor_of_a_bound_buffer_is_returned_as_a_copy() -> None:
    values, found = program(TREE, ("x",), {})
    found.mutations = [Mutation(0, values["new"], rebound=True)]
    found.outputs = [replace(found.outputs[0], same_as=0)]
    written = with_writes(found, found.ops, hidden=())
    (old,) = written.outputs
    assert old is written.ops[0].outs[0]
    assert written.ops[0].target is torch.ops.aten.clone.default
    assert written.ops[1].operands == (old,)


def test_where_an_argument_begins_is_not_checked_by_a_file() -> None:
    _, found = program(TREE, ("y",), {})
    check_begins(found)
    found.requires.inputs.begins = {0: None}
    with pytest.raises(Refusal, match="where x begins in memory"):
        check_begins(found)
