"""`live`: what no result needs is left out, but what draws, checks or may raise."""

import pytest
import torch

from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.ir.symbols.symbols import Symbols
from foretrace.lowering.cuts.dead_code import live
from foretrace.operators.abstract_tensors.tensor_types import Types
from foretrace.operators.targets.profile import target_of
from foretrace.session.run.setup import RULES
from tests.support.notation import read, write

GIVEN = "%x: f32[4]\n"
READ = "%a = aten.mul.Tensor(%x, 2): f32[4]\n"
UNREAD = "%b = aten.exp.default(%x): f32[4]\n"
DRAWS = "%c = aten.bernoulli.default(%x): f32[4]\n"
CHAIN = "%d = aten.neg.default(%a): f32[4]\n%e = aten.sin.default(%d): f32[4]\n"


@pytest.fixture(scope="module")
def semantics() -> TargetSemantics:
    symbols = Symbols(lambda: None)
    return TargetSemantics(target_of("cpu", torch.device("cpu")), Types(symbols), RULES, None)


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        (READ + UNREAD, READ),
        (READ + DRAWS, READ + DRAWS),
        (READ + CHAIN, READ),
        (UNREAD + READ + CHAIN + DRAWS, READ + DRAWS),
    ],
)
def test_live(semantics: TargetSemantics, lines: str, left: str) -> None:
    values, ops = read(GIVEN + lines)
    kept = live(ops, [values["a"]], semantics)
    expected = read(GIVEN + left)[1]
    assert [op.target for op in kept] == [op.target for op in expected]
    assert write(kept)
