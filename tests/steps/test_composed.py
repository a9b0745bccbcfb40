"""Training steps put together at random, captured whole, as eager to the last bit."""

from functools import partial
from typing import Any

import pytest

from tests.steps.composed import composed
from tests.support.steps import in_eager, same_steps

QUICK, MANY = (0, 1, 3, 5), 400


def seeds() -> list[Any]:
    """Those of every run, and of the slow ones."""
    slow = [pytest.mark.slow]
    return [pytest.param(seed, marks=[] if seed in QUICK else slow) for seed in range(MANY)]


@pytest.mark.parametrize("seed", seeds())
@pytest.mark.filterwarnings("ignore:.* was captured again 8 times", "ignore:Mismatch dtype")
def test_same_as_eager(seed: int) -> None:
    build = partial(composed, seed)
    try:
        in_eager(build, 2)
    except RuntimeError as error:
        pytest.skip(f"eager raises: {error}")
    ran = same_steps(build, fullgraph=True, batches=6)
    assert 1 <= ran.captures <= 6, [str(each) for each in ran.compiled.recaptures]
