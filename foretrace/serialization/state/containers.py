"""The containers of a program's Python state in a file: containers by number, items by key.

A place of the program (a closure cell, an attribute, an entry of an optimizer's state) is an item
of a dict or list of the file. The guards that reached an object give its name and its class.
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from types import CellType, MappingProxyType
from typing import Any, Final

import torch

from foretrace.ir.program.recording import Recording
from foretrace.ir.pydata.location import Contents, Filling, Location
from foretrace.ir.pydata.members import attributes_of
from foretrace.ir.pydata.read_facts import AttributeNames, ContainerLength, ReadLocation
from foretrace.serialization.state.state_objects import Named, class_of

KINDS: Mapping[str, type[Any]] = MappingProxyType({
    "dict": dict, "list": list, "set": set, "deque": deque, "OrderedDict": OrderedDict,
    "defaultdict": defaultdict,
})  # fmt: skip
"""Containers that a file may have. Each defaultdict is one of dicts, as in an optimizer"""
NAMES: Final = 0
"""The number of the dict of closure cells, globals and all else that has a name alone"""
Spot = tuple[int, Any]
"""The number of a container, and a key"""


class ContainerTable:
    """The containers of the Python state of a file's programs, each by its number."""

    def __init__(self, programs: Sequence[Recording]) -> None:
        self.states = [state for each in programs for state in each.states]
        every = [each for recorded in programs for each in recorded.requires.python.reads]
        reads = [each for recorded in programs for each in recorded.requires.python.locations]
        self._by_item: dict[int, list[ReadLocation]] = {}
        for each in reads:
            self._by_item.setdefault(id(each.before), []).append(each)
        self._owners = {
            id(space): each for each in reads if (space := attributes_of(each.before)) is not None
        }
        self._spaces = {id(each.holder): each for each in every if isinstance(each, AttributeNames)}
        self.numbers: dict[int, int] = {}
        self.items: list[Any] = []
        """by number: a container, or the stored attributes of an object"""
        self.kinds: list[str] = []
        self.objects: list[tuple[str, str, int]] = []
        """name, class and number"""
        self.optimizers: list[tuple[str, str, int, int]] = []
        """name, class, numbers of `param_groups` and of `state`"""
        self._spots: dict[tuple[int, str], Spot] = {}
        """spots of names, by holder and key"""
        self._whole = dict[int, int]()
        """numbers of the containers that are stored whole, by id"""
        self._taken = set[str]()
        self._alive = list[Any]()
        self._append("dict", {})
        for name, optimizer in self._found():
            if any(self._trains(optimizer, recorded) for recorded in programs):
                self._optimizer(name, optimizer)

    # ---- optimizers --------------------------------------------------------------------------

    def _found(self) -> Iterator[tuple[str, torch.optim.Optimizer]]:
        """Each optimizer that the programs reach, with the shortest of its names."""
        for places in self._by_item.values():
            item = places[0].before
            if isinstance(item, torch.optim.Optimizer):
                yield min((bare(each.name) for each in places), key=len), item

    def _trains(self, optimizer: torch.optim.Optimizer, recorded: Recording) -> bool:
        """Whether the program writes to the parameters, the state or the groups of an optimizer."""
        inside = {id(each) for group in optimizer.param_groups for each in group["params"]}
        inside |= {id(x) for kept in dict.values(optimizer.state) for x in dict.values(kept)}
        written = (
            recorded.inputs[m.index].live()
            for m in recorded.mutations
            if recorded.inputs[m.index].argument is None
        )
        spaces = {id(group) for group in optimizer.param_groups}
        spaces |= {id(kept) for kept in dict.values(optimizer.state)}
        places = {id(state.place.holder) for state in self.states}
        return not inside.isdisjoint(map(id, written)) or not spaces.isdisjoint(places)

    def _optimizer(self, name: str, optimizer: torch.optim.Optimizer) -> None:
        groups = self._add("list", optimizer.param_groups)
        for group in optimizer.param_groups:
            self._add("dict", group)
            self._add("list", group["params"])
        state = self._add("defaultdict", optimizer.state)
        for kept in dict.values(optimizer.state):
            self._add("dict", kept)
        self.optimizers.append((self._name(name), class_of(optimizer), groups, state))

    # ---- places ------------------------------------------------------------------------------

    def spot(self, place: Location) -> Spot:
        """Where a place is in the file; the key is None for the whole content of a container."""
        holder = place.holder
        if isinstance(place, (Contents, Filling)):
            return self._container(holder, place.name), None
        is_object = id(holder) in self._owners or id(holder) in self._spaces
        named = type(place) is Location or isinstance(holder, Named) or is_object
        if named and id(holder) not in self._whole:
            return self._of_name(str(place.key), holder, place.now)
        return self._container(holder, place.name), place.key

    def guarded(self, each: ReadLocation | ContainerLength) -> Spot | None:
        """Where the object of a guard is in the file; None where the file lacks it."""
        number = self.numbers.get(id(each.holder))
        key = each.key if isinstance(each, ReadLocation) else None
        if number is not None:
            return number, key
        name = bare(each.name) if isinstance(each, ReadLocation) and each.how == "cell" else key
        return self._spots.get((id(each.holder), name)) if isinstance(name, str) else None

    def note(self, spot: Spot, now: Any) -> None:
        """Store one more item of an object of which the file has only guarded items."""
        number, key = spot
        if number not in self._whole.values():
            self.items[number].setdefault(key, now)

    def keep(self, item: Any, name: str = "") -> None:
        """Store an item where the program has found it; if that is nowhere, by its name."""
        places = self._by_item.get(id(item), [])
        if any(id(each.holder) in self.numbers for each in places):
            return
        for each in places:
            holder = each.holder
            is_dict = isinstance(holder, (dict, MappingProxyType))
            if each.how == "cell":
                self._of_name(bare(each.name), holder, item)
            elif is_dict and id(holder) not in self._by_item:  # a namespace
                self._of_name(str(each.key), holder, item)
            elif type(holder) in (dict, list):
                self._container(holder, each.name)
            else:
                continue
            return
        if name:
            self.items[NAMES][self._name(bare(name))] = item

    def add(self, item: Any) -> int:
        """Add a container; return its number."""
        return self._add(_kind(item), item)

    # ---- parts -------------------------------------------------------------------------------

    def _of_name(self, name: str, holder: Any, now: Any) -> Spot:
        """Where a name of an object, a class, a cell or a module's globals is."""
        key = id(holder), name
        if key not in self._spots:
            loose = type(holder) is dict and "__builtins__" in holder
            if loose or isinstance(holder, (CellType, Named)):
                self._spots[key] = NAMES, self._name(name)
            else:
                self._spots[key] = self._object(holder), name
            number, own = self._spots[key]
            self.items[number][own] = now
        return self._spots[key]

    def _object(self, holder: Any) -> int:
        """The number of an object or class, which the file stores by its attributes."""
        number = self.numbers.get(id(holder))
        if number is None:
            owner, names = self._owners.get(id(holder)), self._spaces.get(id(holder))
            owner = owner or next(iter(self._by_item.get(id(holder), ())), None)
            item = holder if owner is None else owner.before
            found = owner or names
            name = bare(found.name) if found is not None else class_of(item)
            number = self.numbers[id(holder)] = self._append("dict", {})
            self._alive.append(holder)
            self.objects.append((self._name(name), class_of(item), number))
        return number

    def _container(self, holder: Any, name: str) -> int:
        """The number of a container of the user, stored where the program has found it."""
        if id(holder) in self.numbers:
            return self.numbers[id(holder)]
        number = self._add(_kind(holder), holder)
        self.keep(holder, name)
        return number

    def _add(self, kind: str, item: Any) -> int:
        self.numbers[id(item)] = self._whole[id(item)] = self._append(kind, item)
        return self.numbers[id(item)]

    def _append(self, kind: str, item: Any) -> int:
        self.items.append(item)
        self.kinds.append(kind)
        return len(self.items) - 1

    def _name(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name


def bare(name: str) -> str:
    """The name in the program's own code."""
    name = str(name)
    for start in ("the closed-over ", "the global ", "the program.__self__", "the program."):
        name = name.removeprefix(start)
    return name.removeprefix(".") or "self"


def _kind(holder: Any) -> str:
    return next(name for name, kind in [*KINDS.items()][::-1] if isinstance(holder, kind))
