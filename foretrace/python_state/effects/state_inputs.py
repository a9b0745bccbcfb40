"""What a run finds where calls leave it: inputs that are read at each call, and no guards."""

from collections import deque
from collections.abc import (
    Callable,
    Container,
    Iterable,
    Iterator,
    Sequence,
    Set as AbstractSet,
)
from dataclasses import replace
from typing import Any, Protocol

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.call_requirements import FIRST_CALL, CallRequirements
from foretrace.ir.program.effects import LeaveState, of_kind
from foretrace.ir.program.interface import Input, Role
from foretrace.ir.pydata.containers import named_leaves
from foretrace.ir.pydata.location import (
    Contents,
    Entry,
    Filling,
    FormerContents,
    Location,
    OnArgument,
    OnInput,
    OnTensor,
)
from foretrace.ir.pydata.members import MISSING, attributes_of, own_kind
from foretrace.ir.pydata.object_containers import object_attributes
from foretrace.ir.pydata.read_facts import (
    ContainerItems,
    ContainerMembers,
    ReadFact,
    ReadLocation,
    ShownContent,
)
from foretrace.ir.pydata.state import Change, StateRead
from foretrace.ir.source.state_change_lines import Lines
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.python_state.access.monitor import AccessMonitor
from foretrace.python_state.effects.module_state import located
from foretrace.python_state.snapshot.changes import name_of_leaf
from foretrace.tracer.recorder.run_inputs import RunInputs

CONTAINERS = (dict, list, tuple)
FILLED = (dict, list, set, deque)
ON_THE_CALL = (OnArgument, OnTensor, OnInput, Filling, FormerContents)
"""Places that each call has of its own, and those of which it asks nothing"""


class Run(Protocol):
    """The inputs of a run, as far as they are known."""

    inputs: RunInputs
    outside: AccessMonitor | None

    def lift(self, tensor: torch.Tensor) -> Abstract:
        """The placeholder of a tensor from outside."""


def add_state_inputs(
    kept: Sequence[Change], moved: Iterable[Change], run: Run, requires: CallRequirements
) -> None:
    """Let the tensors that are in such places be inputs that are read there at each call.

    Args:
        kept: what the run leaves there.
        moved: what others bind there for each call.
        run: its inputs.
        requires: takes further places of one tensor, and which inputs are of the second kind.
    """
    _read_left(kept, run, requires)
    left = {each.place.identity for each in kept}
    others = (each for each in moved if each.place.identity not in left)
    _read_moved(others, run, requires)


def _read_left(kept: Iterable[Change], run: Run, requires: CallRequirements) -> None:
    for change in requires.notes.changed:
        if change.itself and own_kind(change.after) in FILLED:
            content = Contents.of(change.name, change.after)
            requires.python.forms.append(_read(content, -1))
    counted = {id(i.read.place): i.read.leaves for i in run.inputs if i.read is not None}
    for change in kept:
        place = change.place
        if isinstance(place, OnInput) and place.before is MISSING:
            requires.inputs.set_on.append((place.index, place.name, MISSING))
        if isinstance(place, ON_THE_CALL):
            continue  # what was there before is an argument, a guard on inputs, or is not read
        every = counted.get(id(place))
        if isinstance(place, Contents):
            requires.python.forms.append(_read(place, -1, every))
        for read, tensor in _tensors_in(place, every):
            index = _lifted(run, tensor)
            if not _let_read(run, index, read, change):
                requires.python.tied.append((read, index))


def _read_moved(moved: Iterable[Change], run: Run, requires: CallRequirements) -> None:
    for change in moved:
        for read, tensor in _tensors_in(change.place):
            index = _lifted(run, tensor)
            if _let_read(run, index, read, change):
                requires.python.rebound.append(index)
            elif run.inputs[index].argument is not None:
                requires.python.tied.append((read, index))


def _lifted(run: Run, tensor: torch.Tensor) -> int:
    """Which input a tensor is."""
    placeholder = run.lift(tensor)
    return run.inputs.place_of(placeholder)


def _let_read(run: Run, index: int, read: StateRead, change: Change) -> bool:
    """Read an input, and its `.grad`, in a place at each call; False where it has another way."""
    item = run.inputs[index]
    if item.role.kind != "captured" or item.read is not None or item.gradient_of is not None:
        return False
    now = replace(item, role=role_of(change, ""), tensor=None, read=read)
    run.inputs[index] = now
    for place, each in enumerate(run.inputs):
        if each.gradient_of is item:
            run.inputs[place] = replace(each, gradient_of=now, tensor=None)
    return True


def _read(place: Location, number: int, every: tuple[Any, ...] | None = None) -> StateRead:
    """A leaf of what is in a place; `every`: all of them, with open numbers."""
    leaves, structure = named_leaves(place.before)
    return StateRead(place, structure, every or tuple([leaf for _, leaf in leaves]), number)


def _tensors_in(
    place: Location, every: tuple[Any, ...] | None = None
) -> Iterator[tuple[StateRead, torch.Tensor]]:
    for number, (_, leaf) in enumerate(named_leaves(place.before)[0]):
        if isinstance(leaf, torch.Tensor):
            yield _read(place, number, every), leaf


def seen_rebound(reads: Iterable[ReadLocation]) -> Iterator[Change]:
    """The places where a capture has found tensors, and where there are others now."""
    for each in reads:
        if isinstance(each.before, (torch.Tensor, *CONTAINERS)) and not each.itself:
            yield from _rebound(each)


def _rebound(read: ReadLocation) -> Iterator[Change]:
    place, name = read.location, read.name
    now = MISSING if place is None else place.now
    if isinstance(read.holder, (list, deque)) and read.key in range(len(read.holder)):
        name = read.name.rpartition("[")[0]
        place = Contents.of(name, read.holder)
        now = place.before[read.key]
    if place is not None and _others(read.before, now):
        yield Change(place, None, rebound=True, path=name)


def may_be_bound(requires: CallRequirements, names: Container[object]) -> Iterator[Change]:
    """The places of tensors whose names the code stores to, if on another way.

    Not those of modules, nor of others that are trained: what trains them holds the very tensor.
    """
    tables = {id(t) for each in requires.python.met for t in torch_api.tensor_tables(each.module)}
    for each in requires.python.locations:
        if isinstance(tensor := each.before, torch.Tensor):
            place, name = each.location, each.variable
            with torch_api.no_torch_function():  # a class of the user's may answer
                trained = tensor.requires_grad and tensor.is_leaf
            known = type(name) is str and name in names and id(each.holder) not in tables
            if known and place is not None and not trained:
                yield Change(place, None, rebound=True, path=each.name)


def _others(before: Any, now: Any) -> bool:
    """Whether tensors are others, alone or in a container that is nested as it was.

    A container that holds itself has no leaves to be read at each call.
    """
    if before is now:
        return False
    try:
        (then, form), (found, other) = map(named_leaves, (before, now))
    except Refusal:
        return False
    pairs = [(a, b) for (_, a), (_, b) in zip(then, found, strict=False)]
    both = [type(a) is type(b) for a, b in pairs if isinstance(a, torch.Tensor)]
    return form == other and bool(both) and all(both)


def attributes_asked(
    inputs: RunInputs, names: AbstractSet[str]
) -> Iterator[tuple[int, str, object]]:
    """Attributes that the code names of tensors which are read at each call: each has its own."""
    asked = sorted(name for name in names if not hasattr(torch.Tensor, name))
    for index, (item, tensor) in enumerate(inputs.with_real()):
        if item.read is not None and item.number is None and isinstance(tensor, torch.Tensor):
            space = vars(tensor)
            yield from ((index, name, space.get(name, MISSING)) for name in asked)


def drop_unread(
    facts: Iterable[ReadFact], inputs: RunInputs, requires: CallRequirements
) -> Iterator[ReadFact]:
    """What of the Python state has to be as it was: not the state that is read at each call.

    `requires` has the attributes of inputs, left that are not read so. A tensor
    that is read in one place, and that another one has to hold still, is to be that very one; so is
    an argument.
    """
    reads = [item.read for item in inputs if item.read is not None]
    reads += [read for read, _ in requires.python.tied]
    if not (reads or requires.python.forms):
        yield from facts
        return
    places = {read.place.identity for read in reads}
    requires.inputs.set_on = [
        each
        for each in requires.inputs.set_on
        if (id(vars(inputs.real[each[0]])), each[1]) not in places
    ]
    facts = [*facts]
    inside = {id(each) for read in reads for each in _containers(read.place.before)}
    inside -= _by_another_way(facts, places, inside)
    contents = [read for read in reads if isinstance(read.place, Contents)]
    inside |= {id(read.place.holder) for read in (*requires.python.forms, *contents)}
    several = {index for _, index in requires.python.tied}
    found = enumerate(inputs.with_real())
    by_id = {id(r): i for i, (item, r) in found if item.read or i in several}
    for each in facts:
        if each.itself or (each.identity not in places and id(each.holder) not in inside):
            tensors = [x for x in each.tensors if id(x) in by_id]
            requires.python.tied += [(_elsewhere(each, x), by_id[id(x)]) for x in tensors]
            if not tensors:
                yield each


def _elsewhere(fact: ReadFact, tensor: torch.Tensor) -> StateRead:
    """The tensor in one more place, which is not left.

    Raises:
        Refusal: it is one of a set.
    """
    if isinstance(fact, (ContainerItems, ContainerMembers, ShownContent)):
        raise Refusal(
            f"the program leaves another tensor in the place of one that {fact.name} holds",
            kind="side effect",
            do="keep them in a list, or in a dict by names or numbers",
        )
    location = fact.location if isinstance(fact, ReadLocation) else None
    if location is not None:
        return _read(location.named(fact.name) if isinstance(location, Entry) else location, 0)
    content = Contents.of(fact.name, fact.holder)
    return next(read for read, each in _tensors_in(content) if each is tensor)


def open_holders(inputs: Iterable[Input], requires: CallRequirements) -> set[int]:
    """The containers of which a part is read at each call, by id."""
    reads = [item.read for item in inputs if item.read is not None]
    reads += [*requires.python.forms, *(read for read, _ in requires.python.tied)]
    read = {id(r.place.holder) for r in reads if isinstance(r.place, (Entry, Contents))}
    return read.union(map(id, requires.notes.filled))


def check_first_call(requires: CallRequirements, lines: Callable[[], Lines]) -> None:
    """Refuse what is left in a container of which no guard says where it is.

    Raises:
        Refusal: with the line that filled it.
    """
    found = {id(each.before) for each in requires.python.locations if each.itself}
    states = of_kind(requires.notes.effects, LeaveState)
    fillings = (e.state.place for e in states if isinstance(e.state.place, Filling))
    for place in (*(read.place for read in requires.python.forms), *fillings):
        if id(place.holder) not in found:
            change = Change(place, None, rebound=True)
            raise Refusal(
                f"the program changes the content of {place.name}, which lives on after the"
                " call where no guard finds it",
                kind="side effect",
                at=located(change, lines).at,
                do=("return the value instead, or change it outside of the program", FIRST_CALL),
            )


def _by_another_way(
    facts: Iterable[ReadFact], places: Container[object], inside: AbstractSet[int]
) -> set[int]:
    """Which of these containers and objects the program may have come to otherwise, by id."""
    others = (f for f in facts if f.identity not in places and id(f.holder) not in inside)
    there = {id(x): x for each in others for x in each.objects if id(x) in inside}
    return {id(each) for item in there.values() for each in _containers(item)}


def _containers(item: Any) -> Iterator[Any]:
    """Containers in each other, and objects that hold tensors, with the dicts of their names."""
    if (attributes := object_attributes(item)) is not None:
        yield item
        yield from filter(None, [attributes_of(item)])
        yield from _containers([*attributes.values()])
    elif isinstance(item, CONTAINERS):
        yield item
        for each in item.values() if isinstance(item, dict) else item:
            yield from _containers(each)


def role_of(change: Change, path: str) -> Role:
    """What a leaf of a state is; of an optimizer's, `exp_avg of layers.0.weight`."""
    place = change.place
    if isinstance(place, OnTensor):
        return Role("state", f"{place.what} of {place.name.removesuffix(f'.{place.attribute}')}")
    return Role("state", name_of_leaf(change, path))
