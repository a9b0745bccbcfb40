"""Ops of two sequences are paired by their operands, in whatever order they are."""

from types import SimpleNamespace
from typing import Any

from foretrace.inspect.diff.value_causes import ByOperands, Causes, Uses
from foretrace.ir.program.op import Op
from tests.support.notation import read

LEFT = """
%x: f32[4]
%y: f32[4]
%0 = aten.sin.default(%x): f32[4]
%1 = aten.sin.default(%y): f32[4]
%2 = aten.mul.Tensor(%0, %1): f32[4]
"""
REORDERED = """
%x: f32[4]
%y: f32[4]
%1 = aten.sin.default(%y): f32[4]
%0 = aten.sin.default(%x): f32[4]
%2 = aten.mul.Tensor(%0, %1): f32[4]
"""
SHORTER = """
%x: f32[4]
%y: f32[4]
%1 = aten.sin.default(%y): f32[4]
"""


def pairs_of(left: str, right: str) -> tuple[list[tuple[Op | None, Op | None]], dict[str, Any]]:
    (mine, ops), (theirs, others) = read(left), read(right)
    causes = Causes(one_record=False, copies={})
    causes.match([mine["x"], mine["y"]], [theirs["x"], theirs["y"]])
    uses: list[Any] = [Uses(SimpleNamespace(ops=each, outputs=())) for each in (ops, others)]
    pairs = list(ByOperands(causes, *uses, frozenset())(ops, others))
    return pairs, {"left": mine, "right": theirs, "causes": causes}


def names(pairs, known):
    """The names of the results, by side; None where there is no op."""
    left, right = ({v: n for n, v in known[side].items()} for side in ("left", "right"))
    return [(a and left[a.outs[0]], b and right[b.outs[0]]) for a, b in pairs]


def test_the_order_does_not_matter():
    found = names(*pairs_of(LEFT, REORDERED))
    assert sorted(found) == [("0", "0"), ("1", "1"), ("2", "2")]


def test_results_of_a_pair_are_counterparts():
    _, known = pairs_of(LEFT, REORDERED)
    assert known["causes"].counterpart(known["left"]["2"]) is known["right"]["2"]


def test_ops_without_a_counterpart_come_last():
    found = names(*pairs_of(LEFT, SHORTER))
    assert found == [("1", "1"), ("0", None), ("2", None)]
