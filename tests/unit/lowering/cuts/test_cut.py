"""`flatten`: which ops of a tree a cut has."""

import pytest

from foretrace.lowering.cuts.cut import Level, flatten
from tests.support.notation import read, write

TREE = """\
%x: f32[4, 8]
%w: f32[3, 8]
%0 = aten.linear.default(%x, %w, None): f32[4, 3]
    %1 = aten.t.default(%w): f32[8, 3] by [1, 8]
    %0 = aten.mm.default(%x, %1): f32[4, 3]
%2 = aten.relu_.default!(%0): f32[4, 3]
    %2 = aten.relu.default(%0): f32[4, 3]
%3 = aten.dropout.default(%2, 0.5, False): f32[4, 3]
    pass
"""
WRITTEN = ["linear", "relu", "dropout"]


def names(level: Level) -> list[str]:
    ops = list(flatten(read(TREE)[1], level))
    assert write(ops)
    return [str(op.target).split(".")[1] for op in ops]


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (Level(written=True), WRITTEN),
        (Level(written=False), ["t", "mm", "relu"]),
        (Level(written=False, keep=("linear",)), ["linear", "relu"]),
        (Level(written=True, open=("linear",)), ["t", "mm", "relu", "dropout"]),
    ],
    ids=["as written", "leaves", "one kept", "one opened"],
)
def test_flatten(level: Level, expected: list[str]) -> None:
    assert names(level) == expected
