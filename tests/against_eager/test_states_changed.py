# ruff: noqa: NPY002 - numpy's old generator is one of the states
"""What a program does to states in C, generators first: refused, or done by Python at each call."""

import array
import contextvars
import os
import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import foretrace
from tests.support.bits import same_bits

Program = Callable[[Tensor], Tensor]
Made = tuple[Program, Callable[[], Any]]
"""A program, and what its state is"""
CHANGING: dict[str, Callable[[], Made]] = {}
FLAG = "FORETRACE_TEST_COUNT"


def changing(fn: Callable[[], Made]) -> Callable[[], Made]:
    CHANGING[fn.__name__] = fn
    return fn


def state_of_numpy(generator: Any = np.random) -> Any:
    return generator.get_state()[1].tolist()


@changing
def seeds_python() -> Made:
    def program(x: Tensor) -> Tensor:
        random.seed(3)
        return x + 1

    return program, random.getstate


@changing
def seeds_python_and_draws() -> Made:
    def program(x: Tensor) -> Tensor:
        random.seed(3)
        return x + random.random()

    return program, random.getstate


@changing
def seeds_numpy() -> Made:
    def program(x: Tensor) -> Tensor:
        np.random.seed(3)
        return x + float(np.random.rand())

    return program, state_of_numpy


@changing
def seeds_one_of_its_own() -> Made:
    own = random.Random(3)

    def program(x: Tensor) -> Tensor:
        own.seed(3)
        return x + 1

    return program, own.getstate


@changing
def seeds_one_of_numpy() -> Made:
    own = np.random.RandomState(3)

    def program(x: Tensor) -> Tensor:
        own.seed(3)
        return x + 1

    return program, partial(state_of_numpy, own)


@changing
def counts_in_a_thread() -> Made:
    local = threading.local()
    local.count = 0

    def program(x: Tensor) -> Tensor:
        local.count += 1
        return x * local.count

    return program, lambda: local.count


@changing
def counts_in_a_context() -> Made:
    count = contextvars.ContextVar("count", default=0)

    def program(x: Tensor) -> Tensor:
        count.set(count.get() + 1)
        return x * count.get()

    return program, count.get


@changing
def counts_in_bytes() -> Made:
    count = bytearray(1)

    def program(x: Tensor) -> Tensor:
        count[0] += 1
        return x * count[0]

    return program, partial(bytes, count)


@changing
def counts_in_an_array() -> Made:
    count = array.array("l", [0])

    def program(x: Tensor) -> Tensor:
        count[0] += 1
        return x * count[0]

    return program, count.tolist


@changing
def counts_in_the_environment() -> Made:
    environment = os.environ

    def program(x: Tensor) -> Tensor:
        environment[FLAG] = str(int(environment[FLAG]) + 1)
        return x * int(environment[FLAG])

    return program, lambda: os.environ[FLAG]


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FLAG, "0")


def eager(name: str, calls: int) -> tuple[list[Tensor], Any]:
    """The results of calls, and the state after them."""
    fn, state = CHANGING[name]()
    return _called(fn, calls), state()


def _called(fn: Program, calls: int) -> list[Tensor]:
    """Generators are in another state before the last call."""
    found = []
    for call in range(calls):
        if call == calls - 1:
            random.seed(99)
            np.random.seed(99)
        found.append(fn(torch.zeros(2)))
    return found


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.filterwarnings("ignore:.*is not captured whole")
def test_compiled_it_does_what_eager_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, left = eager(name, 4)
    monkeypatch.setenv(FLAG, "0")
    fn, state = CHANGING[name]()
    found = _called(foretrace.compile(fn), 4)
    assert all(map(same_bits, found, expected))
    assert state() == left


@pytest.mark.parametrize("name", CHANGING)
@pytest.mark.parametrize("calls", [0, 2])
def test_a_capture_refuses_it_and_changes_nothing(name: str, calls: int) -> None:
    fn, state = CHANGING[name]()
    _called(fn, calls)
    before = state()
    for way in (foretrace.capture, lambda fn, args: foretrace.compile(fn, fullgraph=True)(*args)):
        with pytest.raises(foretrace.Refusal) as caught:
            way(fn, (torch.zeros(2),))
        assert caught.value.kind == "side effect"
        assert state() == before


def test_what_is_put_back_is_no_change() -> None:
    gain = contextvars.ContextVar("gain", default=1)

    def program(x: Tensor) -> Tensor:
        token = gain.set(5)
        found = x * gain.get()
        gain.reset(token)
        state = random.getstate()
        random.seed(0)
        found = found + random.random()
        random.setstate(state)
        return found

    x = torch.ones(2)
    call = foretrace.compile(program, fullgraph=True)
    assert same_bits(call(x), program(x))
    assert same_bits(call(x), program(x))
    assert not call.recaptures


SEEDS: dict[str, Callable[[], Any]] = {
    "Python's, by its name": lambda: random.seed(3),
    "Python's, by another name": partial(random.seed, 3),
    "numpy's, by its name": lambda: np.random.seed(3),
    "numpy's, by another name": partial(np.random.seed, 3),
}


@pytest.mark.parametrize("name", SEEDS)
def test_a_seed_that_finds_its_own_state_is_refused(name: str) -> None:
    """The state is the same after the run; only another one before it shows the seed."""
    seed = SEEDS[name]

    def program(x: Tensor) -> Tensor:
        seed()
        return x * 2

    seed()
    with pytest.raises(foretrace.Refusal, match="random number generator"):
        foretrace.capture(program, (torch.ones(2),))


def test_generators_are_as_before_a_capture() -> None:
    own, of_numpy = random.Random(5), np.random.default_rng(5)

    def program(x: Tensor) -> Tensor:
        return x * 2 if own is not of_numpy else x

    before = random.getstate(), own.getstate(), of_numpy.bit_generator.state
    old = state_of_numpy()
    foretrace.capture(program, (torch.ones(2),))
    assert before == (random.getstate(), own.getstate(), of_numpy.bit_generator.state)
    assert old == state_of_numpy()
