"""What leads to an object without holding it, or by a key that says itself what it equals.

Weak references, keys with an `__eq__` of their own, objects of torch's own Python.
"""

import functools
import mmap
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._functorch import config
from torch.distributions.transforms import AffineTransform
from torch.utils._ordered_set import OrderedSet
from torch.utils.data import ConcatDataset, Subset, TensorDataset
from torch.utils.weak import WeakIdKeyDictionary

import foretrace
from foretrace import torch_api
from foretrace.python_state.code.code_owner import RUNS_PROGRAMS, origin_of

ONE, OTHER, Y = torch.randn(4), torch.randn(4), torch.randn(4)
OF_ONE, OF_OTHER = weakref.ref(ONE), weakref.ref(OTHER)


def is_led_to(reference: Any, x: Tensor, y: Tensor) -> Tensor:
    if reference is not None and reference() is not x:
        return torch.sin(y)
    return torch.cos(y)


CALLS = (
    (OF_ONE, ONE, Y), (OF_ONE, OTHER, Y), (OF_OTHER, OTHER, Y), (OF_OTHER, ONE, Y), (None, ONE, Y),
    (OF_ONE, Y, Y),
)  # fmt: skip


@pytest.mark.parametrize("order", [*permutations(range(len(CALLS)), 3)][::4])
def test_a_weak_reference_to_an_argument(order: tuple[int, ...]) -> None:
    compiled = foretrace.compile(is_led_to, fullgraph=True)
    for place in order:
        assert torch.equal(compiled(*CALLS[place]), is_led_to(*CALLS[place]))


def test_a_cut_with_a_weak_reference() -> None:
    for call in CALLS[:4]:
        assert torch.equal(
            foretrace.capture(is_led_to, call).cut("export")(*call), is_led_to(*call)
        )


HELD: dict[str, Any] = {"reference": OF_ONE}
BY_NAME = weakref.WeakValueDictionary[str, Tensor]()
BY_ID = WeakIdKeyDictionary()


def reads_a_reference(x: Tensor) -> Tensor:
    return x.sin() if HELD["reference"]() is not x else x.cos()


def reads_a_weak_value(x: Tensor) -> Tensor:
    return x.sin() if BY_NAME.get("x") is not x else x.cos()


def looks_for_a_weak_key(x: Tensor) -> Tensor:
    return x.sin() if x not in BY_ID else x.cos() * BY_ID[x]


def leads_to(tensor: Tensor) -> None:
    HELD["reference"] = weakref.ref(tensor)
    BY_NAME["x"] = tensor
    BY_ID.clear()
    BY_ID[tensor] = 2.0


@pytest.mark.parametrize("program", [reads_a_reference, reads_a_weak_value, looks_for_a_weak_key])
def test_what_is_read_leads_to_an_argument(program: Callable[[Tensor], Tensor]) -> None:
    compiled = foretrace.compile(program, fullgraph=True)
    for there, x in ((ONE, ONE), (ONE, OTHER), (OTHER, OTHER), (OTHER, ONE), (ONE, ONE)):
        leads_to(there)
        assert torch.equal(compiled(x), program(x))


@dataclass(frozen=True)
class Key:
    name: str


NUMBERS: dict[Any, Any] = {Key("a"): 2.0, "plain": 3.0}
TENSORS = {(Key("a"), 1): torch.ones(4)}


def looks_up_a_number(x: Tensor) -> Tensor:
    return x * NUMBERS[Key("a")] * NUMBERS["plain"]


def looks_up_a_tensor(x: Tensor) -> Tensor:
    return x * TENSORS[Key("a"), 1]


@pytest.mark.parametrize("fullgraph", [False, True])
def test_items_by_keys_with_an_equality_of_their_own(fullgraph: bool) -> None:
    for program, table, values in (
        (looks_up_a_number, NUMBERS, (2.0, 5.0, 5.0, torch.ones(4))),
        (looks_up_a_tensor, TENSORS, (torch.ones(4), torch.zeros(4))),
    ):
        compiled = foretrace.compile(program, fullgraph=fullgraph)
        for value in values:
            table[next(iter(table))] = value
            assert torch.equal(compiled(ONE), program(ONE))


NORMAL = torch.distributions.Normal(torch.zeros(4), torch.ones(4))
SCALED, NAMES = AffineTransform(1.0, 2.0), OrderedSet([1, 2])


def change_normal(number: float) -> None:
    NORMAL.loc = NORMAL.loc + number


def change_transform(number: float) -> None:
    SCALED.scale = number


def change_names(number: float) -> None:
    NAMES.add(number)


def asks_normal(x: Tensor) -> Tensor:
    return NORMAL.log_prob(x)


def transforms(x: Tensor) -> Tensor:
    return SCALED(x) + 1


def asks_names(x: Tensor) -> Tensor:
    return x * 2 if 3.0 in NAMES else x * 3


ROWS = TensorDataset(torch.randn(3, 4))
SOME = Subset(ROWS, [0, 1, 2])
BOTH = ConcatDataset([ROWS, SOME])


def change_rows(number: float) -> None:
    ROWS.tensors = (torch.randn(3, 4) * number,)


def change_subset(_: float) -> None:
    SOME.indices = [*SOME.indices[1:], SOME.indices[0]]


def change_concatenated(number: float) -> None:
    BOTH.datasets[1] = TensorDataset(torch.randn(3, 4) * number)


def reads_rows(x: Tensor) -> Tensor:
    return x * ROWS[0][0]


def reads_some(x: Tensor) -> Tensor:
    return x * SOME[0][0]


def reads_both(x: Tensor) -> Tensor:
    return x * BOTH[4][0]


def change_config(_: float) -> None:
    config.debug_partitioner = not config.debug_partitioner


def asks_config(x: Tensor) -> Tensor:
    return x * (2 if config.debug_partitioner else 3)


def imports_from_config(x: Tensor) -> Tensor:
    from torch._functorch.config import debug_partitioner  # noqa: PLC0415 - what is tested

    return x * (2 if debug_partitioner else 3)


@pytest.mark.parametrize(
    ("program", "change"),
    [
        (asks_normal, change_normal),
        (transforms, change_transform),
        (asks_names, change_names),
        (reads_rows, change_rows),
        (reads_some, change_subset),
        (reads_both, change_concatenated),
        (asks_config, change_config),
        (imports_from_config, change_config),
    ],
)
def test_objects_of_torchs_own_python(
    program: Callable[[Tensor], Tensor], change: Callable[[float], None]
) -> None:
    compiled = foretrace.compile(program, fullgraph=True)
    for number in (0.5, 3.0, 4.0):
        assert torch.equal(compiled(ONE), program(ONE))
        change(number)
    assert torch.equal(compiled(ONE), program(ONE))
    config.debug_partitioner = False


SCALE = 2.0


def scaled(x: Tensor) -> Tensor:
    return x * SCALE


def catches_a_lookup(x: Tensor) -> Tensor:
    try:
        assert torch.classes.nowhere.there
    except RuntimeError:
        return scaled(x)
    return x


def test_a_lookup_that_raises_stops_no_watching() -> None:
    """What runs after it is watched as what ran before."""
    assert torch.classes.nowhere is not None  # its first lookup creates it
    compiled = foretrace.compile(catches_a_lookup, fullgraph=True)
    for factor in (2.0, 5.0):
        globals()["SCALE"] = factor
        assert torch.equal(compiled(ONE), catches_a_lookup(ONE))


def test_each_place_of_torch_that_runs_programs_is_there() -> None:
    """What is on no list holds what programs hold, so a new package of torch's is looked at."""
    there = [str(each) for each in Path(torch_api.TORCH_DIR).glob("*")]
    there += [str(each) for each in Path(torch_api.TORCH_DIR, "utils").glob("*")]
    assert not [each for each in RUNS_PROGRAMS if not any(f"{x}/".startswith(each) for x in there)]
    assert origin_of(f"{torch_api.TORCH_DIR}new_in_torch/file.py") == "layer"


REBOUND = torch.full((4,), 2.0)


def asks_for_a_mark(x: Tensor) -> Tensor:
    return x.sin() * getattr(REBOUND, "mark", 5)


def test_an_attribute_of_a_tensor_that_others_rebind() -> None:
    """It is read at each call from then on, and so are its attributes."""
    compiled = foretrace.compile(asks_for_a_mark, fullgraph=True)
    for change in (
        lambda: None,
        lambda: globals().update(REBOUND=torch.ones(4)),
        lambda: None,
        lambda: setattr(REBOUND, "mark", 1),
        lambda: setattr(REBOUND, "mark", 3),
        lambda: globals().update(REBOUND=torch.zeros(4)),
    ):
        change()
        for _ in range(2):
            assert torch.equal(compiled(ONE), asks_for_a_mark(ONE))


@functools.singledispatch
def scale(_: object) -> float:
    return 1.0


class Dispatches:
    @functools.singledispatchmethod
    def scale(self, _: object) -> float:
        return 1.0


DISPATCHES, MAPPED = Dispatches(), mmap.mmap(-1, 4)


def dispatches(x: Tensor) -> Tensor:
    return x * scale(3) * DISPATCHES.scale(3)


def reads_mapped_memory(x: Tensor) -> Tensor:
    return x * MAPPED[0]


def change_dispatch(number: float) -> None:
    scale.register(int, lambda _: number)
    Dispatches.scale.register(int, lambda self, _: number * 2)  # type: ignore[attr-defined]


def change_mapped(number: float) -> None:
    MAPPED[0] = int(number)


@pytest.mark.parametrize(
    ("program", "change"), [(dispatches, change_dispatch), (reads_mapped_memory, change_mapped)]
)
def test_what_pythons_library_keeps(
    program: Callable[[Tensor], Tensor], change: Callable[[float], None]
) -> None:
    compiled = foretrace.compile(program, fullgraph=True)
    for number in (2.0, 3.0, 4.0, 4.0):
        change(number)
        assert torch.equal(compiled(ONE), program(ONE))


class Link:
    """One of a chain."""

    next: Any = None
    factor = 1.0
    params: Any = None


def chain(end: Link, steps: int) -> Link:
    for _ in range(steps):
        link = Link()
        link.next, end = end, link
    return end


@pytest.mark.parametrize("steps", [1, 5, 6, 7, 40])
def test_a_nearer_way_after_a_longer_one(steps: int) -> None:
    """Both ways lead to one object, and the longer one is met first."""
    store = Link()
    store.params = {"m": torch.ones(1)}
    head = chain(store, steps)

    def program(x: Tensor) -> Tensor:
        result: Tensor = x * store.params["m"] if head.next is not None else x
        return result

    compiled, x = foretrace.compile(program, fullgraph=True), torch.ones(2)
    for value in (1.0, 5.0, 7.0):
        store.params["m"] = torch.full((1,), value)
        assert torch.equal(compiled(x), program(x))


@pytest.mark.parametrize("steps", [3, 20, 300])
def test_the_end_of_a_chain(steps: int) -> None:
    end = Link()
    head = chain(end, steps)

    def program(x: Tensor) -> Tensor:
        link = head
        while link.next is not None:
            link = link.next
        return x * link.factor

    cut = foretrace.capture(program, (torch.ones(2),)).cut("export")
    assert torch.equal(cut(torch.ones(2)), torch.ones(2))
    end.factor = 3.0
    with pytest.raises(foretrace.Refusal, match="guard broken"):
        cut(torch.ones(2))


LOOKUPS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda x: x * (2.0 if hasattr(torch, "no_such_backend") else 3.0),
    lambda x: x * getattr(np, "no_such_number", 3.0),
    lambda x: x * (2.0 if hasattr(torch.ops, "foretrace_tests_first_touch") else 3.0),
)


@pytest.mark.parametrize("program", LOOKUPS)
def test_the_first_lookup_by_a_library(program: Callable[[Tensor], Tensor]) -> None:
    """By a module's `__getattr__`, which has one argument, and by one that binds what it makes."""
    compiled, x = foretrace.compile(program, fullgraph=True), torch.ones(2)
    assert torch.equal(compiled(x), program(x))
    assert torch.equal(compiled(x), program(x))


class Root:
    """A class whose subclasses a program counts."""


class Heir(Root):
    """One of them."""


def test_only_the_subclasses_that_are_asked_for_are_a_guard() -> None:
    cut = foretrace.capture(
        lambda x: x * len(Root.__subclasses__()), (torch.ones(2),)
    ).cut("export")  # fmt: skip
    metaclass = type("Metaclass", (type,), {})  # `type` has one more
    assert torch.equal(cut(torch.ones(2)), torch.ones(2))
    other = type("Other", (Root,), {})
    with pytest.raises(foretrace.Refusal, match="the subclasses of Root"):
        cut(torch.ones(2))
    del metaclass, other
