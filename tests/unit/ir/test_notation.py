"""Trees as text: what is written is read back the same."""

import pytest
import torch

import foretrace
from foretrace.ir.notation import read, write
from foretrace.ir.op import Op
from foretrace.ir.walk import every_op
from tests.programs import CASES, Case

TREE = """\
%x: f32[4, 8] grad
%w: f32[3, 8] by [1, 3] at 5
%0 = aten.linear.default(%x, %w, None): f32[4, 3] grad
    %1 = aten.t.default(%w): f32[8, 3] by [3, 2] at 5
    %0 = aten.mm.default(%x, %1): f32[4, 3] grad
%2 = aten.full.default([2, 3], -1.5, dtype=torch.float32, device=device('cpu')): f32[2, 3]
%3, %4 = aten.max.dim(%0, -1, True): f32[4, 1] grad, i64[4, 1]
%5 = aten.dropout.default(%3, 0.5, False): f32[4, 1] grad
    pass
%6 = aten.add_.Tensor!(%2, 1, alpha=2): f32[2, 3]
    %6 = aten.add.Tensor(%2, 1, alpha=2): f32[2, 3]
"""


def test_there_and_back() -> None:
    values, ops = read(TREE)
    assert write(ops) == TREE
    linear, full, most, dropout, added = ops
    assert linear.args[0] is values["x"]
    assert linear.body[1].outs == linear.outs
    assert linear.target is torch.ops.aten.linear.default
    assert full.kwargs == {"dtype": torch.float32, "device": torch.device("cpu")}
    assert full.args == ([2, 3], -1.5)
    assert [out.type.dtype for out in most.outs] == [torch.float32, torch.int64]
    assert dropout.body == []
    assert added.writes
    assert values["w"].type.offset == 5


@pytest.mark.parametrize(
    "line", ["%0 = aten.mul.Tensor(%x): g32[2]", "mul(%0", "%0 = aten.mul.Tensor(x + 1): f32[2]"]
)
def test_what_is_not_in_this_form(line: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        read(f"%x: f32[2]\n{line}\n")


def plain(ops: list[Op]) -> bool:
    return all(
        hasattr(op.target, "overloadpacket") and not any(out.type.symbols for out in op.outs)
        for op in every_op(ops)
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_leaves_of_any_program(case: Case) -> None:
    given = case.subject()
    try:
        program = foretrace.capture(given.fn, given.args, given.kwargs)
        ops = program.cut("aten").graph.ops
    except foretrace.Refusal:
        return
    if plain(ops) and not program.recorded.symbols.data:  # the text has no conditions on sizes
        text = write(ops)
        assert write(read(text)[1]) == text
