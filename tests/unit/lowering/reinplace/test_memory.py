"""Which results of an op may lie in the memory of its operands."""

import pytest

from foretrace.lowering.reinplace.memory import Sharing, shared_by
from tests.support.trees import tree

TEXT = """\
%x: f32[3, 4]
%t = aten.t.default(%x): f32[4, 3]
%s = aten.sin.default(%x): f32[3, 4]
%r = aten.select.int(%t, 0, 1): f32[3]
%d = aten.detach.default(%s): f32[3, 4]
"""


@pytest.mark.parametrize(("out", "base"), [("t", "x"), ("s", None), ("r", "t"), ("d", "s")])
def test_a_view_lies_in_the_memory_of_its_base(out: str, base: str | None) -> None:
    values, ops = tree(TEXT)
    (op,) = [each for each in ops if values[out] in each.outs]
    assert shared_by(op) == {values[out]: [] if base is None else [values[base]]}


def test_views_of_views_are_beside_an_input() -> None:
    values, ops = tree(TEXT)
    found = Sharing().beside([values["x"]], ops)
    assert found == {values[name] for name in ("x", "t", "r")}
