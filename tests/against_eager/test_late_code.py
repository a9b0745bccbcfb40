"""Code that runs though no name in the program leads to it: what it changes is as after eager.

An operator of a class, a method by a name that is computed, one at the end of a long chain, one
that a library calls. Each fills a list, counts in a dict, or draws from a generator.
"""

import argparse
import functools
import operator
import random
import unittest
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import foretrace

FILLED: list[Any] = []
COUNTS = {"calls": 0}
DRAWS = random.Random(0)
ONES = torch.ones(2)


def notes(x: Tensor) -> Tensor:
    FILLED.append(x * 2)
    COUNTS["calls"] += 1
    return x * COUNTS["calls"]


class Descriptor:
    def __get__(self, item: object, owner: type) -> Tensor:
        return notes(ONES)


def logged(fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
    seen: list[Any] = FILLED

    @functools.wraps(fn)
    def logs(*args: Any) -> Tensor:
        seen.append(args[-1] * 3)
        return fn(*args)

    return logs


class Object:
    chosen, read = "end", Descriptor()

    def one(self, x: Tensor) -> Tensor:
        return self.two(x)

    def two(self, x: Tensor) -> Tensor:
        return self.three(x)

    def three(self, x: Tensor) -> Tensor:
        return self.four(x)

    def four(self, x: Tensor) -> Tensor:
        return self.five(x)

    def five(self, x: Tensor) -> Tensor:
        return self.end(x)

    def end(self, x: Tensor) -> Tensor:
        return notes(x)

    @logged
    def wrapped(self, x: Tensor) -> Tensor:
        return x * 5

    def chooses(self, x: Tensor) -> Tensor:
        return getattr(self, self.chosen)(x)

    def __add__(self, x: Tensor) -> Tensor:
        return notes(x)

    def __lt__(self, other: object) -> bool:
        return bool((notes(ONES) > 0).all())

    __contains__ = __eq__ = __lt__
    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        return self < HELD

    def __index__(self) -> int:
        return len((notes(ONES),))

    def __format__(self, form: str) -> str:
        return f"{len((notes(ONES),))}{form}"


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        notes(ONES)
        raise ValueError(message)


class Case(unittest.TestCase):
    def runTest(self) -> None:
        """Nothing."""


HELD, PARSER, CASE = Object(), Parser(), Case()
Case.foreign = staticmethod(notes)  # type: ignore[attr-defined]


def by_constant(x: Tensor) -> Tensor:
    return getattr(HELD, "end")(x)  # noqa: B009 - what is tested


def by_loop(x: Tensor) -> Tensor:
    for name in ("end", "one"):
        x = getattr(HELD, name)(x)
    return x


def by_text(x: Tensor) -> Tensor:
    return getattr(HELD, "{}d".format("en"))(x)


def by_decorator(x: Tensor) -> Tensor:
    return getattr(HELD, "{}ped".format("wrap"))(x)


def by_globals(x: Tensor) -> Tensor:
    return globals()["notes"](x)


def by_caller(x: Tensor) -> Tensor:
    return operator.methodcaller("end", x)(HELD)


def by_order(x: Tensor) -> Tensor:
    held = HELD
    return x * (held < str)


def by_case(x: Tensor) -> Any:
    return CASE.foreign(x)  # type: ignore[attr-defined]


def of_library(x: Tensor) -> Tensor:
    try:
        PARSER.parse_args(["--unknown"])
    except ValueError:
        return x * 2
    return x


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "deep": HELD.one, "chosen": HELD.chooses, "constant": by_constant, "loop": by_loop,
    "text": by_text, "globals": by_globals, "caller": by_caller, "foreign": by_case,
    "wrapped": by_decorator, "add": lambda x: HELD + x,
    "in": lambda x: x * (x in HELD), "equal": lambda x: x * (x.dtype == HELD), "less": by_order,
    "bool": lambda x: x * 2 if HELD else x, "descriptor": lambda x: x * HELD.read,
    "index": lambda x: x * [1, 2, 3][HELD], "format": lambda x: x * int(f"{HELD:0}"),
    "sorted": lambda x: x * len(sorted([HELD, HELD])),
}  # fmt: skip


def left() -> tuple[int, list[Any], int, Any]:
    return len(FILLED), [*map(torch.clone, FILLED)], COUNTS["calls"], DRAWS.getstate()


@pytest.fixture(autouse=True)
def _emptied() -> None:
    empty()


def empty() -> None:
    FILLED.clear()
    COUNTS["calls"] = 0
    DRAWS.seed(0)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("backend", ["eager", "graphs"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_call_leaves_what_eager_does(name: str, backend: str) -> None:
    program, inputs = PROGRAMS[name], [torch.randn(2) for _ in range(3)]
    eager = [program(x) for x in inputs]
    expected = left()
    empty()
    graphs: Any = foretrace.aot_autograd(fw_compiler=lambda module, _: module)
    compiled = foretrace.compile(
        program, backend=graphs if backend == "graphs" else "eager", fullgraph=True
    )
    assert all(torch.equal(compiled(x), want) for x, want in zip(inputs, eager, strict=True))
    found = left()
    assert found[::2] == expected[::2]
    assert found[3] == expected[3]
    assert all(map(torch.equal, found[1], expected[1]))
    assert type(FILLED[0]) is Tensor


@pytest.mark.parametrize("name", [*PROGRAMS, "library"])
def test_a_refused_capture_leaves_nothing(name: str) -> None:
    program = (PROGRAMS | {"library": of_library})[name]

    def refused(x: Tensor) -> Any:
        program(x)
        return x.to(torch.complex64).sum().item()

    with pytest.raises(foretrace.Refusal, match=r"asks for a number|the program"):
        foretrace.capture(refused, (torch.randn(2),))
    assert not FILLED
    assert COUNTS == {"calls": 0}


class Random:
    def __neg__(self) -> float:
        return DRAWS.random()


RANDOM = Random()


def test_a_generator_that_it_draws_from() -> None:
    with pytest.raises(foretrace.Refusal, match=r"random|draws"):
        foretrace.capture(lambda x: x * -RANDOM, (torch.randn(2),))
    assert DRAWS.getstate() == random.Random(0).getstate()


class Binds:
    def __pos__(self) -> Any:
        return getattr(self, "{}ken".format("ta"))

    def taken(self, x: Tensor) -> Tensor:
        FILLED.append(x)
        return x * len(FILLED)


def test_what_the_run_has_bound_by_then_is_the_runs() -> None:
    def program(x: Tensor) -> Tensor:
        global FILLED  # noqa: PLW0603 - what is tested
        FILLED = [x * 3]
        return (+Binds())(x)

    x = torch.randn(2)
    before = FILLED
    expected = program(x)
    globals()["FILLED"] = before
    compiled = foretrace.compile(program, fullgraph=True)
    for _ in range(2):
        assert torch.equal(compiled(x), expected)
        assert [*map(torch.equal, FILLED, [x * 3, x])] == [True, True]
        assert FILLED is not before
    assert not before


class Row:
    def __init__(self, number: int) -> None:
        self.numbers = {"number": number}
        self.parts = [number]


MANY = [[Row(number) for number in range(100)] for _ in range(70)]
FAR: dict[str, Any] = {"a": {"b": {"c": {"d": {"log": []}}}}}


def fills_far_away(x: Tensor) -> Tensor:
    FAR["a"]["b"]["c"]["d"]["log"].append(x * 2)
    return x * len(MANY)


def test_what_is_behind_many_objects_is_put_back() -> None:
    """21,000 objects are nearer."""
    x, log = torch.randn(2), FAR["a"]["b"]["c"]["d"]["log"]
    compiled = foretrace.compile(fills_far_away, fullgraph=True)
    for count in (1, 2):
        assert torch.equal(compiled(x), x * 70)
        assert [type(each) for each in log] == [Tensor] * count
    assert all(map(torch.equal, log, [x * 2] * 2))
