"""What the program's code may read outside of its arguments, and what was there when it ran.

It is found after the run, from the globals and closure cells that the code names, its modules and
the objects among its arguments: their attributes that the code mentions, and so on, six levels
deep. Plain data is kept as a copy, all else as the object that it is.
"""

import itertools
import linecache
import logging
import types
from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

import torch
from torch import nn

from foretrace import torch_api
from foretrace.ir.program.call_requirements import ModuleState
from foretrace.ir.pydata.heap_walk import walk_heap, walk_nested
from foretrace.ir.pydata.location import Location
from foretrace.ir.pydata.members import (
    MISSING,
    OWN,
    PYTHONS_OWN,
    attributes_of,
    own_items,
    own_kind,
    own_length,
)
from foretrace.ir.pydata.object_containers import HEAP_TYPE
from foretrace.ir.pydata.plain_data import LARGEST, plain, snapshot
from foretrace.ir.pydata.read_facts import (
    AttributeNames,
    ContainerItems,
    ContainerMembers,
    How,
    ObjectClass,
    ReadByLibrary,
    ReadClassAttribute,
    ReadFact,
    ReadLocation,
    ShownContent,
)
from foretrace.operators.abstract_tensors.subclass_types import flattened, wraps
from foretrace.python_state.access.noted import Asked
from foretrace.python_state.code.bytecode import ANNOTATED
from foretrace.python_state.code.code_owner import origin_of_class
from foretrace.python_state.reads.attributes_read import AttributesRead
from foretrace.python_state.reads.object_parts import (
    MATCHED,
    bases_of,
    container_fact,
    fixed_parts,
    items_of,
    leads_on,
    names_in,
    of_a_library,
    parts_in_c,
    shown_key,
    slots_of_layer,
    state_of,
)
from foretrace.python_state.reads.state_in_c import (
    OF_THREADS,
    REFERENCES,
    answered,
    asked_by,
    names_in_thread,
    referent,
)

NO_INSIDE = (type, torch.Tensor)
LOGS = ((logging.Logger, "_cache"), (logging.Manager, "loggerDict"))
"""What any import or question about a level fills; the levels, by a logger's parents, are facts"""
Step: TypeAlias = tuple[str, Any]
"""What an object is called, and the object"""
LONG = 400
"""Letters of a name, of which the middle is left out where it is longer"""
SLOT = types.MemberDescriptorType


def short(name: str) -> str:
    """A name as messages have it: one that leads far has no middle."""
    return name if len(name) <= LONG else f"{name[: LONG // 2]} ... {name[-LONG // 4 :]}"


class StateReads:
    """Follows what the code may read; each object is looked at once.

    Args:
        mentioned: the names of attributes that it mentions.
        open: containers, by id, whose content a call reads, or leaves otherwise.
        unread: those whose content it does not read at all.
        asked: of which objects it may read any attribute.
    """

    def __init__(
        self, mentioned: Iterable[str], open: Collection[int] = (), unread: Collection[int] = (),
        asked: Asked | None = None,
    ) -> None:  # fmt: skip
        self._open, self._unread = open, unread
        self._asked = asked or Asked()
        self.mentioned = frozenset(mentioned) | {"forward"}
        self._names = AttributesRead(self.mentioned, self._asked)
        self.found = list[ReadFact]()
        self.met: list[ModuleState] = []
        """modules that are not the program's own: their tensors are constants of the graph"""
        self._seen: dict[int, Any] = {}
        self._referents = set[int]()
        """what a weak reference leads to; it is seen, too, so that no other gets the same id"""
        self._slots: dict[type, list[str]] = {}

    def read(
        self,
        states: Iterable[ModuleState],
        places: Iterable[Location],
        items: Iterable[tuple[str, Any]],
    ) -> None:
        """Note what modules, globals and closure cells, and objects by name lead to."""
        self._walk(self._of_modules(states))
        self._walk(step for place in places for step in self._of_name(place))
        self._walk(step for name, item in items for step in self._from(name, item))

    def _from(self, name: str, item: Any) -> Iterable[Step]:
        """What an object by name leads to, or a class."""
        return self._classes(item) if isinstance(item, type) else self._to(name, item)

    def set_on(self, index: int, tensor: torch.Tensor) -> list[tuple[int, str, object]]:
        """What Python has set on an input, but for the tensors that it wraps: these are its own."""
        own = flattened(tensor)[0] if wraps(type(tensor)) else ()
        space = vars(tensor).items()
        mentioned = [(n, item) for n, item in space if n in self.mentioned and n not in own]
        self.read((), (), mentioned)
        return [(index, n, snapshot(item) if plain(item) else item) for n, item in mentioned]

    # ---- the walk ----------------------------------------------------------------------------

    def _walk(self, steps: Iterable[Step]) -> None:
        deque(walk_nested(steps, self._inside, itemgetter(1), self._seen), maxlen=0)

    def _inside(self, step: Step) -> Iterable[Step]:
        name, item = step
        if issubclass(type(item), nn.Module):
            return self._met_module(name, item)
        if issubclass(type(item), OWN):
            items = self._items(name, item)
            return items if type(item) in OWN else itertools.chain(items, self._whole(*step))
        if of_a_library(item):
            return ()
        if issubclass(type(item), OF_THREADS):
            return self._of_thread(name, item)
        return self._whole(name, item)

    def _to(self, name: str, item: Any) -> Iterable[Step]:
        """The step to an object; none to what leads to nothing that is read.

        That it is the same object is known already.
        """
        kind = type(item)  # its class as it says itself is Python of the user's
        if issubclass(kind, torch.Tensor):
            return self._classes(kind)
        if id(item) in self._seen or issubclass(kind, NO_INSIDE) or id(item) in self._unread:
            return ()
        return () if self._data(item) and not leads_on(item) else ((short(name), item),)

    def _take(
        self, name: str, how: How, holder: Any, key: Any, item: Any,
        make: Callable[..., ReadLocation] = ReadLocation, *, leads: bool = True,
    ) -> Iterable[Step]:  # fmt: skip
        """Note one place, as what `make` makes; gives the steps that it leads to, if it does."""
        if item is linecache.cache:  # of files, which whoever looks at a line reads
            return ()
        is_data = self._data(item)
        # a dict of numbers that holds a list which each call fills is no value to compare
        itself = id(item) in self._open or (not is_data and plain(item))
        data = id(item) not in self._seen and is_data
        before = snapshot(item) if data else item
        self.found.append(make(name, how, holder, key, before, itself))
        if issubclass(type(item), type):
            return self._classes(item)
        return self._to(name, item) if leads and (not data or leads_on(item)) else ()

    def _data(self, item: Any) -> bool:
        """Whether it is plain data, which a call does not read again."""
        is_plain = plain(item)
        if not (is_plain and self._open):
            return is_plain
        return not any(id(each) in self._open for each in walk_heap([item], items_of, depth=9))

    # ---- objects -----------------------------------------------------------------------------

    def _of_modules(self, states: Iterable[ModuleState]) -> Iterator[Step]:
        self._seen |= {id(state.module): state.module for state in states}
        for state in states:
            name = state.path or type(state.module).__name__
            yield from self._object(name, state.module)

    def _of_name(self, place: Location) -> Iterable[Step]:
        """A global or a closure cell."""
        if isinstance(place.holder, dict):
            name = f"the global {place.name}"
            return self._take(name, "item", place.holder, place.name, place.before)
        if place.before is MISSING:
            return ()
        name = f"the closed-over {place.name}"
        return self._take(name, "cell", place.holder, None, place.before)

    def _whole(self, name: str, item: Any) -> Iterator[Step]:
        """What an object shows that is in C, and its attributes."""
        ask = asked_by(item, self.mentioned)
        if ask is not None:
            yield from self._shown(name, item, ask)
        yield from self._object(name, item)

    def _shown(self, name: str, item: Any, ask: Callable[[Any], Any]) -> Iterator[Step]:
        """What an object of C shows. What a weak reference leads to is not kept alive by it."""
        content = ask(item)
        is_data = self._data(content)
        before = snapshot(content) if is_data else content
        self.found.append(ShownContent(name, item, ask, before))
        if issubclass(type(item), REFERENCES):
            inside = referent(item)
            self._referents.add(id(inside))
            yield from self._to(f"{name}()", inside)
        elif not is_data:
            yield from self._to(name, content)

    def _of_thread(self, name: str, item: Any) -> Iterator[Step]:
        """The attributes that the code mentions, of the thread that calls."""
        ask = partial(names_in_thread, names=self.mentioned)
        self.found.append(ShownContent(name, item, ask, there := ask(item)))
        for key in sorted(there):
            content = getattr(item, key)
            yield from self._take(f"{name}.{key}", "attribute", item, key, content)

    def _object(self, name: str, item: Any) -> Iterator[Step]:
        """The attributes that the code mentions: the object's own, in slots, of its class."""
        space, kind = attributes_of(item), type(item)
        if kind.__flags__ & HEAP_TYPE and id(item) not in self._referents:
            self.found.append(ObjectClass(name, item, kind, space))
        if space is not None:
            names, keys, own = self._names.of_object(item, space)
            self.found.append(AttributeNames(name, space, type(item), names, own))
            if self._asked.lists_all(item):
                self.found.append(names_in(name, space))
            for key in keys:
                if any(key == filled and issubclass(kind, each) for each, filled in LOGS):
                    continue
                make = ReadByLibrary if key in own else ReadLocation
                yield from self._take(f"{name}.{key}", "item", space, key, space[key], make)
        slots = yield from self._classes(kind)
        for key in (*parts_in_c(kind, item), *slots):
            content = getattr(item, key, MISSING)
            yield from self._take(f"{name}.{key}", "attribute", item, key, content)
        yield from self._in_c(name, item)
        for key, content in fixed_parts(kind, item):
            yield from self._to(f"{name}.{key}", content)

    def _in_c(self, name: str, item: Any) -> Iterator[Step]:
        """Attributes that the code mentions, and that the object's class has in C."""
        kind = type(item)
        for key, ask in self._names.in_c(kind).items():
            content = answered(ask, item)
            if plain(content) or answered(ask, item) is content:
                yield from self._shown(f"{name}.{key}", item, partial(answered, ask))

    def _classes(self, kind: type) -> Generator[Step, None, list[str]]:
        """A class of the user and what it inherits from; gives the names of slots."""
        known = self._slots.get(kind)
        if known is not None:
            return known
        slots = self._slots[kind] = list[str]()
        for each in kind.__mro__:
            slots += slots_of_layer(each, self.mentioned)
            if not of_a_library(each):
                mentioned = self._names.of_class(each)
                slots += [key for key in mentioned if isinstance(vars(each)[key], SLOT)]
                if id(each) not in self._seen:
                    self._seen[id(each)] = each
                    yield from self._class(each, mentioned)
                    yield from self._classes(type(each))
            elif id(each) not in self._seen and origin_of_class(each) == "layer":
                self._seen[id(each)] = each
                yield from self._members(each, self._names.ran(each, vars(each)))
        return slots

    def _class(self, kind: type, mentioned: list[str]) -> Iterator[Step]:
        space = vars(kind)
        self.found += bases_of(kind, self.mentioned)
        yield from self._in_c(kind.__name__, kind)
        self.found.append(AttributeNames(kind.__name__, space, kind.__base__, frozenset(space)))
        if self._asked.lists_all(kind):
            self.found.append(names_in(kind.__name__, space))
        named = [key for key in mentioned if key[:2] != "__" or key == ANNOTATED]
        others = space.keys() - PYTHONS_OWN - {*named}
        ran = self._names.ran(kind, others)
        yield from self._members(kind, (*named, *ran, *MATCHED & space.keys()))

    def _members(self, kind: type, names: Iterable[str]) -> Iterator[Step]:
        space, make = vars(kind), partial(ReadClassAttribute, kind=kind)
        for key in names:
            if not isinstance(space[key], SLOT):
                name, item = f"{kind.__name__}.{key}", space[key]
                leads = key in self.mentioned or self._asked.may_call(item)
                yield from self._take(name, "item", space, key, item, make, leads=leads)

    def _items(self, name: str, item: Any) -> Iterator[Step]:
        """A container of more than plain data; of a large one, how many items it has."""
        length, items = own_length(item), [*itertools.islice(own_items(item), LARGEST)]
        if own_kind(item) in (set, frozenset) and length == len(items):
            members = tuple(content for _, content in items)
            self.found.append(ContainerMembers(name, item, length, members))
            for content in members:
                yield from self._to(f"a member of {name}", content)
            return
        self.found.append(container_fact(name, item, items))
        own = list[tuple[Any, Any]]()
        for key, content in items if own_kind(item) not in (set, frozenset) else ():
            if (shown := shown_key(key)) is not None:
                yield from self._take(f"{name}[{shown}]", "item", item, key, content)
            else:
                own.append((key, content))
        if own:
            yield from self._unasked(name, item, own)

    def _unasked(self, name: str, table: Any, items: list[tuple[Any, Any]]) -> Iterator[Step]:
        """Items of a dict by keys whose class says itself what they are equal to."""
        before = [(key, snapshot(item) if self._data(item) else item) for key, item in items]
        self.found.append(ContainerItems(name, table, own_length(table), tuple(before)))
        for key, item in items:
            yield from self._to(f"a key of {name}", key)
            yield from self._to(f"{name}[a {type(key).__name__}]", item)

    def _met_module(self, name: str, module: nn.Module) -> Iterator[Step]:
        states = [
            state_of(f"{name}.{path}".rstrip("."), each) for path, each in module.named_modules()
        ]
        self.met += states
        yield from self._of_modules(states)
        for state in states:
            for table in torch_api.tensor_tables(state.module):
                for key, tensor in table.items():
                    self.found.append(
                        ReadLocation(f"{state.path}.{key}", "item", table, key, tensor)
                    )
