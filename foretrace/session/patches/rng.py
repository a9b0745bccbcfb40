"""Refuse random numbers that no op draws, and generators that the program creates."""

import random
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from operator import eq
from typing import Any, Final, NoReturn
from weakref import ref

import torch

from foretrace.arrays import numpy
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.pydata.plain_data import other_state, same_state
from foretrace.ir.source.state_change_lines import Lines, attribute
from foretrace.tracer.concrete.rng_draws import draws
from foretrace.tracer.recorder.recorder import Recorder

GENERATOR: Final = torch.Generator
DEFAULT: Final = torch.default_generator


def random_stand_ins(recorder: Recorder) -> dict[str, Callable[..., Any]]:
    """Stand-ins for what seeds torch's default generator, or makes another."""
    thread, default = threading.get_ident(), _Default(recorder)
    stand_ins: dict[str, Any] = dict.fromkeys(("manual_seed", "seed"), _no_seed)
    stand_ins["Generator"] = _generators(thread)
    stand_ins |= {"set_rng_state": default.put, "default generator": default}
    return stand_ins


def _no_seed(*args: object, **kwargs: object) -> NoReturn:
    raise Refusal(
        "the program sets the state of the random number generator",
        kind="side effect",
        do="seed before the captured program is called",
    )


class Seeded:
    """In the place of a generator: it may be put back to the state that it has, and nothing else.

    `generator`: what is asked for all else.
    """

    def __init__(self, recorder: Recorder, generator: Any) -> None:
        self.recorder, self.taken, self.generator = ref(recorder), -1, generator

    def __getattr__(self, name: str) -> Any:
        if self.stands():
            if name in ("manual_seed", "seed"):
                return _no_seed
            if name in ("get_state", "set_state"):
                return self.get if name == "get_state" else self.put
        return getattr(self.generator, name)

    def stands(self) -> bool:
        """Whether the run goes on that it stands for."""
        return True

    def get(self) -> torch.Tensor:
        """The state, which may be put back before the next draw."""
        self.taken = len(self._log())
        state: torch.Tensor = self.generator.get_state()
        return state

    def put(self, state: torch.Tensor) -> None:
        """Put back a state from which nothing was drawn, as Dynamo does around its own work."""
        drawn = self.taken < 0 or any(map(draws, self._log()[self.taken :]))
        now = self.generator.get_state()
        if drawn or not (state is now or torch.equal(state, now)):
            _no_seed()

    def _log(self) -> list[Op]:
        recorder = self.recorder()
        return [] if recorder is None else recorder.scope.log


class _Default(Seeded):
    """Replaces the default generator, which torch's own functions seed under any name.

    `from torch import manual_seed` in a user's file has the original function, which comes here.
    A module that is imported inside may keep it: it answers as the generator afterwards.
    """

    def __init__(self, recorder: Recorder) -> None:
        super().__init__(recorder, DEFAULT)
        self.thread = threading.get_ident()

    def stands(self) -> bool:
        """Also whether this is the run's own thread."""
        here = vars(torch.random)["default_generator"] is self
        return here and threading.get_ident() == self.thread


class _Generators(type):
    """Metaclass of the stand-in for `torch.Generator`, whose instances are real generators.

    `thread` may create none while it stands there; all others may.
    """

    thread: int

    def __instancecheck__(cls, item: object) -> bool:
        return isinstance(item, GENERATOR)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        stands = vars(torch)["Generator"] is cls
        if not stands or threading.get_ident() != cls.thread:
            return GENERATOR(*args, **kwargs)
        raise Refusal(
            "the program makes a random number generator, and a graph would draw on from the same",
            kind="side effect",
            do="make it before the captured program is called, and pass it or keep it in a module",
        )


@cache
def _generators(thread: int) -> type:
    """The stand-in that lets a thread create none; to create a class takes as long as ten ops."""
    return _Generators("Generator", (), {"thread": thread})


@dataclass(frozen=True, slots=True)
class Source:
    """A generator that every thread shares."""

    name: str
    get: Callable[[], Any]
    put: Callable[[Any], None]
    reached: Callable[[Any], bool]
    """whether an object that the program names draws from it, or seeds it"""
    same: Callable[[Any, Any], bool]
    """whether two states of it are equal"""
    other: Callable[[Any], Any] = lambda state: state
    """the state in which a run finds it, by the one before"""


@contextmanager
def undrawn(lines: Callable[[], Lines], *, may_seed: bool) -> Iterator[None]:
    """The shared generators are as before, whatever the program does.

    What another thread draws from torch's meanwhile is its own affair: what this thread draws or
    seeds there is an op, or refused at once, but for what the program does to the generator itself.

    Args:
        lines: finds the lines.
        may_seed: whether its code may seed one. Such a run begins with another state: it may seed
            a generator with the state that it has already.

    Raises:
        Refusal: the program seeded or drew in a way that no graph can repeat.
    """
    before = [(source, source.get()) for source in _sources(numpy())]
    during = [state for _, state in before]
    if may_seed:
        during = [source.other(state) for source, state in before]
        for (source, state), other in zip(before, during, strict=True):
            if other is not state:
                source.put(other)
    try:
        yield
    except BaseException:
        _drawn(before, during, lines)
        raise
    refusal = _drawn(before, during, lines)
    if refusal is not None:
        raise refusal


def check_states(changed: Iterable[tuple[Any, str]], lines: Callable[[], Lines]) -> None:
    """Refuse a program that drew from a generator of its own, or wrote to an array.

    Args:
        changed: those that it can reach and that are in another state after the run, each with
            the name of an attribute that holds it.
        lines: finds the lines.

    Raises:
        Refusal: there is one.
    """
    for item, name in changed:
        kind = type(item)
        drawn = kind.__module__.startswith(("random", "numpy.random"))
        what = "seeds" if kind is GENERATOR else "draws from, or seeds," if drawn else "changes"
        raise Refusal(
            f"the program {what} a {kind.__module__}.{kind.__qualname__},"
            " which a graph would leave as it is",
            kind="side effect",
            at=lines().reaching(partial(_leads, item)) or (lines().calling(name) if name else None),
            do="do it before the captured program is called, and pass what comes of it",
        )


def _leads(item: Any, each: Any) -> bool:
    return each is item or attribute(each, "__self__") is item


def _drawn(
    before: list[tuple[Source, Any]], during: list[Any], lines: Callable[[], Lines]
) -> Refusal | None:
    """Put back what was drawn; the refusal of it."""
    refusal = None
    for (source, state), other in zip(before, during, strict=True):
        if source.same(source.get(), other):
            if other is not state:
                source.put(state)
            continue
        at, alone = lines().reaching(source.reached), threading.active_count() == 1
        if at is None and not alone and source.name == "torch":
            continue
        source.put(state)
        who = "the program" if at is not None else "the program, or another thread,"
        refusal = Refusal(
            f"{who} seeds {source.name}'s random number generator, or draws outside of torch's ops",
            kind="side effect",
            at=at,
            do="seed and draw before the captured program is called, and pass the number",
        )
    return refusal


@cache
def _sources(loaded: Any) -> tuple[Source, ...]:
    """The generators of a process; `loaded` is numpy, or None where it is not there."""
    # `torch.set_rng_state` is another in a capture; states of Python's are tuples of numbers
    get, put = torch.random.get_rng_state, torch.random.set_rng_state
    found = (
        Source("torch", get, put, _is_default, torch.equal),
        Source("Python", random.getstate, random.setstate, _of_python, eq, other_state),
    )
    if loaded is None:
        return found
    get, put = loaded.random.get_state, loaded.random.set_state
    return *found, Source("numpy", get, put, _of_numpy, same_state, other_state)


def _is_default(item: Any) -> bool:
    return item is DEFAULT


def _of_python(item: Any) -> bool:
    return isinstance(attribute(item, "__self__"), random.Random)


def _of_numpy(item: Any) -> bool:
    return type(attribute(item, "__self__")).__module__.startswith("numpy.random")
