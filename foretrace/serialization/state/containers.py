"""Where a program's state lies in Python, as a file has it: containers by number, items by key.

A place of the program's (a closure cell, an attribute, an entry of an optimizer's state) is an item
of one of the file's own dicts and lists. Which object they are of is told by the guards, which have
found it: its name, and the name of its class.
"""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from types import CellType, MappingProxyType
from typing import Any, Final

import torch

from foretrace.ir.program.call_requirements import AttributeNames, ContainerLength, ReadLocation
from foretrace.ir.program.recording import Recording
from foretrace.ir.pydata.location import Contents, Filling, Location
from foretrace.ir.pydata.members import attributes_of
from foretrace.serialization.state.state_objects import Named, class_of

KINDS: Mapping[str, type[Any]] = MappingProxyType({
    "dict": dict, "list": list, "set": set, "deque": deque, "OrderedDict": OrderedDict,
    "defaultdict": defaultdict,
})  # fmt: skip
"""Containers that a file may have. A defaultdict makes dicts, as that of an optimizer does"""
NAMES: Final = 0
"""The number of the dict that has closure cells and globals, and all others by name"""
Spot = tuple[int, Any]
"""The number of a container, and a key"""


class ContainerTable:
    """The containers of the state that the programs of a file go on from, each by its number."""

    def __init__(self, programs: Sequence[Recording]) -> None:
        self.states = [state for each in programs for state in each.states]
        every = [each for recorded in programs for each in recorded.requires.python.held]
        held = [each for recorded in programs for each in recorded.requires.python.locations]
        self._by_item: dict[int, list[ReadLocation]] = {}
        for each in held:
            self._by_item.setdefault(id(each.before), []).append(each)
        self._owners = {
            id(space): each for each in held if (space := attributes_of(each.before)) is not None
        }
        self._spaces = {id(each.holder): each for each in every if isinstance(each, AttributeNames)}
        self.numbers: dict[int, int] = {}
        self.items: list[Any] = []
        """by number: a container itself, or of an object the items that a file has, by key"""
        self.kinds: list[str] = []
        self.objects: list[tuple[str, str, int]] = []
        """name, class and number"""
        self.optimizers: list[tuple[str, str, int, int]] = []
        """name, class, numbers of its groups and of its state"""
        self._spots: dict[tuple[int, str], Spot] = {}
        """of names, by holder and key"""
        self._whole = dict[int, int]()
        """the numbers of containers that a file has with all that they hold, by id"""
        self._taken = set[str]()
        self._alive = list[Any]()
        self.kinds.append("dict")
        self.items.append({})
        for name, optimizer in self._found():
            if any(self._trains(optimizer, recorded) for recorded in programs):
                self._optimizer(name, optimizer)

    # ---- optimizers --------------------------------------------------------------------------

    def _found(self) -> Iterator[tuple[str, torch.optim.Optimizer]]:
        """Each optimizer that the program reaches, by the shortest of its names."""
        for places in self._by_item.values():
            item = places[0].before
            if isinstance(item, torch.optim.Optimizer):
                yield min((bare(each.name) for each in places), key=len), item

    def _trains(self, optimizer: torch.optim.Optimizer, recorded: Recording) -> bool:
        """Whether the program writes to what it trains, or to what it knows of that."""
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
        """Where a place is in the file; of the content of a container, without a key."""
        holder = place.holder
        if isinstance(place, (Contents, Filling)):
            return self._container(holder, place.name), None
        named = type(place) is Location or isinstance(holder, Named) or self._is_object(holder)
        if named and id(holder) not in self._whole:
            return self._of_name(str(place.key), holder, place.now)
        return self._container(holder, place.name), place.key

    def held(self, each: ReadLocation | ContainerLength) -> Spot | None:
        """Where something that was found is in the file; None where it is not."""
        number = self.numbers.get(id(each.holder))
        key = each.key if isinstance(each, ReadLocation) else None
        if number is not None:
            return number, key
        name = bare(each.name) if isinstance(each, ReadLocation) and each.how == "cell" else key
        return self._spots.get((id(each.holder), name)) if isinstance(name, str) else None

    def note(self, spot: Spot, now: Any) -> None:
        """One more item of an object, of which a file has no more than what is asked of it."""
        number, key = spot
        if number not in self._whole.values():
            self.items[number].setdefault(key, now)

    def keep(self, item: Any, name: str = "") -> None:
        """Let an item be where the program has found it; if that is nowhere, by its name."""
        places = self._by_item.get(id(item), [])
        if any(id(each.holder) in self.numbers for each in places):
            return
        for each in places:
            if each.how == "cell":
                self._of_name(bare(each.name), each.holder, item)
            elif isinstance(each.holder, (dict, MappingProxyType)) and not self._found_too(each):
                self._of_name(str(each.key), each.holder, item)
            elif type(each.holder) in (dict, list):
                self._container(each.holder, each.name)
            else:
                continue
            return
        if name:
            self.items[NAMES][self._name(bare(name))] = item

    def add(self, item: Any) -> int:
        """One more container."""
        return self._add(_kind(item), item)

    # ---- parts -------------------------------------------------------------------------------

    def _found_too(self, each: ReadLocation) -> bool:
        """Whether what it was found in is an item that was found itself, and no namespace."""
        return id(each.holder) in self._by_item

    def _is_object(self, holder: Any) -> bool:
        """Whether a dict is the attributes of an object."""
        return id(holder) in self._owners or id(holder) in self._spaces

    def _of_name(self, name: str, holder: Any, now: Any) -> Spot:
        """Where a name is that an object, a class, a cell or a module's globals has."""
        key = id(holder), name
        if key not in self._spots:
            loose = type(holder) is dict and "__builtins__" in holder
            if loose or isinstance(holder, (CellType, Named)):
                self._spots[key] = NAMES, self._name(name)
            else:
                self._spots[key] = self._object(holder), name
            number, told = self._spots[key]
            self.items[number][told] = now
        return self._spots[key]

    def _object(self, holder: Any) -> int:
        """An object or class, by its attributes."""
        number = self.numbers.get(id(holder))
        if number is None:
            owner, names = self._owners.get(id(holder)), self._spaces.get(id(holder))
            owner = owner or next(iter(self._by_item.get(id(holder), ())), None)
            item = holder if owner is None else owner.before
            found = owner or names
            name = bare(found.name) if found is not None else class_of(item)
            number = self.numbers[id(holder)] = len(self.items)
            self.items.append({})
            self.kinds.append("dict")
            self._alive.append(holder)
            self.objects.append((self._name(name), class_of(item), number))
        return number

    def _container(self, holder: Any, name: str) -> int:
        """A container of the user's; it is found where the program has found it."""
        if id(holder) in self.numbers:
            return self.numbers[id(holder)]
        number = self._add(_kind(holder), holder)
        self.keep(holder, name)
        return number

    def _add(self, kind: str, item: Any) -> int:
        number = self.numbers[id(item)] = self._whole[id(item)] = len(self.items)
        self.items.append(item)
        self.kinds.append(kind)
        return number

    def _name(self, wanted: str) -> str:
        name, count = wanted, 1
        while name in self._taken:
            count += 1
            name = f"{wanted}_{count}"
        self._taken.add(name)
        return name


def bare(name: str) -> str:
    """The name by which the program's own code knows it."""
    name = str(name)
    for start in ("the closed-over ", "the global ", "the program.__self__", "the program."):
        name = name.removeprefix(start)
    return name.removeprefix(".") or "self"


def _kind(holder: Any) -> str:
    return next(name for name, kind in [*KINDS.items()][::-1] if isinstance(holder, kind))
