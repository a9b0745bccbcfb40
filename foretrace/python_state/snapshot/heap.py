"""What a program can reach of Python's state, as it was before the run.

Whatever the run leaves there, at any moment and in any way, is put back afterwards.
"""

import gc
import types
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any
from weakref import getweakrefcount

import torch
from torch import nn

from foretrace import torch_api
from foretrace.ir.pydata.heap_walk import walk_heap
from foretrace.ir.pydata.location import Entry, Location
from foretrace.ir.pydata.memo import Memo
from foretrace.ir.pydata.state import Change
from foretrace.ir.symbols.builtin_call_sites import NameOfModule, places_of
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.python_state.snapshot.changes import Called
from foretrace.python_state.snapshot.code_references import functions_in
from foretrace.python_state.snapshot.objects import (
    ATOMS,
    AttributesSnapshot,
    ClassSnapshot,
    ContentSnapshot,
    DictSnapshot,
    NamesSnapshot,
    Snapshot,
    changes_in,
)
from foretrace.python_state.snapshot.reachable import MOST, ReachableState, referents
from foretrace.python_state.snapshot.restore import put_all_back
from foretrace.python_state.snapshot.states_in_c import StateSnapshot
from foretrace.python_state.snapshot.torch_objects import ModuleSnapshot

INSIDE = frozenset({dict, tuple, types.BuiltinMethodType})
"""What is looked through for one who asks what holds an object, and for nobody else"""
WRAPPING = (staticmethod, classmethod, property)
"""Types of what holds a memoized function in a class"""
CLOSED = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.FrameType,
    nn.Module,
    torch.Tensor,
)
"""What nobody looks into for a tensor of the run; for frames see `effects/returned_frames.py`"""


NAMES = AttributesSnapshot, NamesSnapshot
"""What is kept of names, not of the keys of a dict"""


class HeapSnapshot(ReachableState):
    """All of it; `put_back` after the run."""

    def __init__(self, roots: Iterable[Any], owners: Iterable[nn.Module] = ()) -> None:
        super().__init__(roots, owners)
        self.called = dict[int, Called]()
        """the dicts of optimizers, by id"""
        self._containers: set[int] | None = None
        """the ids of what attributes of modules are that are containers, once somebody asks"""
        self._changed: list[Snapshot] | None = None
        """what was found changed after the run"""

    def lend(self, module: nn.Module) -> ModuleSnapshot:
        """What is kept of a module, for one who puts it back himself."""
        return self._modules.pop(id(module), None) or ModuleSnapshot(module)

    @property
    def met(self) -> set[int]:
        """The ids of what was looked at, which lives as long as this."""
        return set(self._seen)

    def objects(self) -> Iterator[Any]:
        """What was looked at, in the order in which it was met."""
        return iter(self._seen.values())

    def has_met(self, item: Any) -> bool:
        """Whether something was looked at."""
        return id(item) in self._seen

    def reaches(self, tensors: Iterable[torch.Tensor]) -> set[int]:
        """The ids of those of modules' tensors that the program may know by another way, too.

        Something else holds it, if weakly; Python has set attributes on it; or code asks for the
        `id` of something. What is found is kept as all else.
        """
        asked = "id" in self.mentioned
        by_id = {id(tensor): tensor for tensor in tensors}
        found = {
            key
            for key, tensor in by_id.items()
            if asked or key in self._seen or vars(tensor) or getweakrefcount(tensor)
        }
        self._walk([by_id[key] for key in found])
        return found

    def memos(self) -> list[Any]:
        """The memoized functions that the program may call."""
        return self._memos

    def places_with(self, memos: Collection[int]) -> list[Location]:
        """Where globals, classes, cells and attributes have memoized functions of these ids."""
        if not memos:
            return []
        wrapped = (each for each in self._seen.values() if isinstance(each, WRAPPING))
        holding = {*memos, *(id(each) for each in wrapped if id(memo_in(each)) in memos)}
        kept = [
            each for each in self._tables() if not holding.isdisjoint(map(id, each.before.values()))
        ]
        bound = [(each.item, name, item) for each in kept for name, item in each.before.items()]
        bound += [(table, name, table.get(name)) for table, name in self._memoized]
        found = [Location(n, at, item) for at, n, item in bound if id(memo_in(item)) in memos]
        return [*{each.identity: each for each in found}.values()]

    def rebound(self) -> Iterator[tuple[Location, Any]]:
        """Where the run has bound another object to such a name, and what was there.

        It is asked after `bound`, which leaves out the borrowed modules.
        """
        modules = [each for each in self._met_modules if id(each.item) not in self._modules]
        changed = self._all() if self._changed is None else self._changed
        tables = [each for each in changed if isinstance(each, NAMES)]
        for kept in (*tables, *(each.attributes for each in modules)):
            for name, item in kept.others():
                yield Location(name, kept.item, None), item

    def named(self) -> Iterator[tuple[Location, Any]]:
        """Where attributes, globals and cells had something, and what: the locations keep none."""
        yield from self._functions.defaults()
        others = (each for each in self._kept if isinstance(each, NAMES))
        for kept in (*[m.attributes for m in self._met_modules], *others, *self._names.snapshots()):
            for name, item in kept.before.items():
                yield Location(name, kept.item, None), item

    def casts(self) -> list[NameOfModule]:
        """The globals in which `int` and `float` may stand for others while the program runs."""
        return places_of(self._casting.values(), functions_in)

    def put_back(self) -> list[str]:
        """Leave everything as it was; gives what could not be, in words."""
        for memo in self._memos:
            _forget(memo)
        failed = put_all_back(self._all())
        content = [type(each).__name__ for each in self.opaque if _holds_abstract([each])]
        return [*failed, *(f"a {name}, which holds a tensor of the run" for name in content)]

    def reached_modules(self, program: Any) -> dict[str, nn.Module]:
        """The modules that something else holds than the program itself, or another module."""
        modules = [x for x in self._seen.values() if isinstance(x, nn.Module)]
        inside = {id(x) for each in modules for x in torch_api.submodule_table(each).values()}
        others = inside | self._borrowed | {id(program)}
        roots = (each for each in modules if id(each) not in others)
        return {f"reached_{number}": root for number, root in enumerate(roots)}

    def name_modules(self, program: Any) -> dict[int, str]:
        """Names for the tensors of modules that an object holds (`self.model`), by id."""
        found = dict[int, str]()
        for root in self.reached_modules(program).values():
            tensors = {**dict(root.named_parameters()), **dict(root.named_buffers())}
            if tensors and (name := self.name(root)).isidentifier():
                found |= {id(tensor): f"{name}.{path}" for path, tensor in tensors.items()}
        return found

    def name_optimizers(self, names: dict[int, str]) -> dict[int, str]:
        """Names for what optimizers keep of parameters, by id; `names`: of the parameters."""
        found = dict[int, str]()
        optimizers = [x for x in self._seen.values() if isinstance(x, torch.optim.Optimizer)]
        for optimizer in optimizers:
            groups = optimizer.param_groups
            self.called |= {id(g): Called(f"group {i}") for i, g in enumerate(groups)}
            every = [p for group in groups for p in group["params"]]
            inner = {id(p): names.get(id(p), f"parameter {i}") for i, p in enumerate(every)}
            self.called[id(optimizer.state)] = Called("the optimizer", inner)
            for key, kept in dict.items(optimizer.state):
                if isinstance(kept, dict) and id(key) in inner:
                    about = self.called[id(kept)] = Called(inner[id(key)])
                    found |= {id(item): about.of(name) for name, item in kept.items()}
        return found

    def keeps(self, place: Location) -> bool:
        """Whether what is in a place is a container of which the content is kept."""
        if isinstance(place, Entry):
            return self.knows(place.holder)
        return not place.bound and self.knows(place.before)

    def knows(self, item: Any) -> bool:
        """Whether something was looked at, or is a container of a module's."""
        if id(item) in self._seen:
            return True
        if self._containers is None:
            content = (each for kept in self._met_modules for each in kept.containers())
            self._containers = set(map(id, content))
        return id(item) in self._containers

    def places_of(self, item: Any) -> int:
        """How many of the kept places had an object."""
        return sum(
            each is item for kept in self._all() for each in gc.get_referents(_content(kept))
        )

    def holders_of(self, item: Any) -> int | None:
        """How many places of what a program can reach hold an object; None where that is unknown.

        Beside `places_of` also those of which nothing is kept, as they cannot be bound again: in
        tuples, methods that are bound to it, what a library's objects have in C.
        """
        if len(self._seen) >= MOST:
            return None
        seen = dict[int, Any]()
        for each in (*self._seen.values(), *self._classes.values(), *self._names.spaces):
            seen[id(each)] = each
            seen |= {id(x): x for x in gc.get_referents(each) if type(x) in INSIDE}
        return sum(content is item for each in seen.values() for content in gc.get_referents(each))

    def itself(self, change: Change) -> Change:
        """The change, which says whether it has bound a name to an object that was there."""
        after = change.after
        named = change.rebound and type(change.place) in (Location, Entry)
        plain_one = type(after) in ATOMS or isinstance(after, (tuple, frozenset, torch.Tensor))
        known = named and not plain_one and self.knows(after)
        return replace(change, itself=True) if known else change

    def bound(self) -> Iterator[Change]:
        """What the run has left changed."""
        self._changed = [each for each in self._all() if not each.intact]
        for kept in self._changed:
            if not isinstance(kept, StateSnapshot):
                yield from changes_in(kept, self.name)

    def undo(self) -> list[Change]:
        """Put back what the run has left changed, and give it.

        What holds a tensor of the run stays, for `leaks.py` to find; states, for `check_states`;
        what holds a tensor now that was nowhere, as a run makes none: another thread has put it
        there.
        """
        found = list[Change]()
        for kept in self._all() if self._changed is None else self._changed:
            if not (kept.intact or isinstance(kept, StateSnapshot) or self._has_new_tensor(kept)):
                found += changes_in(kept, self.name)
                kept.put_back()
        return found

    def _has_new_tensor(self, kept: Snapshot) -> bool:
        """Whether there is a tensor in it that was nowhere: of the run, or a real one."""
        ordered = isinstance(kept, ContentSnapshot) and not isinstance(kept.before, set)
        if ordered or type(kept) is DictSnapshot:
            there = set(map(id, referents(_content(kept))))
            new = (each for each in referents(kept.item) if id(each) not in there)
            if any(isinstance(each, torch.Tensor) and not self.knows(each) for each in new):
                return True
        content = vars(kept.item).values() if isinstance(kept, ClassSnapshot) else (kept.item,)
        return _holds_abstract(content, 3)

    def _all(self) -> Iterator[Snapshot]:
        for module in self._modules.values():
            yield from module.parts()
        yield from self._names.snapshots()
        yield from self._kept
        yield from self._functions.rebound()
        for space in filter(None, self._bare):
            kept = AttributesSnapshot(space)
            kept.before = {}
            yield kept

    def _tables(self) -> Iterator[NamesSnapshot | DictSnapshot]:
        """What is kept of names: of files, cells, objects, classes and modules."""
        yield from self._functions.rebound()
        yield from (module.attributes for module in self._modules.values())
        yield from self._names.snapshots()
        for kept in self._kept:
            if isinstance(kept, (NamesSnapshot, AttributesSnapshot)):
                yield kept

    def exchange_states(self) -> None:
        """Leave generators in other states, in which nobody has put them, until `changed`."""
        for kept in self._states():
            kept.exchange()

    def changed(self) -> list[tuple[Any, str]]:
        """What the run left in another state, each with an attribute that holds it.

        Generators and arrays, what C keeps. All else is as before the run.
        """
        used = [kept for kept in self._states() if kept.used]
        for kept in self._states():
            if kept.during is not kept.before and kept not in used:
                kept.put_back()
        return [(kept.item, self.name(kept.item)) for kept in used]

    def _states(self) -> Iterator[StateSnapshot]:
        return (kept for kept in self._kept if isinstance(kept, StateSnapshot))

    def name(self, item: Any) -> str:
        """The name of what holds an object; its type where none does."""
        if id(item) in self.called:
            return self.called[id(item)]
        modules = [vars(each) for each in self._seen.values() if isinstance(each, nn.Module)]
        kept = [
            each.before for each in self._all() if isinstance(each, (NamesSnapshot, DictSnapshot))
        ]
        spaces = [*modules, *kept]
        names = (name for content in spaces for name, each in content.items() if each is item)
        return next((name for name in names if isinstance(name, str)), f"a {type(item).__name__}")


def _content(kept: Snapshot) -> Any:
    """What is kept of an object."""
    return getattr(kept, "before", None)


def memo_in(item: Any) -> Any:
    """The memoized function that a place of a class may hold: it, or what wraps it."""
    if isinstance(item, (staticmethod, classmethod)):
        return item.__func__
    return item.fget if isinstance(item, property) else item


def _forget(memo: Any) -> None:
    """Take what holds an abstract tensor out of a memoized function.

    `functools.cache` is a dict in C, and the entry goes; a bounded one is emptied.
    """
    with suppress(LookupError):
        known = Memo(memo)
        if known.bounded:
            if _holds_abstract([*known.table, *known.results()], 5):
                memo.cache_clear()
            return
        for key, content in list(known.table.items()):
            if _holds_abstract((key, content), 5):
                known.table.pop(key, None)


def _holds_abstract(items: Iterable[Any], depth: int = 6) -> bool:
    return any(isinstance(each, Abstract) for each in walk_heap(items, _referents, depth=depth))


def _referents(item: Any) -> Iterable[Any]:
    """What it holds by any means, if it is no code, module or tensor."""
    return () if type(item) in ATOMS or isinstance(item, CLOSED) else referents(item)
