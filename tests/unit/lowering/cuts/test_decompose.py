"""`decompose`: the ops of a graph opened by a table."""

from typing import Any

import pytest
import torch

from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph
from foretrace.lowering.cuts.cut import Level, flatten
from foretrace.lowering.cuts.decompose import RELAID, RESTORED, decompose
from tests.support.trees import assert_tree, program, recorded, semantics

aten = torch.ops.aten
TREE = """\
%x: f32[2, 3]
%a = aten.silu.default(%x): f32[2, 3]
%y = aten.neg.default(%a): f32[2, 3]
"""


def opened(
    table: Any,
    text: str = TREE,
    outputs: tuple[str, ...] = ("y",),
    keep: Any = lambda op: False,
    kind: Any = "inference",
) -> list[Op]:
    _, found = program(text, outputs)
    graph = Graph(found.inputs, found.ops, found.outputs, kind)
    return decompose(graph, table, semantics(), keep).ops


def silu(x: Any) -> torch.Tensor:
    return x * torch.sigmoid(x)


def turned(x: Any) -> torch.Tensor:
    """The same values in another layout."""
    return silu(x).t().contiguous().t()


def test_what_has_no_entry_stays() -> None:
    assert [str(op.target) for op in opened({})] == ["aten.silu.default", "aten.neg.default"]


def test_what_has_an_entry_is_what_the_entry_calls() -> None:
    assert_tree(
        opened({aten.silu.default: silu}),
        """\
%0 = aten.sigmoid.default(%x): f32[2, 3]
%a = aten.mul.Tensor(%x, %0): f32[2, 3]
%y = aten.neg.default(%a): f32[2, 3]
""",
    )


def test_what_an_entry_calls_is_opened_in_turn() -> None:
    table = {aten.silu.default: silu, aten.sigmoid.default: lambda x: 1 / (1 + torch.exp(-x))}
    assert_tree(
        opened(table),
        """\
%0 = aten.neg.default(%x): f32[2, 3]
%1 = aten.exp.default(%0): f32[2, 3]
%2 = aten.add.Tensor(%1, 1): f32[2, 3]
%3 = aten.reciprocal.default(%2): f32[2, 3]
%4 = aten.mul.Tensor(%3, 1): f32[2, 3]
%a = aten.mul.Tensor(%x, %4): f32[2, 3]
%y = aten.neg.default(%a): f32[2, 3]
""",
    )


def test_the_pieces_know_the_op_that_was_opened() -> None:
    ops = opened({aten.silu.default: silu})
    assert [str(op.piece_of and op.piece_of.target) for op in ops] == [
        "aten.silu.default", "aten.silu.default", "None",
    ]  # fmt: skip


def test_what_is_kept_stays_whole() -> None:
    ops = opened({aten.silu.default: silu}, keep=lambda op: True)
    assert [str(op.target) for op in ops] == ["aten.silu.default", "aten.neg.default"]


def test_an_entry_that_declines_leaves_the_op() -> None:
    ops = opened({aten.silu.default: lambda x: NotImplemented})
    assert ops[0].target is aten.silu.default


def test_an_entry_that_gives_another_shape_leaves_the_op_and_says_so() -> None:
    ops = opened({aten.silu.default: lambda x: silu(x)[:1]})
    assert ops[0].target is aten.silu.default
    assert "the table's entry gives f32[1, 3]" in ops[0].choice.reason


def test_what_reads_another_layout_is_typed_again_and_outputs_get_theirs_back() -> None:
    ops = opened({aten.silu.default: turned})
    neg = next(op for op in ops if op.target is aten.neg.default)
    assert neg.outs[0].type.stride == (1, 2)
    assert neg.choice is RELAID
    assert ops[-1].outs[0].type.stride == (3, 1)
    assert ops[-1].choice is RESTORED


def test_an_out_op_is_its_functional_form_in_the_layout_of_the_out() -> None:
    found = recorded(
        lambda x, out: torch.neg(x, out=out.neg()), torch.zeros(2, 3), torch.zeros(3, 2).t()
    )
    ops = list(flatten(found.ops, Level(written=False)))
    graph = Graph(found.inputs, ops, found.outputs, "inference")
    assert_tree(
        decompose(graph, {}, semantics()).ops,
        """\
%0 = aten.neg.default(%x): f32[2, 3]
%1 = aten.permute.default(%0, [1, 0]): f32[3, 2] by [1, 3]
%2 = aten.clone.default(%1, memory_format=torch.contiguous_format): f32[3, 2]
%3 = aten.permute.default(%2, [1, 0]): f32[2, 3] by [1, 2]
""",
    )


def test_what_trains_a_forward_cut_stays() -> None:
    text = "%x: f32[2] grad\n%y = aten.detach.default(%x): f32[2]\n"
    table = {aten.detach.default: torch.clone}
    assert opened(table, text, kind="aten")[0].target is aten.detach.default
    assert opened(table, text, kind="joint")[0].target is aten.clone.default


@pytest.mark.parametrize("table", [[aten.silu.default], {"silu": silu}])
def test_a_table_of_another_form_is_refused(table: Any) -> None:
    with pytest.raises(Refusal, match="table"):
        opened(table)


def test_an_entry_that_asks_for_data_is_refused() -> None:
    with pytest.raises(Refusal) as refusal:
        opened({aten.silu.default: lambda x: x if x.sum() > 0 else -x})
    assert refusal.value.kind == "data-dependent"
