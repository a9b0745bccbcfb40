"""What a program can reach of Python's state, as it was before the run.

From the program and its arguments, attributes and containers are followed, and the names that code
mentions: globals, functions, methods. Whatever the run leaves there, at any moment and in any way,
is put back afterwards.
"""

import functools
import gc
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final
from weakref import getweakrefcount

import torch
from torch import nn

from foretrace import torch_api
from foretrace.ir.pydata.members import (
    CONTENT,
    attributes_of,
    own_length,
    reached,
    referents,
    slot_names,
)
from foretrace.ir.pydata.places import Change, Entry, Place
from foretrace.ir.source.code_owner import origin
from foretrace.ir.symbols.builtin_call_sites import CASTS, NameOfModule, places_of, uses_of
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.python_state.snapshot.code_references import (
    FOLLOWS,
    MEMO,
    UNNAMED,
    functions_in,
    home,
    is_users,
    members_of,
    mentioned_by,
    spaces_of,
)
from foretrace.python_state.snapshot.objects import (
    ATOMS,
    Kept,
    KeptAttributes,
    KeptClass,
    KeptDict,
    KeptItems,
    KeptModule,
    KeptNames,
    KeptState,
    KeptTensor,
    kept_container,
    states,
)
from foretrace.python_state.snapshot.restore import Called, called, changes_in, put_all_back

MOST: Final = 20_000
"""Objects that are looked at, the near ones first; what is farther away is not put back"""
LARGEST: Final = 5_000
"""Items of a container up to which they are followed; the container itself is kept in any case"""

CALLS: Final = 2
"""Methods that call methods, so deep; functions that call functions are followed to the end"""
INSIDE = frozenset({dict, tuple, types.BuiltinMethodType})
"""What is looked through for one who asks what holds an object, and for nobody else"""
TENSORS = ("_parameters", "_buffers")
PLAIN = frozenset({dict, list, set, tuple, frozenset, deque, OrderedDict, defaultdict})
"""Containers without attributes"""
CLOSED = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.FrameType,
    nn.Module,
    torch.Tensor,
)
"""What nobody looks into for a tensor of the run; for frames see `ir/source/returned_frames.py`"""

WAYS: Final[tuple[tuple[Any, str], ...]] = (
    (nn.Module, "_module"), (torch.Tensor, "_tensor"), (type, "_class"),
    ((dict, list, set, deque), "_container"), ((tuple, frozenset), "_inside"),
    (types.FunctionType, "_function"), (types.CellType, "_cell"), (types.ModuleType, "_file"),
    (MEMO, "_memo"), ((), "_state"),
    ((types.MethodType, types.BuiltinMethodType, staticmethod, classmethod, property,
      functools.partial, functools.cached_property), "_callable"),
)  # fmt: skip
"""By which method objects are looked at, by type; (): of those that `states` names"""


class HeapSnapshot:
    """All of it; `put_back` after the run.

    Args:
        roots: the program, and what it is given.
        owners: modules whose parameters and buffers are replaced: the program never meets them.
    """

    def __init__(self, roots: Iterable[Any], owners: Iterable[nn.Module] = ()) -> None:
        self._lent = set(map(id, owners))
        self._kept: list[Kept] = []
        self._modules: dict[int, KeptModule] = {}
        self._memos: list[Any] = []
        self.opaque: list[Any] = []
        """generators, iterators: what changes in them is not to be put back"""
        self._seen: dict[int, Any] = {}
        self._met_modules: list[KeptModule] = []
        """also those that are lent"""
        self._containers: set[int] | None = None
        """the ids of what their attributes are that are containers, once somebody asks"""
        self._names: dict[int, KeptNames] = {}
        self._bare: list[dict[str, Any]] = []
        """of functions and objects without attributes: the dicts for them"""
        self._foreign: list[dict[str, Any]] = []
        """the attributes of objects of a library's classes (argparse.Namespace), and of files"""
        self.mentioned: set[str] = set(UNNAMED)
        self._casting: dict[int, dict[str, Any]] = {}
        """the globals of functions that call `int` or `float`"""
        self._met: dict[type, set[str]] = {}
        """classes of objects, and the members that were looked at"""
        self.called = dict[int, Called]()
        """the dicts of optimizers, by id"""
        self._changed: list[Kept] | None = None
        """what was found changed after the run"""
        self._queue = deque(roots)
        with torch_api.no_torch_function():
            self._walk()

    def lend(self, module: nn.Module) -> KeptModule:
        """What is kept of a module, for one who puts it back himself."""
        return self._modules.pop(id(module), None) or KeptModule(module)

    @property
    def met(self) -> set[int]:
        """The ids of what was looked at, which lives as long as this."""
        return set(self._seen)

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
        self._queue.extend([by_id[key] for key in found])
        self._walk()
        return found

    def casts(self) -> list[NameOfModule]:
        """The globals in which `int` and `float` may stand for others while the program runs."""
        return places_of(self._casting.values(), functions_in)

    def put_back(self) -> list[str]:
        """Leave everything as it was; gives what could not be, in words."""
        for memo in self._memos:
            _forget(memo)
        failed = put_all_back(self._all())
        held = [type(each).__name__ for each in self.opaque if _holds_abstract([each])]
        return [*failed, *(f"a {name}, which holds a tensor of the run" for name in held)]

    def name_modules(self) -> dict[int, str]:
        """Names for the tensors of modules that an object holds (`self.model`), by id."""
        modules = [x for x in self._seen.values() if isinstance(x, nn.Module)]
        inside = {id(x) for each in modules for x in torch_api.submodule_table(each).values()}
        roots = [x for x in modules if id(x) not in inside and id(x) not in self._lent]
        named = [(self.name(each), each) for each in roots]
        return {
            id(tensor): f"{name}.{path}"
            for name, module in named
            if name.isidentifier()
            for each in (module.named_parameters, module.named_buffers)
            for path, tensor in each()
        }

    def name_optimizers(self, names: dict[int, str]) -> dict[int, str]:
        """Names for what optimizers keep of parameters, by id; `names`: of the parameters."""
        found = dict[int, str]()
        optimizers = [x for x in self._seen.values() if isinstance(x, torch.optim.Optimizer)]
        for optimizer in optimizers:
            groups = optimizer.param_groups
            self.called |= {id(g): called(f"group {i}") for i, g in enumerate(groups)}
            every = [p for group in groups for p in group["params"]]
            inner = {id(p): names.get(id(p), f"parameter {i}") for i, p in enumerate(every)}
            self.called[id(optimizer.state)] = called("the optimizer", inner)
            for key, kept in dict.items(optimizer.state):
                if isinstance(kept, dict) and id(key) in inner:
                    about = self.called[id(kept)] = called(inner[id(key)])
                    found |= {id(item): about.of(name) for name, item in kept.items()}
        return found

    def keeps(self, place: Place) -> bool:
        """Whether what is in a place is a container of which the content is kept."""
        if isinstance(place, Entry):
            return self._knew(place.holder)
        return not place.bound and self._knew(place.before)

    def _knew(self, item: Any) -> bool:
        if id(item) in self._seen:
            return True
        if self._containers is None:
            held = (each for kept in self._met_modules for each in kept.containers())
            self._containers = set(map(id, held))
        return id(item) in self._containers

    def places_of(self, item: Any) -> int:
        """How many of the places that are kept held an object."""
        return sum(
            each is item for kept in self._all() for each in gc.get_referents(_content(kept))
        )

    def holders_of(self, item: Any) -> int | None:
        """How many places of what a program can reach hold an object; None if nobody can tell.

        Beside `places_of` also those of which nothing is kept, as they cannot be bound anew: in
        tuples, methods that are bound to it, what a library's objects have in C.
        """
        if len(self._seen) >= MOST:
            return None
        seen = dict[int, Any]()
        for each in (*self._seen.values(), *self._foreign):
            seen[id(each)] = each
            seen |= {id(x): x for x in gc.get_referents(each) if type(x) in INSIDE}
        return sum(held is item for each in seen.values() for held in gc.get_referents(each))

    def itself(self, change: Change) -> Change:
        """The change, which tells whether it has bound a name to an object that was there."""
        after = change.after
        named = change.rebound and type(change.place) in (Place, Entry)
        plain_one = type(after) in ATOMS or isinstance(after, (tuple, frozenset, torch.Tensor))
        known = named and not plain_one and self._knew(after)
        return replace(change, itself=True) if known else change

    def bound(self) -> Iterator[Change]:
        """What the run has left changed."""
        self._changed = [each for each in self._all() if not each.intact]
        for kept in self._changed:
            if not isinstance(kept, KeptState):
                yield from changes_in(kept, self.name)

    def undo(self) -> list[Change]:
        """Put back what the run has left changed, and give it.

        What holds a tensor of the run stays, for `leaks.py` to find; states, for `check_states`;
        what holds another tensor now, as a run makes none: another thread has put it there.
        """
        found = list[Change]()
        for kept in self._all() if self._changed is None else self._changed:
            if not (kept.intact or isinstance(kept, KeptState) or _holds_new_tensor(kept)):
                found += changes_in(kept, self.name)
                kept.put_back()
        return found

    def _all(self) -> Iterator[Kept]:
        for module in self._modules.values():
            yield from module.parts()
        yield from self._names.values()
        yield from self._kept
        for space in filter(None, self._bare):
            kept = KeptAttributes(space)
            kept.before = {}
            yield kept

    def changed(self) -> list[tuple[Any, str]]:
        """The generators and arrays in another state now; each with an attribute that holds it."""
        return [
            (each.item, self.name(each.item))
            for each in self._kept
            if isinstance(each, KeptState) and not each.intact
        ]

    def name(self, item: Any) -> str:
        """The name of what holds an object; its type where none does."""
        if id(item) in self.called:
            return self.called[id(item)]
        modules = [vars(each) for each in self._seen.values() if isinstance(each, nn.Module)]
        kept = [each.before for each in self._all() if isinstance(each, (KeptNames, KeptDict))]
        spaces = [*modules, *kept]
        names = (name for held in spaces for name, each in held.items() if each is item)
        return next((name for name in names if isinstance(name, str)), f"a {type(item).__name__}")

    def _walk(self) -> None:
        ways: dict[type, Callable[[Any], None]] = {}  # as an attribute it would be a cycle
        self._walk_queue(ways)
        for _ in range(CALLS):
            self._members_mentioned()
            self._walk_queue(ways)

    def _walk_queue(self, ways: dict[type, Callable[[Any], None]]) -> None:
        queue, seen = self._queue, self._seen
        while queue:
            item = queue.popleft()
            kind = type(item)
            if kind not in ATOMS and id(item) not in seen and len(seen) < MOST:
                seen[id(item)] = item
                way = ways.get(kind)
                if way is None:
                    way = ways[kind] = self._way(kind)
                way(item)

    def _way(self, kind: type) -> Callable[[Any], None]:
        """How objects of a type are looked at."""
        for known, way in WAYS:
            if issubclass(kind, known or tuple(states())):
                found: Callable[[Any], None] = getattr(self, way)
                return found
        return self._object if home(kind) in FOLLOWS else self._unknown

    # ---- objects ----------------------------------------------------------------------------

    def _module(self, module: nn.Module) -> None:
        kept = self._modules[id(module)] = KeptModule(module)
        self._met_modules.append(kept)
        self._of_class(kept.kind)
        self._queue.extend(kept.others)
        lent = id(module) in self._lent
        for name, content in kept.contents.items():
            if lent and name == "_modules":
                self._lent.update(map(id, content.before.values()))
            if not (lent and name in TENSORS):
                self._inside(content.item)
                continue
            for tensor in content.before.values():
                if tensor is not None:
                    self._hooks_on(tensor)

    def _tensor(self, tensor: torch.Tensor) -> None:
        kept = KeptTensor(tensor)
        self._kept.append(kept)
        self._queue.extend(kept.attributes.before.values())
        self._hooks_on(tensor)

    def _hooks_on(self, tensor: torch.Tensor) -> None:
        """The hooks of a tensor: a backward of the program's own runs them."""
        for table in torch_api.hooks_of(tensor):
            self._queue.extend(table.values() if table else ())

    def _container(self, item: Any) -> None:
        self._kept.append(kept_container(item))
        self._inside(item)

    def _inside(self, item: Any) -> None:
        """The members of a container, without a call of its class."""
        if own_length(item) <= LARGEST:
            held = referents(item)  # of a dict, keys and values
            self._queue.extend(each for each in held if type(each) not in ATOMS)
        if type(item) not in PLAIN:
            self._object(item)

    def _object(self, item: Any) -> None:
        """The attributes and slots of an object; its class."""
        kind = type(item)
        self._of_class(kind)
        if kind.__module__.startswith("torch.optim"):  # its code counts as the program's
            found: Any = kind
            self._casting |= {id(space): space for space in spaces_of(found)}
        slots = slot_names(kind)
        if slots:
            kept = KeptNames(item, slots)
            self._kept.append(kept)
            self._queue.extend(kept.before.values())
        self._attributes(attributes_of(item))

    def _attributes(self, space: dict[str, Any] | None) -> None:
        if space is not None and id(space) not in self._seen:
            self._seen[id(space)] = space
            if not space:
                self._bare.append(space)
                return
            kept = KeptAttributes(space)
            self._kept.append(kept)
            self._queue.extend(kept.before.values())

    def _unknown(self, item: Any) -> None:
        """An object of a library's class: of its attributes, those that code mentions are kept."""
        space = attributes_of(item)
        if space is not None:
            self._foreign.append(space)
        if isinstance(item, Iterator) or (space is None and gc.is_tracked(item)):
            self.opaque.append(item)

    def _file(self, item: types.ModuleType) -> None:
        """A file that something holds: of what it has, what code mentions is kept."""
        if is_users(item):
            self._foreign.append(vars(item))

    def _state(self, item: Any) -> None:
        self._kept += [
            KeptState(item, way) for kind, way in states().items() if isinstance(item, kind)
        ]

    # ---- code -------------------------------------------------------------------------------

    def _callable(self, item: Any) -> None:
        """A method, a partial, a property: what it is made of."""
        names = ("__self__", "__func__", "func", "args", "keywords", "fget", "fset")
        self._queue.extend(getattr(item, name, None) for name in names)

    def _memo(self, memo: Any) -> None:
        self._memos.append(memo)
        self._queue.append(memo.__wrapped__)

    def _cell(self, cell: types.CellType) -> None:
        kept = KeptNames(cell, [CONTENT])
        self._kept.append(kept)
        self._queue.append(kept.before[CONTENT])

    def _function(self, function: types.FunctionType) -> None:
        """What it closes over, its defaults and attributes, and what its code mentions."""
        queue = self._queue
        if function.__closure__:
            queue.extend(function.__closure__)
        if function.__defaults__:
            queue.extend(function.__defaults__)
        if function.__kwdefaults__:
            queue.extend(function.__kwdefaults__.values())
        self._of_function(function)
        found = mentioned_by(function)
        self.mentioned |= found.names
        if not CASTS.isdisjoint(found.names) and uses_of(function)[0]:
            self._casting[id(function.__globals__)] = function.__globals__
        self._memos += found.memos
        queue += found.called
        if found.values:
            queue.extend([table.get(name) for table, name in found.values])
        for space, name in found.bound:
            kept = self._names.setdefault(id(space), KeptNames(space))
            self._queue.append(kept.note(name))
        for named in found.functions:
            self._of_function(named)
        for kind in found.classes:
            self._class(kind)

    def _of_function(self, function: types.FunctionType) -> None:
        """The attributes of a function of the user's; torch keeps what it likes in its own."""
        if origin(function.__code__, function.__globals__) == "user":
            self._attributes(function.__dict__)

    def _class(self, kind: type) -> None:
        """The attributes of a class and of those that it is made from."""
        for base in kind.__mro__:
            if id(base) not in self._seen and home(base) == "user":
                self._seen[id(base)] = base
                self._kept.append(KeptClass(base))

    def _of_class(self, kind: type) -> None:
        """The class of an object: its attributes, and its methods as far as they may run."""
        if kind not in self._met:
            self._met[kind] = set()
            self._class(kind)

    def _members_mentioned(self) -> None:
        """Look at what of these classes has a name that code mentions."""
        for kind, done in self._met.items():
            for name, member in members_of(kind, self.mentioned - done):
                if name not in done:
                    done.add(name)
                    self._queue.append(member)
        for space in self._foreign:
            kept = self._names.setdefault(id(space), KeptNames(space))
            for name in space.keys() & self.mentioned - kept.before.keys():
                self._queue.append(kept.note(name))


def _content(kept: Kept) -> Any:
    """What is kept of an object."""
    return getattr(kept, "before", None)


def _forget(memo: Any) -> None:
    """Take what holds an abstract tensor out of a memoized function.

    `functools.cache` is a dict in C, and the entry goes; a bounded one is emptied.
    """
    tables = [each for each in gc.get_referents(memo) if type(each) is dict]
    for table in tables:
        for key, held in list(table.items()) if table is not memo.__dict__ else ():
            if not _holds_abstract((key, held), 5):
                continue
            if memo.cache_parameters()["maxsize"] is not None:
                memo.cache_clear()
                return
            table.pop(key, None)


def _holds_new_tensor(kept: Kept) -> bool:
    """Whether there is a tensor in it that was not: of the run, or a real one."""
    if isinstance(kept, KeptItems) or type(kept) is KeptDict:
        there = set(map(id, referents(kept.before)))
        new = (each for each in referents(kept.item) if id(each) not in there)
        if any(isinstance(each, torch.Tensor) for each in new):
            return True
    held = vars(kept.item).values() if isinstance(kept, KeptClass) else (kept.item,)
    return _holds_abstract(held, 3)


def _holds_abstract(items: Iterable[Any], depth: int = 6) -> bool:
    return any(isinstance(each, Abstract) for each in reached(items, _referents, depth))


def _referents(item: Any) -> Iterable[Any]:
    """What it holds by any means, if it is no code, module or tensor."""
    return () if type(item) in ATOMS or isinstance(item, CLOSED) else referents(item)
