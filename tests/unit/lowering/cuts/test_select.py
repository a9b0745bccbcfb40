"""What `keep=` and `open=` name."""

from typing import Any

import pytest
import torch

from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import ModuleCall, Origin
from foretrace.lowering.cuts.selectors import check_selectors, every_op, names, selects
from tests.support.trees import recorded, tree

TREE = """\
%x: f32[4, 8]
%w: f32[3, 8]
%0 = aten.linear.default(%x, %w): f32[4, 3]
    %1 = aten.t.default(%w): f32[8, 3] by [1, 8]
    %0 = aten.mm.default(%x, %1): f32[4, 3]
%2 = aten.add.Tensor(%0, 1): f32[4, 3]
"""
aten = torch.ops.aten


def chosen(selector: Any) -> list[str]:
    return [str(op.target) for op in every_op(tree(TREE)[1]) if selects(selector, op)]


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("add", ["aten.add.Tensor"]),
        ("add.Tensor", ["aten.add.Tensor"]),
        ("aten.add.Tensor", ["aten.add.Tensor"]),
        ("aten::add", ["aten.add.Tensor"]),
        ("torch.ops.aten.add.Tensor", ["aten.add.Tensor"]),
        ("add.Scalar", []),
        ("ad", []),
        (aten.mm, ["aten.mm.default"]),
        (aten.mm.default, ["aten.mm.default"]),
        (aten.mm.out, []),
        (lambda op: op.leaf, ["aten.t.default", "aten.mm.default", "aten.add.Tensor"]),
    ],
)
def test_selects(selector: Any, expected: list[str]) -> None:
    assert chosen(selector) == expected


def test_a_module_call_is_named_by_its_class_and_its_path() -> None:
    call = ModuleCall("layers.0", "Linear", "torch.nn.modules.linear.Linear")
    op = Op(call, (), {}, None, (), origin=Origin(None, None))
    assert names(op) == {"layers.0", "Linear", "torch.nn.modules.linear.Linear"}


def test_a_shared_definition_is_looked_through_once() -> None:
    ops = recorded(lambda x: torch.dropout(x, 0.5, True) + torch.relu(x).trace(), torch.eye(2)).ops
    twice = [*ops, *ops]
    shared = [op for op in twice if op.definition is not None]
    assert shared
    inner = [op for op in every_op(twice) if op not in twice]
    assert len(inner) == len(set(inner))


@pytest.mark.parametrize("selector", ["linear", aten.t, "mm.default", lambda op: False])
def test_names_that_there_are(selector: Any) -> None:
    check_selectors(tree(TREE)[1], [selector])


def test_a_name_that_no_op_has_is_refused_with_one_that_is_near() -> None:
    with pytest.raises(Refusal, match="no op of the program is linaer") as refusal:
        check_selectors(tree(TREE)[1], ["linaer"])
    assert "did you mean linear" in str(refusal.value)


def test_an_operator_that_the_program_does_not_call_is_refused() -> None:
    with pytest.raises(Refusal, match="no op of the program is"):
        check_selectors(tree(TREE)[1], [aten.sin])
