"""What was learned is bounded by its size, and what was asked for last stays."""

import pytest

from foretrace.operators.schemas import cache
from foretrace.operators.schemas.cache import Lasting


def test_what_was_asked_for_least_recently_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST", 3)
    known = Lasting()
    for key in "abc":
        known.keep(key, key.upper())
    assert known.get("a") == "A"
    known.keep("d", "D")
    assert [known.get(key) for key in "abcd"] == ["A", None, "C", "D"]


def test_a_large_key_takes_the_place_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST", 6)
    known = Lasting()
    for key in "abc":
        known.keep(key, key.upper())
    known.keep(("d", ("e", "f")), "D")
    assert [known.get(key) for key in "abc"] == [None, None, "C"]
    assert known.get(("d", ("e", "f"))) == "D"


def test_a_key_that_is_kept_again_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST", 2)
    known = Lasting()
    for answer in range(5):
        known.keep("a", answer)
    known.keep("b", "B")
    assert known.get("a") == 4
    assert known.get("b") == "B"
