"""A step has no more captures than ways that it goes as Python: what is more is ours to mend."""

import pytest
import torch
from torch import Tensor, nn

from tests.steps import STEPS
from tests.steps.ways import IN_C, MOST, WAYS
from tests.support.steps import Loop
from tests.support.went import ways_of_python


@pytest.mark.parametrize("name", WAYS)
def test_no_more_captures_than_ways(name: str) -> None:
    """Those in C are more; else their reason is none."""
    ways, (captures, _) = len(set(ways_of_python(STEPS[name].build))), WAYS[name]
    assert captures > MOST
    assert (captures > ways) is (name in IN_C), f"it goes {ways} ways"


def test_ways_are_told_apart() -> None:
    """By a line, by how often a loop goes round, and by what a backward calls."""

    def build() -> Loop:
        weight = nn.Parameter(torch.ones(2))

        def train(kind: int) -> Tensor:
            if kind == 1:
                weight.grad = None
            for _ in range(kind):
                weight.detach().mul_(2)
            weight.square().sum().backward()
            return weight.detach()

        return Loop(train, lambda index: ((0, 0, 1, 0, 2, 2, 3)[index],), weight=weight)

    ways = ways_of_python(build, 7)
    assert [ways.index(way) for way in ways] == [0, 1, 2, 1, 4, 4, 6]
    assert ways[0][0] == ways[1][0]  # in the first, autograd makes a gradient
