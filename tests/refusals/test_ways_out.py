"""Each way out of each refusal works: the program as changed equals eager.

That there are as many as the refusal names is asked where its line is: test_refusal_lines.py.
"""

import pytest

from tests.refusals import CASES, Case
from tests.support.turns import one_way_each

# torch 2.15 warns of it once, in a kernel without numbers, too

FOLLOWED = [
    [
        pytest.param(case, place, id=f"{name} way {place}")
        for place, way in enumerate(case.ways)
        if callable(way)
    ]
    for name, case in CASES.items()
]


@pytest.mark.parametrize(("case", "place"), one_way_each(FOLLOWED))
def test_it_works(case: Case, place: int) -> None:
    way = case.ways[place]
    assert callable(way)
    way()
