"""Where elements of one memory lie, against a count of every one of them."""

from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings, strategies as st

from foretrace.errors import Refusal
from foretrace.ir.values.tensor_type import TensorType
from foretrace.tracer.functionalization.alias import alias_of
from foretrace.tracer.functionalization.self_overlap import meet, overlaps, place, within
from tests.support.trees import recorded, recorder

CPU = torch.device("cpu")
SIZES, STEPS = st.integers(1, 3), st.integers(0, 4)
DIMS = st.lists(st.tuples(SIZES, STEPS), max_size=2)


@st.composite
def types(draw: Any, dtypes: Any = (torch.float32,)) -> TensorType:
    """Types with a few elements, not far from the beginning of their memory."""
    dims, dtype = draw(DIMS), draw(st.sampled_from(dtypes))
    shape, stride = zip(*dims, strict=True) if dims else ((), ())
    return TensorType(tuple(shape), tuple(stride), dtype, CPU, draw(st.integers(0, 4)))


def starts(type: TensorType) -> list[int]:
    """The places at which elements begin, in bytes; each as often as an element does."""
    places = product(*(range(size) for size in type.shape))
    steps = (sum(n * step for n, step in zip(at, type.stride, strict=True)) for at in places)
    return [(type.offset + step) * type.dtype.itemsize for step in steps]


def covered(type: TensorType) -> set[int]:
    """The bytes of all elements."""
    return {start + byte for start in starts(type) for byte in range(type.dtype.itemsize)}


BOTH = (torch.float32, torch.float64)


@settings(max_examples=100, deadline=None)
@given(types(BOTH), types(BOTH))
def test_meet(one: TensorType, two: TensorType) -> None:
    assert meet(RECORDER, one, two) == (not covered(one).isdisjoint(covered(two)))


@settings(max_examples=100, deadline=None)
@given(types(), types())
def test_within(one: TensorType, two: TensorType) -> None:
    assert within(RECORDER, one, two) == (covered(one) <= covered(two))


@settings(max_examples=100, deadline=None)
@given(types())
def test_overlaps(one: TensorType) -> None:
    """Eager's own answer is no better: where steps interleave, it may call them one place."""
    if len(set(starts(one))) < len(starts(one)):
        assert overlaps(RECORDER, one)
    if one.dense:
        assert not overlaps(RECORDER, one)


RECORDER = recorder()


def test_place_is_counted_from_the_owner_of_the_memory() -> None:
    def fn(x):
        y = x.neg()
        part = y[1][2:]
        return place(alias_of(part), alias_of(part).value).offset

    assert [output.value for output in recorded(fn, torch.zeros(2, 4)).outputs] == [6]


@pytest.mark.parametrize(
    ("write", "what"),
    [
        (lambda y: y.expand(2, 3).mul_(2), "several elements are one place"),
        (lambda y: y[1:].add_(y[:-1]), "at other places"),
        (lambda y: y[1:].copy_(y[1:]), ""),
        (lambda y: y[:1].add_(y[1:2]), ""),
    ],
)
def test_check_disjoint(write: Any, what: str) -> None:
    def fn(x):
        y = x.neg()
        write(y)
        return y

    if not what:
        assert recorded(fn, torch.zeros(3)).ops
        return
    with pytest.raises(Refusal, match=what) as refusal:
        recorded(fn, torch.zeros(3))
    assert refusal.value.kind == "overlapping memory"
