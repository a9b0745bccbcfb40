"""Indexing makes the operator calls of torch's own binding, with equal results and errors."""

import sys
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings, strategies as st
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from foretrace import torch_api
from foretrace.operators.indexing.items import get_item, set_item
from foretrace.operators.indexing.parts import open_number
from tests.support.labelled import Lines, labelled

ERRORS = (IndexError, TypeError, ValueError, RuntimeError)


class Calls(torch_api.TorchDispatchMode):
    """Notes every call; a tensor is told by its type and where it came from, or its content."""

    def __init__(self, *known: Any) -> None:
        super().__init__()
        self.seen = [item for item in known if isinstance(item, torch.Tensor)]
        self.calls: list[Any] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        call = [str(func), self.told(args), self.told(kwargs or {})]
        self.calls.append(call)
        result = func(*args, **kwargs or {})
        if isinstance(result, torch.Tensor):
            self.seen.append(result)
        return result

    def told(self, item: Any) -> Any:
        if isinstance(item, torch.Tensor):
            place = [i for i, known in enumerate(self.seen) if known is item]
            return place, told(item, content=not place)  # `empty` has content that means nothing
        if isinstance(item, (tuple, list)):
            return [self.told(inner) for inner in item]
        if isinstance(item, dict):
            return {name: self.told(inner) for name, inner in item.items()}
        return type(item), repr(item)


def told(tensor: torch.Tensor, content: bool = True) -> Any:
    facts = (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.device)
    if tensor.device.type == "meta" or not content:
        return facts
    with torch_api.no_dispatch_modes():
        return (*facts, repr(tensor.tolist()))


def outcome(way: Any, tensor: torch.Tensor, index: Any, *new: Any) -> Any:
    """The calls that a way to index makes, then what it returns or raises."""
    tensors = [item for item in torch_api.tree_leaves(index) if isinstance(item, torch.Tensor)]
    with warnings.catch_warnings(), torch_api.below_autograd():
        warnings.simplefilter("ignore")
        with Calls(tensor, *new, *tensors) as mode:
            try:
                result = way(tensor, index, *new)
            except ERRORS as error:
                return mode.calls, type(error), str(error).split("\n")[0]
    return mode.calls, told(tensor) if result is None else told(result)


def own_get(tensor, index):
    return tensor[index]


def own_set(tensor, index, new):
    tensor[index] = new


# -------------------------------------------------------------------------------- made up

NUMBERS = st.integers(-4, 4)
SLICES = st.builds(
    slice,
    st.none() | st.integers(-6, 6),
    st.none() | st.integers(-6, 6) | st.sampled_from([10**30, -(10**30)]),
    st.sampled_from([None, None, 1, 1, 2, 3, 0, -1, np.int64(2)]),
)
LISTS = (
    st.lists(NUMBERS | st.booleans(), max_size=3)
    | st.lists(st.booleans(), min_size=2, max_size=4)
    | st.recursive(st.lists(NUMBERS, max_size=3), lambda inner: st.lists(inner, max_size=3))
)


@st.composite
def index_tensors(draw):
    shape = draw(st.sampled_from([(), (), (1,), (2,), (3,), (4,), (3, 1), (2, 3), (0,)]))
    count = int(np.prod(shape))
    dtype = draw(st.sampled_from([torch.int64, torch.int64, torch.int32, torch.bool, torch.uint8]))
    least = 0 if dtype == torch.uint8 else -2
    numbers = draw(st.lists(st.integers(least, 2), min_size=count, max_size=count))
    return torch.tensor(numbers).reshape(shape).to(dtype)


ARRAYS = st.sampled_from([
    np.array([0, 1]), np.array([[0], [1]]), np.array(1), np.array([True, False, True]),
    np.array([0, 1], dtype=np.int32), np.array([], dtype=np.int64), np.array([0.0, 1.0]),
])  # fmt: skip
ODD = st.sampled_from([
    1.5, "a", {}, {1}, b"ab", np.bool_(True), np.float32(1), range(2), torch.Size([1, 0]), object,
    torch.tensor(1.5), torch.tensor([1.5]), [1.5], [None, 0], [slice(1), 0], [...], 10**30,
    [torch.tensor(1), torch.tensor(0)], [[torch.tensor(1), 0]], slice(torch.tensor(1), 3),
    slice("a"), [[1, 2], [3]], [np.int64(1), 2], list(range(3)) * 11, [1j], slice(0.5, 2),
])  # fmt: skip
PARTS = st.one_of(
    *(NUMBERS, NUMBERS, SLICES, SLICES, SLICES, st.none(), st.just(...), st.booleans()),
    *(LISTS, index_tensors(), index_tensors(), ARRAYS, st.sampled_from([np.int64(1), np.int8(0)])),
    ODD,
)
MANY = st.lists(PARTS, max_size=4).filter(lambda parts: sum(part is ... for part in parts) < 2)
INDICES = PARTS | MANY.map(tuple) | MANY
"""With two ellipses, or a mask of two dimensions as a list, the binding reads past its sizes."""


@st.composite
def subjects(draw):
    shape = draw(st.sampled_from([(4, 3, 2), (3, 4), (4,), (2, 1, 3, 2), (), (0, 2), (1, 1)]))
    dtype = draw(st.sampled_from([torch.float32] * 3 + [torch.int64, torch.bool, torch.uint8]))
    tensor = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    return tensor.mT if len(shape) > 1 and draw(st.booleans()) else tensor


@st.composite
def values(draw):
    kind = draw(st.integers(0, 2))
    if kind == 0:
        return draw(st.sampled_from([
            0, 1, -1, 300, 2.5, float("nan"), float("inf"), True, 1j, np.int64(2), np.float64(0.5),
            np.float32(0.5), np.bool_(True), 10**30, None, "a", [1, 2], np.ones(2), object(),
        ]))  # fmt: skip
    shape = draw(st.sampled_from([(), (), (1,), (2,), (3,), (1, 1), (3, 2), (1, 3), (4, 3, 2)]))
    dtype = draw(st.sampled_from([torch.float32] * 3 + [torch.int64, torch.bool, torch.float64]))
    return torch.ones(shape, dtype=dtype) * 7


FEW = settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
MANY = settings(FEW, max_examples=3000)


@FEW
@given(subjects(), INDICES)
@example(torch.zeros(()), 1)
@example(torch.zeros(()), (0,))
@example(torch.zeros(()), slice(None))
@example(torch.zeros(3, 2), (torch.tensor([0]), ..., 1))
@example(torch.zeros(2, 2), ([[True, False], [False, True]],))
def test_get_is_the_bindings(tensor, index):
    assert outcome(get_item, tensor, index) == outcome(own_get, tensor, index)


@pytest.mark.slow
@MANY
@given(subjects(), INDICES)
def test_many_are_the_bindings(tensor, index):
    assert outcome(get_item, tensor, index) == outcome(own_get, tensor, index)


@FEW
@given(subjects(), INDICES, values())
@example(torch.zeros(3, 2), True, 1)
@example(torch.zeros(()), (), 1)
@example(torch.zeros(()), slice(None), 1)
@example(torch.zeros(3, 2), False, 1)
def test_set_is_the_bindings(tensor, index, new):
    set_is_the_bindings(tensor, index, new)


@pytest.mark.slow
@MANY
@given(subjects(), INDICES, values())
def test_many_that_are_set_are_the_bindings(tensor, index, new):
    set_is_the_bindings(tensor, index, new)


def set_is_the_bindings(tensor, index, new):
    mine, theirs = tensor.clone(), tensor.clone()
    assert outcome(set_item, mine, index, new) == outcome(own_set, theirs, index, new)
    assert told(mine) == told(theirs)


@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(subjects(), INDICES, values())
def test_on_meta_as_well(tensor, index, new):
    tensor = tensor.to("meta")
    assert outcome(get_item, tensor, index) == outcome(own_get, tensor, index)
    assert outcome(set_item, tensor, index, new) == outcome(own_set, tensor, index, new)


# ------------------------------------------------------------------------------ labelled cuda


def cuda(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return labelled(torch.empty(shape, dtype=dtype, device="meta"))


SUBJECT, PLACES, NUMBER = cuda(4, 5, 6), cuda(2, dtype=torch.int64), cuda()
ONE_PLACE, MASK = cuda(dtype=torch.int64), cuda(5, dtype=torch.bool)

READS = [  # what a CUDA build of torch 2.13.0 calls
    (-1, ["select.int(4x5x6, 0, -1)"]),
    ((slice(None), slice(0, 5)), ["alias(4x5x6)"]),
    ((..., slice(1, 3), None), ["slice.Tensor(4x5x6, 2, 1, 3)", "unsqueeze(4x5x2, 3)"]),
    ((slice(None), PLACES), ["index.Tensor(4x5x6, [None, 2])"]),
    ([0, 2], ["lift_fresh(2)", "index.Tensor(4x5x6, [2])"]),
    (
        np.array([0, 1]),
        ["lift_fresh(2)", "to.device(2, cuda:0, int64)", "index.Tensor(4x5x6, [2])"],
    ),
    (
        True,
        [
            "unsqueeze(4x5x6, 0)",
            "zeros([1], dtype=int64, layout=strided)",
            "index.Tensor(1x4x5x6, [1])",
        ],
    ),
]
FILLS = torch.__version__ >= "2.15"
NUMBERS_MADE_TENSORS = [
    (0, 1, ["lift_fresh(())", "select.int(4x5x6, 0, 0)", "fill_.Tensor(5x6, ())"]),
    (PLACES, 1.5, ["lift_fresh(())", "index_put_(4x5x6, [2], ())"]),
]
NUMBERS_FILLED = [  # what `TensorIndexing.h` of torch 2.15.0 calls
    (0, 1, ["select.int(4x5x6, 0, 0)", "fill_.Scalar(5x6, 1)"]),
    (PLACES, 1.5, ["index_fill_.int_Scalar(4x5x6, 0, 2, 1.5)"]),
    ((slice(None), MASK), 0.0, ["unsqueeze(5, -1)", "masked_fill_.Scalar(4x5x6, 5x1, 0.0)"]),
    ((PLACES, PLACES), 1.5, ["lift_fresh(())", "index_put_(4x5x6, [2, 2], ())"]),
    (ONE_PLACE, 1.5, ["index_fill_.int_Scalar(4x5x6, 0, (), 1.5)"]),
    ((0, ONE_PLACE), NUMBER, ["select.int(4x5x6, 0, 0)", "index_put_(5x6, [()], ())"]),
]
WRITES = [
    *(NUMBERS_FILLED if FILLS else NUMBERS_MADE_TENSORS),
    (
        0,
        NUMBER,
        ["select.int(4x5x6, 0, 0)", "view((), [])", "expand((), [5, 6])", "copy_(5x6, 5x6)"],
    ),
    (0, cuda(5, 6), ["select.int(4x5x6, 0, 0)", "copy_(5x6, 5x6)"]),
    (PLACES, cuda(1, 1, 6), ["view(1x1x6, [6])", "index_put_(4x5x6, [2], 6)"]),
]


@pytest.mark.parametrize(("index", "lines"), READS)
def test_get_on_a_device_that_is_not_there(index, lines):
    with torch_api.below_autograd(), Lines() as mode:
        assert get_item(SUBJECT, index).device.type == "cuda"
    assert mode.lines == lines


@pytest.mark.parametrize(("index", "new", "lines"), WRITES)
def test_set_on_a_device_that_is_not_there(index, new, lines):
    with torch_api.below_autograd(), Lines() as mode:
        set_item(SUBJECT, index, new)
    assert mode.lines == lines


# ------------------------------------------------------------------------------ unknown sizes


def test_unknown_sizes_guard_as_little_as_the_bindings():
    for index in (0, -1, slice(None), (slice(None), 0), (slice(0, None), None), (..., slice(1, 3))):
        assert guards(get_item, index) == guards(own_get, index)


def guards(way, index):
    env = ShapeEnv(duck_shape=False)
    mode = torch_api.FakeTensorMode(shape_env=env)
    dynamic = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * 2)
    tensor = mode.from_tensor(torch.zeros(4, 5), symbolic_context=dynamic)
    with mode:
        result = way(tensor, index)
    return [str(guard.expr) for guard in env.guards], str(result.shape)


def test_an_index_with_a_number_that_is_not_known():
    env = ShapeEnv(duck_shape=False)
    dynamic = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * 2)
    mode = torch_api.FakeTensorMode(shape_env=env)
    tensor = mode.from_tensor(torch.zeros(4, 5), symbolic_context=dynamic)
    n, held = tensor.shape[0], mode.from_tensor(torch.tensor(1))
    for index in (n, (0, n), slice(n), (..., slice(None, n)), (slice(0, 1, n),), held, slice(held)):
        assert open_number(index)
    for index in KNOWN_INDICES:
        assert not open_number(index)


KNOWN_INDICES = (0, True, None, ..., slice(None), (slice(0, 3, 2), ..., 1, None, slice(-1, None)))


@pytest.mark.parametrize("index", KNOWN_INDICES)
def test_a_known_index_is_looked_at_without_calls_that_a_watched_run_hears_of(index):
    events, before = list[str](), sys.getprofile()
    sys.setprofile(lambda frame, event, arg: events.append(event))
    try:
        open_number(index)
    finally:
        sys.setprofile(before)
    assert events == ["call", "return", "c_call"]  # its own, and the end of watching
