"""Tensors that a run leaves in Python state: outputs of the record, which each call puts there.

The place is bound at once to what was there before, so that the program is as it was. A tensor that
an earlier call has left there is an input, read at each call.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from types import CellType
from typing import Any, Protocol

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.frames.lines import Lines
from foretrace.ir.members import MISSING, own_kind
from foretrace.ir.plain_data import plain, same
from foretrace.ir.program import Input, Output, Role
from foretrace.ir.requirements import (
    FIRST_CALL,
    NUMBERS,
    Change,
    Contents,
    Entry,
    Held,
    HeldLength,
    HeldNames,
    Kept,
    OnArguments,
    OnInput,
    Place,
    Requirements,
    State,
    StateRead,
    content_of,
)
from foretrace.ir.structure import Structure, take_apart
from foretrace.python_state.before import Before
from foretrace.python_state.counts import counted, is_open
from foretrace.python_state.held import bound_before
from foretrace.python_state.kept import ATOMS
from foretrace.python_state.module_state import Borrowed, located
from foretrace.python_state.outside import Outside
from foretrace.tensors.abstract import Abstract

CONTAINERS = (dict, list, tuple)
FILLED = (dict, list, set, deque)
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
    before: Before, loan: Borrowed, outside: Outside | None, run: Run, requires: Requirements
) -> list[Change]:
    """The places that the run has bound to tensors of its own; each holds again what it held.

    `requires` takes the contents that no call can leave so.
    """
    found = dict[tuple[int, Any], Change]()
    real = {id(each): tensor for each, tensor in zip(run.placeholders, run.real, strict=True)}
    everywhere = (
        outside.changes() if outside is not None else (), loan.bound(), before.bound(),
        _set_on(run.real, run.placeholders),
    )  # fmt: skip
    names = outside.names() if outside is not None else {}
    for changes in everywhere:
        every = [before.itself(_told(change, names)) for change in changes]
        filled = {id(each.place.holder) for each in every if _can_be_left(each)}
        for change in every:
            new = change.place.before is MISSING and id(change.place.holder) in filled
            if change.itself:
                requires.changed.append(change)
                change.undo()
            elif (_can_be_left(change) or (new and plain(change.after))) and not _as_before(
                change, real
            ):
                found.setdefault((id(change.place.holder), change.place.key), change)
                change.undo()
            elif isinstance(change.place, Contents):
                requires.changed.append(replace(change, after=None))
    requires.changed = [
        each for each in requires.changed if (id(each.place.holder), each.place.key) not in found
    ]  # fmt: skip
    return [*found.values()]


def _told(change: Change, names: dict[int, str]) -> Change:
    """The change, of the content of a global by its name."""
    place = change.place
    if not isinstance(place, Contents) or id(place.holder) not in names:
        return change
    return replace(change, place=Contents(names[id(place.holder)], place.holder, place.before))


def _set_on(real: Iterable[Any], placeholders: Iterable[Any]) -> Iterator[Change]:
    """The attributes that the run has set on its inputs."""
    for index, (tensor, placeholder) in enumerate(zip(real, placeholders, strict=True)):
        if isinstance(placeholder, Abstract) and not isinstance(tensor, torch_api.FakeTensor):
            before, now = vars(tensor), vars(placeholder)
            for name in [name for name in now if now[name] is not before.get(name, MISSING)]:
                place = OnInput(name, now, before.get(name, MISSING), index)
                yield Change(place, now[name], rebound=True)


def arguments_changed(
    given: list[Any], form: Structure, call: Any, requires: Requirements
) -> list[Change]:
    """What the run has changed of containers and objects among its arguments; one change at most.

    It is `rebound` where a call can do it again.

    Args:
        given: the leaves of the call, as it began.
        form: how they were nested.
        call: the arguments, as the run has left them.
        requires: takes the names of numbers that are others now.
    """
    now, now_form = take_apart(call)
    pairs = zip((leaf for _, leaf in now), given, strict=False)
    if now_form == form and all(new is old for new, old in pairs):
        return []
    if now_form == form:
        leaves = zip(requires.names, now, given, strict=True)
        requires.counted += [name for name, (_, new), old in leaves if counted(old, new)]
    names = [name for (name, leaf), old in zip(now, given, strict=False) if leaf is not old]
    names += [name for name, _ in now[len(given) :]]
    name = names[0].rpartition(".")[2] if names else "one of its arguments"
    change = Change(OnArguments(name, {}, None), call, rebound=True)
    kept = _all_given(change, given)
    return [change if kept else replace(change, after=None, rebound=False)]


def _all_given(change: Change, given: Iterable[Any] = ()) -> bool:
    """Whether all that is in a place is tensors of the run, plain data, and what was `given`."""
    leaves, known = [leaf for _, leaf in take_apart(change.after)[0]], set(map(id, given))
    return all(
        isinstance(x, (Abstract, Kept)) or is_open(x) or id(x) in known or plain(x) for x in leaves
    )


def _can_be_left(change: Change) -> bool:
    """Whether a place holds what the run has made, and plain data beside it, and nothing else."""
    if isinstance(change.place, Contents):
        change, held = replace(change, after=_by_place(change)), True
    else:
        held = isinstance(change.place, OnInput) or _made_in(change.after)
    return change.rebound and held and _all_given(change)


def _made_in(item: Any) -> bool:
    """Whether containers, or the attributes of objects, hold what the run has made."""
    if type(item) in ATOMS:
        return False
    leaves = (leaf for _, leaf in take_apart(item)[0])
    return any(isinstance(leaf, Abstract) or is_open(leaf) for leaf in leaves)


def _by_place(change: Change) -> Any:
    """The content that the run has left; the items that were there before by their places."""
    if not isinstance(change.place, Contents):
        return change.after
    before, after = change.place.before, change.after
    if isinstance(after, set):
        return after
    pairs = isinstance(change.place.holder, dict)
    old = dict[int, Kept]()
    for place, item in enumerate(before):
        for part, each in enumerate(item if pairs else (item,)):
            if type(each) not in NUMBERS:
                old.setdefault(id(each), Kept(place, part) if pairs else Kept(place))
    if pairs:
        return [tuple([old.get(id(each), each) for each in pair]) for pair in after]
    return [old.get(id(item), item) for item in after]


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
    for change in requires.changed:
        if change.itself and own_kind(change.after) in FILLED:
            place = Contents(change.name, change.after, content_of(change.after))
            leaves, form = take_apart(place.before)
            requires.forms.append(StateRead(place, form, tuple([leaf for _, leaf in leaves]), -1))
    counted = {id(i.read.place): i.read.leaves for i in run.inputs if i.read is not None}
    for change in kept:
        if isinstance(change.place, ON_THE_CALL):
            continue  # what was there before is an argument, or a guard on inputs
        leaves, structure = take_apart(change.place.before)
        found = [leaf for _, leaf in leaves]
        every = counted.get(id(change.place), tuple(found))
        if isinstance(change.place, Contents):
            requires.forms.append(StateRead(change.place, structure, every, -1))
        for number, tensor in enumerate(found):
            if not isinstance(tensor, torch.Tensor):
                continue
            placeholder = run.lift(tensor)
            index = next(i for i, each in enumerate(run.placeholders) if each is placeholder)
            item, read = run.inputs[index], StateRead(change.place, structure, every, number)
            if item.read is not None:
                requires.tied.append((read, index))
            elif item.role.kind == "captured" and item.gradient_of is None:
                role = Role("state", change.name)
                run.inputs[index] = replace(item, role=role, tensor=None, read=read)


def states_of(
    left: Iterable[Change],
    made: Callable[[Role, Any], Output],
    first: int,
    lines: Callable[[], Lines],
) -> tuple[list[State], list[Output]]:
    """The states, and their outputs, which `made` makes; `first`: the number of the first."""
    states, outputs, places = list[State](), list[Output](), dict[int, int]()
    for change in left:
        at, like = located(change, lines).at, places.get(id(change.after))
        if like is not None and not isinstance(change.place, Contents):
            states.append(State(change.place, states[like].structure, 0, 0, at, {}, like))
            continue
        leaves, structure = take_apart(_by_place(change))
        begin = first + len(outputs)
        kept = {i: leaf for i, (_, leaf) in enumerate(leaves) if isinstance(leaf, Kept)}
        for path, leaf in leaves:
            if not isinstance(leaf, Kept):
                role = Role("state", ".".join(filter(None, (change.name, path))))
                outputs.append(made(role, leaf))
        if isinstance(change.after, CONTAINERS):
            places[id(change.after)] = len(states)
        states.append(
            State(change.place, structure, begin, len(leaves) - len(kept), at, kept)
        )  # fmt: skip
    return states, outputs


def unread(
    held: Iterable[Held | HeldNames | HeldLength], inputs: Iterable[Input], requires: Requirements
) -> Iterator[Held | HeldNames | HeldLength]:
    """What of the Python state has to be as it was: not the state that is read at each call."""
    reads = [item.read for item in inputs if item.read is not None]
    reads += [read for read, _ in requires.tied]
    places = {(id(read.place.holder), _key(read.place)) for read in reads}
    inside = {id(each) for read in reads for each in _containers(read.place.before)}
    inside |= {id(read.place.holder) for read in requires.forms}
    for each in held:
        place = (id(each.holder), each.key) if isinstance(each, Held) else None
        itself = isinstance(each, Held) and each.itself
        if itself or (place not in places and id(each.holder) not in inside):
            yield each


def open_holders(inputs: Iterable[Input], requires: Requirements) -> set[int]:
    """The containers of which a part is read at each call, by id."""
    reads = [item.read for item in inputs if item.read is not None]
    reads += [*requires.forms, *(read for read, _ in requires.tied)]
    return {id(r.place.holder) for r in reads if isinstance(r.place, (Entry, Contents))}


def check_found(requires: Requirements, lines: Callable[[], Lines]) -> None:
    """Refuse what is left in a container of which no guard says where it is.

    Raises:
        Refusal: with the line that filled it.
    """
    found = {id(held.before) for held in requires.held if isinstance(held, Held) and held.itself}
    for read in requires.forms:
        if id(read.place.holder) not in found:
            change = Change(read.place, None, rebound=True)
            raise Refusal(
                f"the program changes the content of {read.place.name}, which lives on after the"
                " call where no guard finds it", kind="side effect", at=located(change, lines).at,
                do=("return the value instead, or change it outside of the program", FIRST_CALL),
            )  # fmt: skip


def _key(place: Place) -> Any:
    return None if isinstance(place.holder, CellType) else place.key


def _containers(item: Any) -> Iterator[Any]:
    if isinstance(item, CONTAINERS):
        yield item
        for each in item.values() if isinstance(item, dict) else item:
            yield from _containers(each)


def bound_to_data(
    kept: Iterable[Change], inputs: Iterable[Input], lines: Callable[[], Lines]
) -> Iterator[Held]:  # fmt: skip
    """That there is plain data, or nothing, where there was and the run has bound a tensor."""
    read = {id(item.read.place) for item in inputs if item.read is not None}
    places = (
        change for change in kept
        if not isinstance(change.place, (*ON_THE_CALL, Contents)) and id(change.place) not in read
    )  # fmt: skip
    kept = (change for change in places if _without_tensors(change.place.before))
    return (
        replace(bound_before(change), left=True, at=located(change, lines).at) for change in kept
    )  # fmt: skip


def _without_tensors(item: Any) -> bool:
    return item is MISSING or plain(item)
