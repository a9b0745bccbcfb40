"""What the world may change between two calls, one thing at a time and several at once."""

import random
from collections.abc import Iterable, Iterator

import pytest

from tests.fuzz import things, works, worlds
from tests.fuzz.server import forked
from tests.fuzz.test_fuzz import failures
from tests.fuzz.thing import Thing
from tests.fuzz.verdict import Verdict

QUICK, MOST = 4, 12
"""Of how many pairs of a read and a change the quick suite runs one"""

pytestmark = pytest.mark.filterwarnings("ignore")


def wrong(texts: Iterable[str]) -> Iterator[str]:
    """The failures of texts, each run in a child."""
    for result in forked(works.world, texts, 1, 60):
        if result.ended:
            yield f"{result.item}\n{result.ended} at {result.last}"
            continue
        failed = [each for each in (Verdict(**one) for one in result.value) if each.failed]
        if failed:
            yield f"{result.item}\n{failed[0]}"


def around(context: str) -> Iterator[str]:
    nothing = [[]] * (worlds.CALLS - 1)
    for read in things.UNDER:
        yield worlds.assembled([], [read], worlds.FUNCTION, nothing, ["", context, "", ""])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("thing", things.THINGS, ids=lambda thing: thing.name)
def test_a_thing_that_changes(thing: Thing) -> None:
    pairs = [(read, change) for read in thing.reads for change in thing.changes]
    some = random.Random(thing.name).sample(pairs, min(MOST, -(-len(pairs) // QUICK)))
    assert not list(wrong(worlds.single(thing, *pair) for pair in some))


@pytest.mark.slow
@pytest.mark.parametrize("thing", things.THINGS, ids=lambda thing: thing.name)
def test_every_change_of_a_thing(thing: Thing) -> None:
    pairs = [(read, change) for read in thing.reads for change in thing.changes]
    assert not list(wrong(worlds.single(thing, *pair) for pair in pairs))


@pytest.mark.parametrize("context", things.AROUND)
def test_what_is_around_a_call(context: str) -> None:
    assert not list(wrong(around(context)))


@pytest.mark.slow
def test_worlds() -> None:
    assert not failures(range(30), kind="worlds")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 4000, 500))
def test_many_worlds(first: int) -> None:
    assert not failures(range(first, first + 500), kind="worlds")
