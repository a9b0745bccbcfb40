"""A file's Python state made anew: containers, what stands for objects, the guards on both."""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foretrace.errors import Frame
from foretrace.ir.program.call_requirements import AttributeNames, ContainerLength, ReadLocation
from foretrace.ir.program.effects import ChangePlace, LeaveState, ordered
from foretrace.ir.program.recording import Recording
from foretrace.ir.pydata.containers import LEAF, Structure
from foretrace.ir.pydata.location import (
    CONTENTS,
    WAYS,
    Contents,
    Entry,
    Filling,
    Location,
    OnArguments,
)
from foretrace.ir.pydata.members import MISSING
from foretrace.ir.pydata.state import OPEN, Change, ItemBefore, State, StateRead
from foretrace.serialization.schema.effect_schema import IN_STATE
from foretrace.serialization.state.containers import KINDS
from foretrace.serialization.state.encode_state import (
    BUILT,
    CONTENT,
    FILLING,
    HOLDER,
    ITEM,
    ON_THE_CALL,
)
from foretrace.serialization.state.state_objects import (
    LoadedObject,
    LoadedOptimizer,
    Named,
    Places,
    Trained,
)

OF_READ = frozenset({None, int, float})
"""Types of numbers that are read"""


class Wrong(ValueError):
    """What a file says of Python state that is malformed."""


def need(holds: object, what: str) -> None:
    """Give the file up where something does not hold.

    Raises:
        Wrong: it does not.
    """
    if not holds:
        raise Wrong(what)


@dataclass(slots=True)
class Restored:
    """The Python state of a loaded program."""

    names: Named
    places: Places

    @property
    def tensors(self) -> set[int]:
        """Ids of the tensors in it."""
        held = self.places.holders.values()
        inside = (x for each in held for x in (each.values() if isinstance(each, dict) else each))
        return {id(each) for each in inside if isinstance(each, torch.Tensor)}


class StateDecoder:
    """Makes it of what a file tells, and lets its programs read and leave it.

    Args:
        told: what they share.
        names: of the parameters, by id.
    """

    def __init__(self, told: dict[str, Any], names: dict[int, str]) -> None:
        self.told, self.tensor_names = told, names
        self.recorded: Recording
        self.places, self.names = Places(), Named()
        self.holders: list[Any] = [self.names]
        self.holders += [_empty(kind, longest) for kind, longest, _ in told["holders"][1:]]
        self.places.holders = {id(each): each for each in self.holders[1:]}
        for holder, (_, _, items) in zip(self.holders, told["holders"], strict=True):
            self._fill(holder, items)
        self._objects()

    @property
    def all(self) -> Restored:
        """All of it."""
        return Restored(self.names, self.places)

    def let(self, recorded: Recording, told: dict[str, Any]) -> None:
        """Let a program read and leave it.

        Raises:
            Wrong: the file speaks of what is not there.
        """
        self.recorded = recorded
        requires, inputs = recorded.requires, recorded.inputs
        for index, gradient in told["gradients"]:
            tensor = inputs[index].live()
            need(isinstance(tensor, torch.Tensor), "a gradient of nothing")
            tensor.grad = gradient
        for item in inputs:
            if item.gradient_of is not None and item.gradient_of.argument is None:
                item.tensor = item.live()
        for index, read in told["reads"]:
            inputs[index].read = self._reading(read)
        need(all(type(index) is int and inputs[index] for index in told["hooked"]), "a hook")
        requires.inputs.hooked = dict.fromkeys(
            told["hooked"], ((), ())
        )  # the graph has what others did
        requires.python.forms = [self._reading(each) for each in told["forms"]]
        requires.python.tied = [(self._reading(each), index) for each, index in told["tied"]]
        states = (self._state(n, each) for n, each in enumerate(told[IN_STATE[LeaveState]]))
        changes = map(self._change, told[IN_STATE[ChangePlace]])
        left = (*map(LeaveState, states), *map(ChangePlace, changes))
        recorded.effects = ordered((*recorded.effects, *left))
        self._stand_there()
        requires.python.held += [self._held(*each) for each in told["held"]]
        need(all(0 <= index < len(inputs) for _, index in requires.python.tied), "tied")

    # ---- containers --------------------------------------------------------------------------

    def _fill(self, holder: Any, items: Sequence[Any]) -> None:
        if isinstance(holder, dict):
            holder.update([(key, self._value(each)) for key, each in items])
        else:
            add = holder.add if isinstance(holder, set) else holder.append
            for each in items:
                add(self._value(each))

    def _value(self, told: Sequence[Any]) -> Any:
        match told:
            case (kind, item) if kind == ITEM:
                return item
            case (kind, int(number)) if kind == HOLDER:
                return self.holders[number]
            case (kind, Structure() as form, tuple(leaves)) if kind == BUILT:
                return form.build(iter(leaves))
        raise Wrong(f"{told!r:.60} is no item")

    def _objects(self) -> None:
        """What stands for objects and optimizers."""
        for name, kind, number in self.told["objects"]:
            need(type(name) is type(kind) is str and type(self.holders[number]) is dict, "objects")
            self.names[name] = LoadedObject(kind, self.holders[number], name, self.places)
        for name, kind, groups, state in self.told["optimizers"]:
            lists, kept = self.holders[groups], self.holders[state]
            need(type(name) is type(kind) is str and type(lists) is list, "optimizers")
            need(type(kept) is defaultdict, "the state of an optimizer")
            made = LoadedOptimizer(kind, lists, kept, self.tensor_names, self.places)
            self.names[name] = made

    def _stand_there(self) -> None:
        """A call finds them where they are."""
        known = self.recorded.requires.python.held
        for name, item in self.names.items():
            if isinstance(item, LoadedObject):
                names = frozenset(vars(item))
                known.append(AttributeNames(name, vars(item), type(item), names))
            elif not isinstance(item, LoadedOptimizer):
                continue
            known.append(ReadLocation(name, "item", self.names, name, item))
            if isinstance(item, LoadedOptimizer):
                self._same_parameters(name, item)

    def _same_parameters(self, name: str, optimizer: LoadedOptimizer) -> None:
        """Its parameters are the program's; a guard, as somebody may give others."""
        owned = {
            id(item.live()): index
            for index, item in enumerate(self.recorded.inputs)
            if item.owner is not None
        }
        every = [each for group in optimizer.param_groups for each in group["params"]]
        trained = Trained(enumerate(every))
        for number, each in trained.items():
            if id(each) in owned:
                place = Entry(f"parameter {number} of {name}", trained, number, each)
                read = StateRead(place, LEAF, (a_tensor(),), 0)
                self.recorded.requires.python.tied.append((read, owned[id(each)]))

    # ---- places ------------------------------------------------------------------------------

    def _place(self, told: Sequence[Any]) -> Location:
        kind, name, number, key = told
        need(type(name) is str, "a place")
        on_call = next((each for each, word in ON_THE_CALL.items() if word == kind), None)
        if on_call is OnArguments:
            return OnArguments(name, {}, None)
        if on_call is not None:
            need(0 <= number < len(self.recorded.inputs), "a place of an input")
            made: Any = on_call
            return made(name, {}, MISSING, number) if kind == "input" else made(name, number)
        holder = self.holders[number]
        if kind == CONTENT:
            self.places.open.add((id(holder), CONTENTS))
            return Contents.of(name, holder)
        if kind == FILLING:
            self.places.open.add((id(holder), CONTENTS))
            ways = WAYS.get(type(holder), {})
            need(type(key) is tuple and all(type(w) is str and w in ways for w in key), "a filling")
            return Filling(name, holder, key)
        need(isinstance(holder, dict), "a place of a dict")
        self.places.open.add((id(holder), key))
        return Entry(name, holder, key, holder.get(key, MISSING))

    def _reading(self, told: Sequence[Any]) -> StateRead:
        place, form, leaves, number, kind = told
        need(type(form) is Structure and kind in OF_READ and type(number) is int, "a reading")
        found = tuple(map(_leaf, leaves))
        need(-1 <= number < len(found), "a reading")
        return StateRead(self._place(place), form, found, number, kind)

    def _state(self, before: int, told: Sequence[Any]) -> State:
        place, form, first, count, at, kept, like = told
        outputs = len(self.recorded.outputs)
        need(type(form) is Structure and 0 <= first <= first + count <= outputs, "a state")
        need(like is None or 0 <= like < before, f"a state like one of {before}")
        need(at is None or isinstance(at, Frame), "the line of a state")
        items = {index: ItemBefore(*path) for index, path in kept}
        need(all(type(index) is int for index in items), "a state")
        where = self._place(place)
        if isinstance(where, Filling):
            need(form.spec.num_children == len(where.ways), "a filling")
        made = State(where, form, first, count, at, items, like)
        if items:  # they are looked up when all of a call is done
            now = made.place.now
            for each in items.values():
                each.of(now)
        return made

    def _change(self, told: Sequence[Any]) -> Change:
        place, value, at, path = told
        need(type(path) is str and (at is None or isinstance(at, Frame)), "a change")
        return Change(self._place(place), self._value(value), rebound=True, at=at, path=path)

    def _held(
        self, what: str, name: str, number: int, key: Any, value: Any, at: Any, itself: bool
    ) -> ReadLocation | ContainerLength:
        holder = self.holders[number]
        need(type(name) is str and (at is None or isinstance(at, Frame)), "a guard")
        if what == "length":
            need(type(value) is int, "a length")
            return ContainerLength(name, holder, value)
        need(isinstance(holder, (dict, list)), "a guard on an item")
        return ReadLocation(
            name, "item", holder, key, self._value(value), itself=itself is True, at=at
        )


def a_tensor() -> torch.Tensor:
    """In the place of one that a container held: another is read at each call."""
    return torch.empty(0)


def _empty(kind: str, longest: Any) -> Any:
    if kind == "deque":
        need(longest is None or type(longest) is int, "a deque")
        return deque(maxlen=longest)
    return defaultdict(dict) if kind == "defaultdict" else KINDS[kind]()


def _leaf(told: Sequence[Any]) -> Any:
    match told:
        case ("open",):
            return OPEN
        case ("tensor",):
            return a_tensor()
        case ("is", leaf):
            return leaf
    raise Wrong(f"{told!r:.60} is no leaf")
