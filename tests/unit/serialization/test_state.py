"""State is loaded whole or not at all."""

import pytest
import torch

from foretrace.errors import Refusal
from foretrace.serialization.state.state_objects import LoadedObject, Places


def loaded(space):
    """An object whose attributes `n` and `w` calls leave, and whose `c` is a constant."""
    places = Places()
    places.open = {(id(space), "n"), (id(space), "w")}
    return LoadedObject("Counter", space, "counter", places)


def test_an_open_item_is_bound_to_a_copy() -> None:
    item, w = loaded({"n": 1, "w": torch.zeros(2), "c": "adam"}), torch.ones(2)
    item.load_state_dict({"n": 5, "w": w, "c": "adam", "unread": 0})
    assert item.n == 5
    assert item.w.equal(w)
    assert item.w is not w
    assert repr(item) == "<loaded Counter: n=5, w=float32[2], c='adam'>"


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"n": 2, "w": torch.ones(3), "c": "adam"}, r"counter.w is float32\[3\]"),
        ({"n": 2, "w": torch.ones(2), "c": "sgd"}, "counter.c is 'sgd'"),
        ({"n": 2.0, "w": torch.ones(2), "c": "adam"}, "counter.n is 2.0"),
        ({"n": 2, "w": torch.ones(2)}, "counter.c is missing"),
    ],
    ids=["shape", "constant", "type", "missing"],
)
def test_a_refused_state_changes_nothing(wrong, what) -> None:
    w = torch.zeros(2)
    item = loaded({"n": 1, "w": w, "c": "adam"})
    with pytest.raises(Refusal, match=what):
        item.load_state_dict(wrong)
    assert (item.n, item.w) == (1, w)
    assert not w.any()


def test_a_tensor_that_no_call_binds_is_written_in_place() -> None:
    w = torch.zeros(2)
    item = loaded({"b": w})
    item.load_state_dict({"b": torch.ones(2)})
    assert item.b is w
    assert w.equal(torch.ones(2))
