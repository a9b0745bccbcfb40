"""What a program can reach of Python's state, looked at once each and kept as it is.

From the program and its arguments, attributes and containers are followed, and the names that code
mentions: globals, functions, methods.
"""

import functools
import gc
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import torch
from torch import nn

from foretrace import torch_api
from foretrace.ir.pydata.heap_walk import walk_heap
from foretrace.ir.pydata.members import CONTENT, attributes_of, own_length, slot_names
from foretrace.ir.pydata.memo import Memo
from foretrace.ir.symbols.builtin_call_sites import CASTS, uses_of
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.python_state.snapshot.code_references import (
    FOLLOWS,
    MEMO,
    UNNAMED,
    home,
    is_users,
    is_users_memo,
    members_of,
    mentioned_by,
    of_user,
    spaces_of,
)
from foretrace.python_state.snapshot.mentioned_names import MentionedNames
from foretrace.python_state.snapshot.objects import (
    ATOMS,
    AttributesSnapshot,
    ClassSnapshot,
    KeptFunctions,
    NamesSnapshot,
    Snapshot,
    snapshot_of,
)
from foretrace.python_state.snapshot.states_in_c import (
    SEEDING,
    StateSnapshot,
    shared_generators,
    states,
    way_of,
)
from foretrace.python_state.snapshot.torch_objects import (
    ModuleSnapshot,
    TensorSnapshot,
)

MOST: Final = 200_000
"""Objects that are looked at, the near ones first; what is farther away is not put back"""
LARGEST: Final = 5_000
"""Items of a container up to which they are followed; the container itself is kept in any case"""

CALLS: Final = 2
"""Methods that call methods, so deep; functions that call functions are followed to the end"""
TENSORS = ("_parameters", "_buffers")
PLAIN = frozenset({dict, list, set, tuple, frozenset, deque, OrderedDict, defaultdict})
"""Containers without attributes"""
WAYS: Final[tuple[tuple[Any, str], ...]] = (
    (nn.Module, "_module"), (torch.Tensor, "_tensor"), (type, "_of_class"),
    ((dict, list, set, deque), "_container"), ((tuple, frozenset), "_inside"),
    (types.FunctionType, "_function"), (types.CellType, "_cell"), (types.ModuleType, "_file"),
    (MEMO, "_memo"), ((), "_state"),
    ((types.MethodType, types.BuiltinMethodType, types.MethodWrapperType, staticmethod, classmethod,
      property, functools.partial, functools.cached_property), "_callable"),
)  # fmt: skip
"""By which method objects are looked at, by type; (): of those that `states` names"""


class ReachableState:
    """What was met on the way, with a snapshot of each.

    Args:
        roots: the program and its arguments.
        owners: modules whose parameters and buffers are replaced: the program never meets them.
    """

    def __init__(self, roots: Iterable[Any], owners: Iterable[nn.Module] = ()) -> None:
        self._borrowed = set(map(id, owners))
        self._kept: list[Snapshot] = []
        self._modules: dict[int, ModuleSnapshot] = {}
        self._memos: list[Any] = []
        self._memoized: list[tuple[dict[str, Any], str]] = []
        """globals that hold some of these"""
        self.opaque: list[Any] = []
        """generators, iterators: what changes in them is not to be put back"""
        self._seen: dict[int, Any] = {}
        self._met_modules: list[ModuleSnapshot] = []
        """also those that are borrowed"""
        self._names = MentionedNames()
        self._functions = KeptFunctions()
        self._bare: list[dict[str, Any]] = []
        """of functions and objects without attributes: the dicts for them"""
        self.mentioned: set[str] = set(UNNAMED)
        self._casting: dict[int, dict[str, Any]] = {}
        """the globals of functions that call `int` or `float`"""
        self._classes: dict[int, type] = {}
        self._met: dict[type, frozenset[str]] = {}
        """classes of objects, and the names of which their members were looked at"""
        self._queue: list[Any] = []
        """what the object that is looked at holds"""
        self._walk(roots)
        self._kept += self._functions.keep_texts(self.mentioned)

    @property
    def may_seed(self) -> bool:
        """Whether code may seed a generator that every thread shares, by a name of any kind."""
        met = any(id(each) in self._seen for each in shared_generators())  # by a method of it
        return met or not SEEDING.isdisjoint(self.mentioned)

    def look_further(self, found: Iterable[Any], others: Mapping[int, tuple[Any, Any]]) -> None:
        """Look at what these lead to, too, in the midst of a run.

        `others`: by id, what the run has put in the place of something else, and that.
        """
        new, kept = others.keys() - self._seen.keys(), len(self._kept)
        self._seen |= {key: others[key][0] for key in new}
        self._names.stood_for = others
        self._walk(found)
        self._queue, self._names.stood_for = [], {}
        for key in new:
            del self._seen[key]
        for each in self._kept[kept:]:
            if isinstance(each, StateSnapshot):
                each.exchange()

    # ---- the walk ----------------------------------------------------------------------------

    def _walk(self, roots: Iterable[Any]) -> None:
        ways: dict[type, Callable[[Any], None]] = {}  # as an attribute it would be a cycle

        def inside(item: Any) -> list[Any]:
            self._queue = []
            if (kind := type(item)) not in ways:
                ways[kind] = self._way(kind)
            ways[kind](item)
            return self._queue

        found, turns = [*roots], CALLS
        while found:
            with torch_api.no_torch_function():  # of classes of the user's
                deque(walk_heap(found, inside, most=MOST, leaves=ATOMS, seen=self._seen), maxlen=0)
            found = self._members_mentioned() if turns else []
            turns -= 1

    def _way(self, kind: type) -> Callable[[Any], None]:
        """How objects of a type are looked at."""
        for known, way in WAYS:
            if issubclass(kind, known or tuple(states())):
                found: Callable[[Any], None] = getattr(self, way)
                return found
        return self._object if home(kind) in FOLLOWS else self._unknown

    # ---- objects ----------------------------------------------------------------------------

    def _module(self, module: nn.Module) -> None:
        kept = self._modules[id(module)] = ModuleSnapshot(module)
        self._met_modules.append(kept)
        self._of_class(kept.kind)
        self._queue.extend(kept.others)
        borrowed = id(module) in self._borrowed
        for name, content in kept.contents.items():
            if borrowed and name == "_modules":
                self._borrowed.update(map(id, content.before.values()))
            if not (borrowed and name in TENSORS):
                self._inside(content.item)
                continue
            for tensor in content.before.values():
                if tensor is not None:
                    self._hooks_on(tensor)

    def _tensor(self, tensor: torch.Tensor) -> None:
        if not isinstance(tensor, Abstract):  # in whose attributes a run notes what it knows
            self._kept.append(kept := TensorSnapshot(tensor))
            self._queue.extend(kept.attributes.before.values())
        if torch_api.calls_function(type(tensor)):
            self._of_class(type(tensor))
        self._hooks_on(tensor)

    def _hooks_on(self, tensor: torch.Tensor) -> None:
        """The hooks of a tensor: a backward of the program's own runs them."""
        for table in filter(None, torch_api.hooks_of(tensor)):
            self._queue.extend(table.values())

    def _container(self, item: Any) -> None:
        self._kept.append(snapshot_of(item))
        self._inside(item)

    def _inside(self, item: Any) -> None:
        """The members of a container, without a call of its class."""
        if own_length(item) <= LARGEST:
            inside = referents(item)  # of a dict, keys and values
            self._queue.extend(each for each in inside if type(each) not in ATOMS)
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
            kept = NamesSnapshot(item, slots)
            self._kept.append(kept)
            self._queue.extend(kept.before.values())
        self._attributes(attributes_of(item))

    def _attributes(self, space: dict[str, Any] | None) -> None:
        if space is not None and id(space) not in self._seen:
            self._seen[id(space)] = space
            if not space:
                self._bare.append(space)
                return
            kept = AttributesSnapshot(space)
            self._kept.append(kept)
            self._queue.extend(kept.before.values())

    def _unknown(self, item: Any) -> None:
        """An object of a library's class: of its attributes, those that code mentions are kept."""
        space = attributes_of(item)
        if space is not None:
            self._names.add(space, type(item))
        if isinstance(item, Iterator) or (space is None and gc.is_tracked(item)):
            self.opaque.append(item)

    def _file(self, item: types.ModuleType) -> None:
        """A file that something holds: of what it has, what code mentions is kept."""
        if is_users(item):
            self._names.add(vars(item))

    def _state(self, item: Any) -> None:
        if (way := way_of(item)) is not None:
            self._kept.append(kept := StateSnapshot(item, way))
            self._queue.extend(way.inside(kept.before))

    # ---- code -------------------------------------------------------------------------------

    def _callable(self, item: Any) -> None:
        """A method, a partial, a property: the functions that it calls."""
        names = ("__self__", "__func__", "func", "args", "keywords", "fget", "fset")
        self._queue.extend(getattr(item, name, None) for name in names)

    def _memo(self, memo: Any) -> None:
        self._memos.append(memo)
        self._queue.append(memo.__wrapped__)
        self._results(memo)

    def _results(self, memo: Any) -> None:
        """What a memoized function of the user's keeps, as the program may change it."""
        if is_users_memo(memo):
            with suppress(LookupError):
                self._queue.extend(islice(Memo(memo).results(), LARGEST))

    def _cell(self, cell: types.CellType) -> None:
        kept = NamesSnapshot(cell, [CONTENT])
        self._kept.append(kept)
        self._queue.append(kept.before[CONTENT])

    def _function(self, function: types.FunctionType) -> None:
        """What it closes over, its defaults and attributes, and what its code mentions."""
        queue = self._queue
        queue.extend(function.__closure__ or ())
        queue.extend(function.__defaults__ or ())
        queue.extend((function.__kwdefaults__ or {}).values())
        found = mentioned_by(function)
        if found.users:
            self._of_users(function)
        self.mentioned |= found.names
        if not CASTS.isdisjoint(found.names) and uses_of(function)[0]:
            self._casting[id(function.__globals__)] = function.__globals__
        self._memos += found.memos
        self._memoized += found.memoized
        for memo in found.memos:
            self._results(memo)
        queue += found.called
        if found.values:
            queue.extend([table.get(name) for table, name in found.values])
        for space, name in found.bound:
            self._queue.append(self._names.note(space, name))
        for named in filter(of_user, found.functions):
            self._of_users(named)
        for kind in found.classes:
            self._of_class(kind)

    def _of_users(self, function: types.FunctionType) -> None:
        """The attributes of a function; torch keeps what it likes in those of its own."""
        self._functions.add(function)
        self._attributes(function.__dict__)

    def _class(self, kind: type) -> None:
        """The attributes of a class and of those that it derives from."""
        for base in kind.__mro__:
            if id(base) not in self._classes and home(base) == "user":
                self._classes[id(base)] = base
                self._kept.append(ClassSnapshot(base))

    def _of_class(self, kind: type) -> None:
        """A class, met itself or by an object: its attributes, and its methods that may run."""
        if kind not in self._met:
            self._met[kind] = frozenset()
            self._class(kind)
            if home(type(kind)) == "user":  # whose attributes are the class's, too
                self._of_class(type(kind))

    def _members_mentioned(self) -> list[Any]:
        """What of these classes and objects has a name that code mentions, and was not met yet."""
        found, known = list[Any](), frozenset(self.mentioned)
        new = {looked: known - looked for looked in set(self._met.values())}
        for kind, looked in self._met.items():
            found += members_of(kind, new[looked]).values()
        self._met = dict.fromkeys(self._met, known)
        return [*found, *self._names.note_all(known)]


def referents(item: Any) -> list[Any]:
    """What an object holds by any means, as Python's collector knows it.

    The attributes of an object as a dict hold nothing by Python 3.13.0: the object does itself.
    """
    found = gc.get_referents(item)
    return found if found or type(item) is not dict else list(item.values())
