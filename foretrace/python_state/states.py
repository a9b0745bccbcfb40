"""Tensors that a run leaves in Python state: outputs of the record, which each call puts there.

The place is bound at once to what was there before, so that the program is as it was. A tensor that
an earlier call has left there is an input, read at each call.
"""

from collections.abc import Callable, Iterable, Iterator, Set as AbstractSet
from dataclasses import replace
from types import CellType
from typing import Any, Protocol

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.frames.lines import Lines
from foretrace.ir.members import MISSING
from foretrace.ir.plain_data import plain, same
from foretrace.ir.program import Input, Output, Role
from foretrace.ir.requirements import (
    Change,
    Held,
    HeldLength,
    HeldNames,
    OnArguments,
    OnInput,
    Place,
    Requirements,
    State,
    StateRead,
)
from foretrace.ir.structure import COPY_ONE, SHARED, Structure, shared_in, take_apart
from foretrace.python_state.before import Before
from foretrace.python_state.held import bound_before
from foretrace.python_state.leaks import abstract_in, tensors_in
from foretrace.python_state.module_state import Borrowed, located
from foretrace.python_state.outside import Outside
from foretrace.tensors.abstract import Abstract

CONTAINERS = (dict, list, tuple)
ON_THE_CALL = (OnArguments, OnInput)
"""Places that each call has of its own"""


class Run(Protocol):
    """The inputs of a run, as far as they are known."""

    inputs: list[Input]
    placeholders: list[Any]
    real: list[Any]

    def lift(self, tensor: torch.Tensor) -> Abstract:
        """The placeholder of a tensor from outside."""


def left_in(
    before: Before, loan: Borrowed, outside: Outside | None, run: Run, lines: Callable[[], Lines]
) -> tuple[list[Change], list[Change]]:
    """The places that the run has bound to tensors; each holds again what it held.

    Returns:
        Those that a call can bind anew; and those that hold what no call has, with their lines.
    """
    found, others = dict[tuple[int, Any], Change](), dict[tuple[int, Any], Change]()
    real = {id(each): tensor for each, tensor in zip(run.placeholders, run.real, strict=True)}
    everywhere = (
        outside.changes() if outside is not None else (), loan.bound(), before.bound(),
        _set_on(run.real, run.placeholders),
    )  # fmt: skip
    known = before.met.union(map(id, run.real))
    for change in [change for group in everywhere for change in group]:
        abstract = next(abstract_in([change.after]), None) is not None
        held = abstract or next(tensors_in([change.after]), None) is not None
        if abstract and change.rebound and _as_before(change, real):
            change.undo()  # to what it was
            continue
        left = _can_be_left(change, known, held=held)
        if (abstract and not left) or not (held or left) or _as_before(change, real):
            continue
        kind, one = (found, change) if left else (others, located(change, lines))
        kind.setdefault((id(change.place.holder), change.place.key), one)
        change.undo()
    return [*found.values()], [*others.values()]


def _set_on(real: Iterable[Any], placeholders: Iterable[Any]) -> Iterator[Change]:
    """The attributes that the run has set on its inputs."""
    for index, (tensor, placeholder) in enumerate(zip(real, placeholders, strict=True)):
        if isinstance(placeholder, Abstract) and not isinstance(tensor, torch_api.FakeTensor):
            before, now = vars(tensor), vars(placeholder)
            for name in [name for name in now if now[name] is not before.get(name, MISSING)]:
                place = OnInput(name, now, before.get(name, MISSING), index)
                yield Change(place, now[name], rebound=True)


def arguments_changed(
    given: list[Any], form: Structure, call: Any, real: Any, lines: Callable[[], Lines]
) -> list[Change]:
    """What the run has changed of containers and objects among its arguments; one change at most.

    It is `rebound` where a call can do it again.

    Args:
        given: the leaves of the call, as it began.
        form: how they were nested.
        call: the arguments, as the run has left them.
        real: those of the caller.
        lines: of the program.

    Raises:
        Refusal: one is at two places, and the run has had a copy for each.
    """
    now, now_form = take_apart(call)
    pairs = zip((leaf for _, leaf in now), given, strict=False)
    if now_form == form and all(new is old for new, old in pairs):
        return []
    names = [name for (name, leaf), old in zip(now, given, strict=False) if leaf is not old]
    names += [name for name, _ in now[len(given) :]]
    name = names[0].rpartition(".")[2] if names else "one of its arguments"
    change = Change(OnArguments(name, {}, None), call, rebound=True)
    if shared_in(real):
        at = located(change, lines).at
        raise Refusal(SHARED, kind="aliased inputs", at=at, do=COPY_ONE)
    kept = _all_given(change, set(map(id, given)))
    return [change if kept else replace(change, after=None, rebound=False)]


def _all_given(change: Change, known: AbstractSet[int]) -> bool:
    """Whether all that is in a place is tensors of the run, plain data, and what is `known`."""
    leaves = [leaf for _, leaf in take_apart(change.after)[0]]
    return all(isinstance(x, Abstract) or id(x) in known or plain(x) for x in leaves)


def _can_be_left(change: Change, known: AbstractSet[int], *, held: bool) -> bool:
    """Whether a place holds tensors (`held`), and plain data beside them, and nothing else.

    `known`: what was there before the run, so that a tensor among it is no other thread's.
    """
    held = held or isinstance(change.place, OnInput)
    return change.rebound and held and _all_given(change, known)


def _as_before(change: Change, real: dict[int, Any]) -> bool:
    """Whether it holds the inputs that it held, as an LSTM its list of weights."""
    (then, structure), (now, other) = map(take_apart, (change.place.before, change.after))
    pairs = zip(then, now, strict=False)
    return structure == other and all(
        old is real.get(id(new), new) or (plain(old) and plain(new) and same(old, new))
        for (_, old), (_, new) in pairs
    )


def read_again(kept: Iterable[Change], run: Run, requires: Requirements) -> None:
    """Let the tensors that are in such places be inputs that are read there at each call."""
    for change in kept:
        place = change.place
        if isinstance(place, OnInput) and place.before is MISSING:
            requires.set_on.append((place.index, place.name, MISSING))
        if isinstance(place, ON_THE_CALL):
            continue  # what was there before is an argument, or a guard on inputs
        leaves, structure = take_apart(change.place.before)
        every = tuple([leaf for _, leaf in leaves])
        for number, tensor in enumerate(every):
            if not isinstance(tensor, torch.Tensor):
                continue
            placeholder = run.lift(tensor)
            index = next(i for i, each in enumerate(run.placeholders) if each is placeholder)
            item, read = run.inputs[index], StateRead(change.place, structure, every, number)
            if item.role.kind == "captured" and item.read is None and item.gradient_of is None:
                role = Role("state", change.name)
                run.inputs[index] = replace(item, role=role, tensor=None, read=read)
            else:
                requires.tied.append((read, index))


def states_of(
    kept: Iterable[Change],
    made: Callable[[Role, Any], Output],
    first: int,
    lines: Callable[[], Lines],
) -> tuple[list[State], list[Output]]:
    """The states, and their outputs, which `made` makes; `first`: the number of the first."""
    states, outputs = list[State](), list[Output]()
    for change in kept:
        leaves, structure = take_apart(change.after)
        begin = first + len(outputs)
        for path, leaf in leaves:
            outputs.append(made(Role("state", ".".join(filter(None, (change.name, path)))), leaf))
        at = located(change, lines).at
        states.append(State(change.place, structure, begin, len(leaves), at))
    return states, outputs


def unread(
    held: Iterable[Held | HeldNames | HeldLength], inputs: Iterable[Input], requires: Requirements
) -> Iterator[Held | HeldNames | HeldLength]:
    """What of the Python state has to be as it was: not the state that is read at each call."""
    reads = [item.read for item in inputs if item.read is not None]
    reads += [read for read, _ in requires.tied]
    if not reads:
        yield from held
        return
    places = {(id(read.place.holder), _key(read.place)) for read in reads}
    inside = {id(each) for read in reads for each in _containers(read.place.before)}
    for each in held:
        place = (id(each.holder), each.key) if isinstance(each, Held) else None
        if place not in places and id(each.holder) not in inside:
            yield each


def _key(place: Place) -> Any:
    return None if isinstance(place.holder, CellType) else place.key


def _containers(item: Any) -> Iterator[Any]:
    if isinstance(item, CONTAINERS):
        yield item
        for each in item.values() if isinstance(item, dict) else item:
            yield from _containers(each)


def bound_to_data(kept: Iterable[Change]) -> Iterator[Held]:
    """That there is plain data, or nothing, where there was and the run has bound a tensor."""
    places = (change for change in kept if not isinstance(change.place, ON_THE_CALL))
    return (bound_before(change) for change in places if _without_tensors(change.place.before))


def _without_tensors(item: Any) -> bool:
    return item is MISSING or plain(item)
