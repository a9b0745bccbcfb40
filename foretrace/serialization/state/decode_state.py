"""Restores the Python state of a file: containers, stand-ins of objects, the guards on both."""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foretrace.errors import Frame
from foretrace.ir.program.effects import ChangePlace, FindObject, LeaveState, ordered
from foretrace.ir.program.recording import Recording
from foretrace.ir.pydata.containers import LEAF, Structure
from foretrace.ir.pydata.location import (
    CONTENTS,
    WAYS,
    Contents,
    Entry,
    Filling,
    Location,
    OnArgument,
)
from foretrace.ir.pydata.members import MISSING
from foretrace.ir.pydata.paths import at_path
from foretrace.ir.pydata.read_facts import AttributeNames, ContainerLength, ReadLocation
from foretrace.ir.pydata.state import (
    OPEN,
    BuiltObject,
    Change,
    FoundObject,
    ItemBefore,
    State,
    StateRead,
)
from foretrace.serialization.schema.effect_schema import IN_STATE
from foretrace.serialization.state.containers import KINDS
from foretrace.serialization.state.encode_state import (
    BUILT,
    CONTENT,
    FILLING,
    FOUND,
    HOLDER,
    IS,
    ITEM,
    ON_THE_CALL,
    WAS,
)
from foretrace.serialization.state.state_objects import (
    LoadedObject,
    LoadedOptimizer,
    Named,
    Places,
    Trained,
)

OF_READ = frozenset({None, int, float})
"""Types of state that is read: a tensor, or a number"""


class Wrong(ValueError):
    """The Python state of a file is malformed."""


def need(holds: object, what: str) -> None:
    """Reject the file unless `holds`.

    Raises:
        Wrong: it is false.
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
        kept = self.places.holders.values()
        inside = (x for each in kept for x in (each.values() if isinstance(each, dict) else each))
        return {id(each) for each in inside if isinstance(each, torch.Tensor)}


class StateDecoder:
    """Builds the state that the programs of a file share, and connects each program to it.

    Args:
        shared: the containers, objects and optimizers.
        names: of the parameters, by id.
    """

    def __init__(self, shared: dict[str, Any], names: dict[int, str]) -> None:
        self.tensor_names = names
        self.recorded: Recording
        self.places, self.names = Places(), Named()
        self.holders: list[Any] = [self.names]
        self.holders += [_empty(kind, longest) for kind, longest, _ in shared["holders"][1:]]
        self.places.holders = {id(each): each for each in self.holders[1:]}
        for holder, (_, _, items) in zip(self.holders, shared["holders"], strict=True):
            self._fill(holder, items)
        self._objects(shared)

    @property
    def all(self) -> Restored:
        """The state of the file."""
        return Restored(self.names, self.places)

    def connect(self, recorded: Recording, found: dict[str, Any]) -> None:
        """Set the reads, effects and guards of a program on the state, as its file has them.

        Raises:
            Wrong: they refer to what the state lacks.
        """
        self.recorded = recorded
        requires, inputs = recorded.requires, recorded.inputs
        for index, gradient in found["gradients"]:
            tensor = inputs[index].live()
            need(isinstance(tensor, torch.Tensor), "a gradient of nothing")
            tensor.grad = gradient
        for item in inputs:
            if item.gradient_of is not None and item.gradient_of.argument is None:
                item.tensor = item.live()
        for index, read in found["reads"]:
            inputs[index].read = self._reading(read)
        need(all(type(index) is int and inputs[index] for index in found["hooked"]), "a hook")
        requires.inputs.hooked = dict.fromkeys(found["hooked"], ((), ()))  # the graph has their ops
        requires.python.forms = [self._reading(each) for each in found["forms"]]
        requires.python.tied = [(self._reading(each), index) for each, index in found["tied"]]
        states = list[State]()
        for each in found[IN_STATE[LeaveState]]:
            states.append(self._state(states, each))
        changes = map(self._change, found[IN_STATE[ChangePlace]])
        left = (*map(LeaveState, states), *map(ChangePlace, changes))
        recorded.effects = ordered((*recorded.effects, *left))
        self._guard_stand_ins()
        requires.python.reads += [self._guard(*each) for each in found["held"]]
        need(all(0 <= index < len(inputs) for _, index in requires.python.tied), "tied")

    # ---- containers --------------------------------------------------------------------------

    def _fill(self, holder: Any, items: Sequence[Any]) -> None:
        if isinstance(holder, dict):
            holder.update([(key, self._value(each)) for key, each in items])
        else:
            add = holder.add if isinstance(holder, set) else holder.append
            for each in items:
                add(self._value(each))

    def _value(self, found: Sequence[Any]) -> Any:
        match found:
            case (kind, item) if kind == ITEM:
                return item
            case (kind, int(number)) if kind == HOLDER:
                return self.holders[number]
            case (kind, Structure() as form, tuple(leaves)) if kind == BUILT:
                return form.build(iter(leaves))
        raise Wrong(f"{found!r:.60} is no item")

    def _objects(self, shared: dict[str, Any]) -> None:
        """Create the stand-ins of objects and optimizers."""
        for name, kind, number in shared["objects"]:
            need(type(name) is type(kind) is str and type(self.holders[number]) is dict, "objects")
            self.names[name] = LoadedObject(kind, self.holders[number], name, self.places)
        for name, kind, groups, state in shared["optimizers"]:
            lists, kept = self.holders[groups], self.holders[state]
            need(type(name) is type(kind) is str and type(lists) is list, "optimizers")
            need(type(kept) is defaultdict, "the state of an optimizer")
            names, places = self.tensor_names, self.places
            self.names[name] = LoadedOptimizer(kind, lists, kept, names, places)

    def _guard_stand_ins(self) -> None:
        """Require that a call finds the stand-ins where they are."""
        known = self.recorded.requires.python.reads
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
        """Require that the optimizer's parameters are the program's: a user may replace them."""
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
                read = StateRead(place, LEAF, (_any_tensor(),), 0)
                self.recorded.requires.python.tied.append((read, owned[id(each)]))

    # ---- places ------------------------------------------------------------------------------

    def _place(self, found: Sequence[Any]) -> Location:
        kind, name, number, key = found
        need(type(name) is str, "a place")
        on_call = next((each for each, word in ON_THE_CALL.items() if word == kind), None)
        if on_call is OnArgument:
            need(type(key) is tuple and len(key) > 1, "a place in the arguments")
            return OnArgument(name, key)
        if on_call is not None:
            need(0 <= number < len(self.recorded.inputs), "a place of an input")
            place: Any = on_call
            return place(name, {}, MISSING, number) if kind == "input" else place(name, number)
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

    def _reading(self, found: Sequence[Any]) -> StateRead:
        place, form, leaves, number, kind = found
        need(type(form) is Structure and kind in OF_READ and type(number) is int, "a reading")
        need(-1 <= number < len(leaves), "a reading")
        return StateRead(self._place(place), form, tuple(map(_leaf, leaves)), number, kind)

    def _state(self, before: list[State], found: Sequence[Any]) -> State:
        place, form, first, count, at, kept = found
        outputs = len(self.recorded.outputs)
        need(type(form) is Structure and 0 <= first <= first + count <= outputs, "a state")
        need(at is None or isinstance(at, Frame), "the line of a state")
        where = self._place(place)
        items = {index: self._kept(where, before, each) for index, *each in kept}
        need(all(type(index) is int for index in items), "a state")
        if isinstance(where, Filling):
            need(form.spec.num_children == len(where.ways), "a filling")
        return State(where, form, first, count, at, items)

    def _kept(
        self, place: Location, before: list[State], found: Sequence[Any]
    ) -> ItemBefore | FoundObject | BuiltObject:
        """A leaf of a state that no call computes; a call looks it up at its end."""
        match found:
            case (kind, tuple(path)) if kind == WAS:
                item = ItemBefore(*path)
                item.of(place.now, (), ())
                return item
            case (kind, int(number)) if kind == FOUND:
                need(0 <= number < len(self.recorded.effects_of(FindObject)), "an object")
                return FoundObject(number)
            case (kind, int(number), tuple(path)) if kind == IS:
                need(0 <= number < len(before), "an earlier state")
                one = before[number]
                marks = one.structure.build(iter(range(one.count + len(one.kept))))
                need(at_path(marks, path) is not MISSING, "a place in an earlier state")
                return BuiltObject(number, path)
        raise Wrong(f"{found!r:.60} is no object of a state")

    def _change(self, found: Sequence[Any]) -> Change:
        place, value, at, path = found
        need(type(path) is str and (at is None or isinstance(at, Frame)), "a change")
        return Change(self._place(place), self._value(value), rebound=True, at=at, path=path)

    def _guard(
        self, what: str, name: str, number: int, key: Any, value: Any, at: Any, itself: bool
    ) -> ReadLocation | ContainerLength:
        holder = self.holders[number]
        need(type(name) is str and (at is None or isinstance(at, Frame)), "a guard")
        if what == "length":
            need(type(value) is int, "a length")
            return ContainerLength(name, holder, value)
        need(isinstance(holder, (dict, list, deque)), "a guard on an item")
        return ReadLocation(
            name, "item", holder, key, self._value(value), itself=itself is True, at=at
        )


def _any_tensor() -> torch.Tensor:
    """Stands for a tensor that each call reads."""
    return torch.empty(0)


def _empty(kind: str, longest: Any) -> Any:
    if kind == "deque":
        need(longest is None or type(longest) is int, "a deque")
        return deque(maxlen=longest)
    return defaultdict(dict) if kind == "defaultdict" else KINDS[kind]()


def _leaf(found: Sequence[Any]) -> Any:
    match found:
        case ("open",):
            return OPEN
        case ("tensor",):
            return _any_tensor()
        case ("is", leaf):
            return leaf
    raise Wrong(f"{found!r:.60} is no leaf")
