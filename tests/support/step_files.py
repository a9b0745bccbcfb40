"""A training step saved and loaded: each batch by the file beside eager, and all state after it."""

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import foretrace
from foretrace.frontends.program import Program
from foretrace.frontends.program.load import Loaded
from foretrace.ir.pydata.location import FormerContents, OnGradient
from tests.support.bits import differences
from tests.support.steps import Build, Loop, built

BEFORE, BATCHES = 2, 4


class Trained:
    """A step that was saved after some batches, and its file.

    Args:
        build: makes the loop.
        path: of the file.
        before: batches that run eagerly first, as optimizers make their state in them.
    """

    def __init__(self, build: Build, path: Path, before: int = BEFORE) -> None:
        self.loop: Loop = built(build)
        for index in range(before):
            self.loop.step(*self.loop.batch(index))
        self.first = self.next = before
        self.given = self.loop.batch(before)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            self.program: Program = foretrace.capture(self.loop.step, self.given)
            self.program.save(path)
            self.loaded: Loaded = foretrace.load(path, classes=[])
        wrong = self.alike()
        assert not wrong, f"it is not loaded as it was saved: {wrong}"

    def alike(self) -> list[str]:
        """What differs between the state that the program has, and that of the file."""
        one, other = (_state(each) for each in (self.program, self.loaded.program))
        wrong = list(differences(one, other, "after it"))
        return [*wrong, *(self._gradients() if self.next > self.first else ())]

    def _gradients(self) -> list[str]:
        """The same of gradients that calls leave, and of those that they clear."""
        states = self.program.recorded.states
        left = {s.place.index for s in states if isinstance(s.place, OnGradient)}
        both = [
            {str(index): _copy(_gradient(each.recorded.inputs[index])) for index in left}
            for each in (self.program, self.loaded.program)
        ]
        return list(differences(*both, "gradients"))

    def batch(self) -> str:
        """One more batch by both; gives why there can be none, empty where there was.

        Raises:
            AssertionError: the file does not as eager does.
        """
        given, theirs = self.given, copy.deepcopy(self.given)
        was = torch.get_rng_state()
        why = self._ready(given)
        if why:
            return why
        try:
            found = self.loaded(*theirs)
        except foretrace.Refusal as refusal:
            self._refused(given, refusal, was)
            return f"refused: {refusal.what}"
        after = torch.get_rng_state()
        torch.set_rng_state(was)
        wanted = self.loop.step(*given)
        wrong = list(differences(
            {"result": wanted, "given": given, "random": torch.get_rng_state()},
            {"result": found, "given": theirs, "random": after}, "after it",
        ))  # fmt: skip
        wrong += self.alike()
        assert not wrong, "\n  ".join([f"batch {self.next} differs from eager:", *wrong[:12]])
        self.next += 1
        self.given = self.loop.batch(self.next)
        return ""

    def _ready(self, given: Any) -> str:
        """Hand on the numbers that were changed between the steps; why that is not enough.

        The live program is held against Python outside, too, which no file is told of.
        """
        try:
            self.program.calls.inputs(given, {})
        except foretrace.Refusal as refusal:
            return f"the step itself refuses: {refusal.what}"
        for name, now in self.loaded.python_state.items():
            if type(now) in (int, float):
                self.loaded.python_state[name] = numbers(self.program)[name]
        return "changed between the steps, where no file is told of it" if self.alike() else ""

    def _refused(self, given: Any, refusal: foretrace.Refusal, random: Tensor) -> None:
        """The live program refuses the call in the same words."""
        torch.set_rng_state(random)
        with pytest.raises(foretrace.Refusal) as own:
            self.program.cut("step")(*given)
        assert own.value.what == refusal.what


def numbers(program: Program) -> dict[str, Any]:
    """The open numbers of Python's that a program goes on from, as they are now."""
    inputs = program.recorded.inputs
    return {
        item.role.name: item.read().item() for item in inputs
        if item.read is not None and item.read.kind is not None
    }  # fmt: skip


def _state(program: Program) -> dict[str, Any]:
    """All that a program reads and leaves, but for its arguments, as it is now."""
    found = dict[str, Any]()
    for number, item in enumerate(program.recorded.inputs):
        if item.argument is None and item.size is None:
            found[f"{number} {item.role}"] = _live(item)
    recorded = program.recorded
    every, former = (*recorded.states, *recorded.changes), set[Any]()
    for each in recorded.states:  # which nobody but a program in this process has
        if isinstance(each.place, FormerContents):
            former |= {each.place.identity, each.place.at.identity}
    for number, each in enumerate(x for x in every if x.place.identity not in former):
        if each.place.holder:
            found[f"left {number}"] = _plain(each.place.now)
    return found


def _gradient(item: Any) -> Any:
    live = item.live()
    return None if live is None else live.grad


def _live(item: Any) -> Any:
    try:
        return _copy(item.live())
    except KeyError as gone:
        return str(gone)


def _copy(item: Any) -> Any:
    return item.detach().clone() if isinstance(item, Tensor) else item


def _plain(item: Any) -> Any:
    """An item of the state, with tensors as they are now; objects by what they are called."""
    if isinstance(item, dict):
        return {str(key): _plain(each) for key, each in item.items()}
    if isinstance(item, (list, tuple)):
        return [_plain(each) for each in item]
    plain = isinstance(item, (Tensor, int, float, str, bool, type(None)))
    return _copy(item) if plain else "an object"
