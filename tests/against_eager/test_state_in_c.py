"""What a program reads that no dict of attributes has: by each route, a call never is stale."""

import array
import builtins
import contextvars
import ctypes
import logging
import os
import threading
import types
import weakref
from collections import ChainMap, UserDict, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import foretrace
from tests.support.bits import same_bits

FLAG = "FORETRACE_TEST_FLAG"


class Held:
    gain = 2

    def go(self, x: Tensor) -> Tensor:
        return x * self.gain


class Other(Held):
    def go(self, x: Tensor) -> Tensor:
        return x + 40


class Meta(type):
    pass


class OfMeta(metaclass=Meta):
    pass


class Layers(list[int]):
    gain: int


class Mode:
    def __init__(self) -> None:
        self.gain = 2


State = tuple[Callable[[Tensor], Tensor], Callable[[], object]]
"""A program, and what changes the state that it reads"""
MADE: dict[str, Callable[[], State]] = {}
"""By what holds the state"""


def made(fn: Callable[[], State]) -> Callable[[], State]:
    MADE[fn.__name__] = fn
    return fn


@made
def class_of_an_object() -> State:
    held = Held()
    fn = lambda x: held.go(x)  # noqa: E731, PLW0108 - it looks the method up
    return fn, lambda: setattr(held, "__class__", Other)


@made
def class_of_a_module() -> State:
    class Net(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    class Changed(Net):
        def forward(self, x: Tensor) -> Tensor:
            return x * 3

    net = Net()
    return partial(torch.nn.Module.__call__, net), lambda: setattr(net, "__class__", Changed)


@made
def dict_of_an_object() -> State:
    mode = Mode()
    return lambda x: x * mode.gain, lambda: setattr(mode, "__dict__", {"gain": 7})


@made
def attribute_of_a_metaclass() -> State:
    Meta.gain = 2  # type: ignore[attr-defined]
    return (
        lambda x: x * OfMeta.gain,  # type: ignore[attr-defined]
        lambda: setattr(Meta, "gain", 7),
    )


@made
def attribute_of_a_list() -> State:
    layers = Layers([1])
    layers.gain = 2
    return lambda x: x * layers.gain, lambda: setattr(layers, "gain", 7)


@made
def weak_reference() -> State:
    mode = Mode()
    reference = weakref.ref(mode)
    return (
        lambda x: x * reference().gain,  # type: ignore[union-attr]
        lambda: setattr(mode, "gain", 7),
    )


@made
def weak_reference_that_dies() -> State:
    held = [Mode()]
    reference = weakref.ref(held[0])
    return lambda x: x * (7 if reference() is None else 2), held.clear


@made
def weak_values() -> State:
    mode = Mode()
    table = weakref.WeakValueDictionary({"mode": mode})
    return lambda x: x * table["mode"].gain, lambda: setattr(mode, "gain", 7)


@made
def weak_keys() -> State:
    mode = Mode()
    table = weakref.WeakKeyDictionary({mode: 2})
    return lambda x: x * table[mode], lambda: table.__setitem__(mode, 7)


@made
def local_of_a_thread() -> State:
    local = threading.local()
    local.gain = 2
    return lambda x: x * local.gain, lambda: setattr(local, "gain", 7)


@made
def local_that_lacks_it() -> State:
    local = threading.local()
    return lambda x: x * getattr(local, "gain", 2), lambda: setattr(local, "gain", 7)


@made
def context_variable() -> State:
    gain = contextvars.ContextVar("gain", default=2)
    return lambda x: x * gain.get(), lambda: gain.set(7)


@made
def environment() -> State:
    return lambda x: x * float(os.environ[FLAG]), lambda: os.environ.__setitem__(FLAG, "7")


@made
def environment_by_a_function() -> State:
    return lambda x: x * float(os.getenv(FLAG, "0")), lambda: os.environ.pop(FLAG)


@made
def chain_of_dicts() -> State:
    base = {"gain": 2}
    chain = ChainMap({}, base)
    return lambda x: x * chain["gain"], lambda: base.update(gain=7)


@made
def dict_of_the_library() -> State:
    table = UserDict(gain=2)
    return lambda x: x * table["gain"], lambda: table.update(gain=7)


@made
def view_of_a_dict() -> State:
    base = {"gain": 2}
    view = types.MappingProxyType(base)
    return lambda x: x * view["gain"], lambda: base.update(gain=7)


@made
def factory_of_a_dict() -> State:
    table: defaultdict[str, Any] = defaultdict(lambda: 2, {"mode": Mode()})
    return (
        lambda x: x * table.default_factory() * table["mode"].gain,  # type: ignore[misc]
        lambda: setattr(table, "default_factory", lambda: 7),
    )


@made
def level_of_a_logger() -> State:
    log = logging.getLogger("tests.state_in_c.inside")
    return (
        lambda x: x * 2 if log.isEnabledFor(5) else x * 3,
        lambda: logging.getLogger("tests.state_in_c").setLevel(1),
    )


@made
def numbers_of_numpy() -> State:
    mean = np.array([2.0])
    return lambda x: x * float(mean[0]), lambda: mean.__setitem__(0, 7.0)


class Strict(np.ndarray):
    """Its methods are the user's: nothing that looks at it calls them."""

    def tobytes(self, *args: Any) -> bytes:
        raise RuntimeError("tobytes")

    def copy(self, *args: Any) -> Any:  # type: ignore[override]
        raise RuntimeError("copy")


@made
def numbers_of_a_class_of_numpys() -> State:
    mean = np.array([2.0]).view(Strict)
    return lambda x: x * float(mean[0]), lambda: mean.__setitem__(0, 7.0)


@made
def a_mask_of_numpy() -> State:
    some = np.ma.array([2.0, 3.0], mask=[False, True])
    nothing = np.ma.masked  # it refuses to have attributes set
    return (
        lambda x: x * float(some.sum()) * (some[1] is nothing) + x,
        lambda: some.mask.__setitem__(1, False),
    )


@made
def numbers_of_an_array() -> State:
    numbers = array.array("d", [2.0])
    return lambda x: x * numbers[0], lambda: numbers.__setitem__(0, 7.0)


@made
def numbers_of_bytes() -> State:
    numbers = bytearray(b"\x02")
    return lambda x: x * numbers[0], lambda: numbers.__setitem__(0, 7)


@made
def number_of_c() -> State:
    number = ctypes.c_double(2.0)
    return lambda x: x * number.value, lambda: setattr(number, "value", 7.0)


Call = Callable[[Tensor], Any]
ROUTES: dict[str, Callable[[Call, Tensor], Call]] = {
    "compile": lambda fn, x: foretrace.compile(fn),
    "whole": lambda fn, x: foretrace.compile(fn, fullgraph=True),
    "graphs": lambda fn, x: foretrace.compile(fn, backend=lambda module, _: module),
    "program": lambda fn, x: foretrace.capture(fn, (x,)).compile(),
    "export": lambda fn, x: foretrace.capture(fn, (x,)).cut("export"),
    "aten": lambda fn, x: foretrace.capture(fn, (x,)).cut("aten"),
}


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(FLAG, "2")
    log = logging.getLogger("tests.state_in_c")
    level = log.level
    yield
    log.setLevel(level)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", MADE)
@pytest.mark.filterwarnings("ignore:.*is not captured whole")
def test_state_that_changes_between_calls(name: str, route: str) -> None:
    fn, change = MADE[name]()
    x = torch.ones(3)
    call = ROUTES[route](fn, x)
    assert same_bits(call(x), fn(x))
    assert same_bits(call(x), fn(x))
    before = fn(x)
    change()
    assert not same_bits(fn(x), before)
    if route in ("compile", "whole", "graphs"):
        assert same_bits(call(x), fn(x))
        return
    with pytest.raises(foretrace.Refusal) as caught:
        call(x)
    assert caught.value.kind == "guard broken"


def test_a_local_is_that_of_the_calling_thread() -> None:
    local = threading.local()
    local.gain = 2
    call = foretrace.compile(lambda x: x * local.gain, fullgraph=True)
    x, seen = torch.ones(2), list[Tensor]()
    call(x)

    def other() -> None:
        local.gain = 5
        seen.append(call(x))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert torch.equal(seen[0], x * 5)
    assert torch.equal(call(x), x * 2)


def test_what_a_weak_reference_leads_to_is_not_kept() -> None:
    mode = Mode()
    reference = weakref.ref(mode)
    call = foretrace.compile(
        lambda x: x if (found := reference()) is None else x * found.gain, fullgraph=True
    )
    x = torch.ones(2)
    call(x)
    del mode
    assert reference() is None
    assert torch.equal(call(x), x)


@pytest.mark.filterwarnings("ignore:.* is not captured whole")  # each call finds another level
def test_the_level_of_a_logger_is_never_open() -> None:
    """A number that has varied becomes a symbol, but not where Python's own methods compare it."""
    log = logging.getLogger("foretrace.tests.level")

    def program(x: Tensor) -> Tensor:
        return x * log.level

    x = torch.ones(2)
    call = foretrace.compile(program)
    try:
        for level, disabled in ((20, 0), (10, 50), (30, 10), (30, 0)):
            log.setLevel(level)
            logging.disable(disabled)
            assert same_bits(call(x), program(x))
    finally:
        logging.disable(logging.NOTSET)


def test_a_name_that_builtins_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builtins, "FORETRACE_GAIN", 2.0, raising=False)
    program = eval("lambda x: x * FORETRACE_GAIN")  # noqa: S307 - a name that no linter knows
    x = torch.ones(2)
    call = foretrace.compile(program, fullgraph=True)
    assert same_bits(call(x), program(x))
    monkeypatch.setattr(builtins, "FORETRACE_GAIN", 5.0)
    assert same_bits(call(x), program(x))


def test_a_number_that_a_class_in_c_shows_for_reading() -> None:
    """Each question gives a new object, which is no other number; no symbol stands there."""
    made = pytest.importorskip("numpy.random._generator").default_rng
    if not hasattr(made, "__vectorcalloffset__"):
        pytest.skip("no member of a class by Cython")

    def program(x: Tensor) -> Tensor:
        return x * 2 if made.__vectorcalloffset__ else x

    call = foretrace.compile(program, fullgraph=True)
    for rows in (3, 5, 6):
        x = torch.ones(rows)
        assert same_bits(call(x), program(x))
