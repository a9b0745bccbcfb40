"""Each way out of each refusal is followed, and works: the program as changed equals eager."""

import pytest

import foretrace
from tests.refusals import CASES, Case

# torch 2.15 warns of it once, in a kernel without numbers, too
pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")

FOLLOWED = [
    pytest.param(case, place, id=f"{name} way {place}")
    for name, case in CASES.items()
    for place, way in enumerate(case.ways)
    if callable(way)
]


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in CASES.items()])
def test_each_way_is_followed(case: Case) -> None:
    with pytest.raises(foretrace.Refusal) as caught:
        case.ask()
    assert len(case.ways) == len(caught.value.do) > 0, str(caught.value)


@pytest.mark.parametrize(("case", "place"), FOLLOWED)
def test_it_works(case: Case, place: int) -> None:
    way = case.ways[place]
    assert callable(way)
    way()
