"""Training steps put together at random, captured whole, as eager to the last bit."""

from functools import partial

import pytest

from tests.steps.composed import composed
from tests.support.steps import same_steps

QUICK, MANY = 40, 400


@pytest.mark.parametrize(
    "seed", [*range(QUICK), *(pytest.param(n, marks=pytest.mark.slow) for n in range(QUICK, MANY))]
)
@pytest.mark.filterwarnings("ignore:.* was captured again 8 times")
def test_same_as_eager(seed: int) -> None:
    ran = same_steps(partial(composed, seed), fullgraph=True, batches=6)
    assert 1 <= ran.captures <= 6, [str(each) for each in ran.compiled.recaptures]
