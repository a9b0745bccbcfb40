"""Entries that a program makes in dicts, such as a cache that its first call fills."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace

X = torch.arange(1.0, 4.0)
BY_TYPE: dict[Any, Any] = {}
BACKENDS: dict[str, Any] = {}
COUNTS: dict[str, int] = {}
ORDER: OrderedDict[str, int] = OrderedDict()
LISTS: dict[str, list[int]] = {}


class Backend:
    """What a cache holds."""

    factor = 2.0


@pytest.fixture(autouse=True)
def _empty() -> None:
    for table in (BY_TYPE, BACKENDS, COUNTS, ORDER, LISTS):
        table.clear()
    ORDER.update(a=1, b=2)


def by_type(x: Tensor) -> Tensor:
    """As einops finds the backend for a tensor."""
    if type(x) not in BY_TYPE:
        if "torch" not in BACKENDS:
            BACKENDS["torch"] = Backend()
        BY_TYPE[type(x)] = BACKENDS["torch"]
    return x * BY_TYPE[type(x)].factor


def counted(x: Tensor) -> Tensor:
    COUNTS["calls"] = COUNTS.get("calls", 0) + 1
    return x * COUNTS["calls"]


class Holder:
    """Holds one far from the program."""

    def __init__(self) -> None:
        self.inner = self.counts = {"calls": 0}


class CountsFarAway:
    def __init__(self) -> None:
        self.held = {"a": [{"b": (Holder(),)}]}

    def __call__(self, x: Tensor) -> Tensor:
        counts = self.held["a"][0]["b"][0].counts
        counts["calls"] += 1
        return x * counts["calls"]


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, Any] = {}

    def forward(self, x: Tensor) -> Tensor:
        if len(x) not in self.sizes:
            self.sizes[len(x)] = (len(self.sizes) + 1, Backend)
        return x * self.sizes[len(x)][0]


def test_a_cache_by_the_type_of_a_tensor() -> None:
    """The type that the run sees is no one else's."""
    compiled = foretrace.compile(by_type, fullgraph=True)
    for _ in range(3):
        assert torch.equal(compiled(X), X * 2)
    (backend,) = BACKENDS.values()
    assert isinstance(backend, Backend)
    assert set(BY_TYPE) <= {Tensor}
    by_type(X)
    cut = foretrace.capture(by_type, (X,)).cut("export")
    assert all(torch.equal(cut(X), X * 2) for _ in range(2))
    assert torch.equal(compiled(X), X * 2)
    assert {"torch": backend} == BACKENDS
    assert {Tensor: backend} == BY_TYPE


@pytest.mark.parametrize("make", [lambda: counted, Keeps, CountsFarAway])
def test_each_call_makes_the_entries_that_eager_makes(make: Callable[[], Any]) -> None:
    eager, ours = make(), make()
    expected = [(eager(x).tolist(), dict(COUNTS)) for x in (X, X, X[:2], X)]
    COUNTS.clear()
    compiled = foretrace.compile(ours, dynamic=False, fullgraph=True)
    assert [(compiled(x).tolist(), dict(COUNTS)) for x in (X, X, X[:2], X)] == expected
    if isinstance(ours, Keeps):
        assert ours.sizes == eager.sizes == {3: (1, Backend), 2: (2, Backend)}


def test_a_graph_alone_has_no_such_counter() -> None:
    class Counts(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return counted(x)

    with pytest.raises(foretrace.Refusal, match="something else at its next call"):
        foretrace.export(Counts(), (X,))
    assert not COUNTS


@pytest.mark.parametrize(
    "change",
    [
        lambda: ORDER.move_to_end(next(iter(ORDER))),
        lambda: ORDER.pop("a", None),
        lambda: LISTS.setdefault("all", []).append(1),
    ],
    ids=["order", "removal", "a list inside"],
)
def test_content_of_every_kind(change: Callable[[], object]) -> None:
    def program(x: Tensor) -> Tensor:
        change()
        return x * 2

    before = dict(ORDER)
    compiled, held = foretrace.compile(program, fullgraph=True), (ORDER, LISTS)
    states = list[Any]()
    for run in (program, compiled):
        for _ in range(3):
            run(X)
            states.append((list(ORDER.items()), {n: list(each) for n, each in LISTS.items()}))
        ORDER.clear()
        ORDER.update(before)
        LISTS.clear()
    assert states[:3] == states[3:]
    assert held == (ORDER, LISTS)


def test_a_list_with_an_object_in_a_new_entry_is_made_anew_or_refused() -> None:
    """Not bound again as an earlier call left it, and as others have filled it since."""
    kept, backend = dict[str, Any](), Backend()

    def program(x: Tensor) -> Tensor:
        kept["all"] = [backend]
        return x * 2

    compiled = foretrace.compile(program, fullgraph=True)
    compiled(X)  # as Python: only the first call may do it
    kept.pop("all").append(5)
    with pytest.raises(foretrace.Refusal, match="changes the content"):
        compiled(X)
    assert not kept
