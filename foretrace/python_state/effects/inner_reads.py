"""What a part of the program reads that runs again by itself: it has to find the same again.

The forward of a Function runs again where a graph calls it: before what the program changes is
left. The function of a checkpoint runs again in eager's backward: when all of it is left.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.autograd.function import Function

from foretrace.ir.program.call_requirements import ModuleState
from foretrace.ir.pydata.location import WAYS
from foretrace.ir.pydata.members import (
    MISSING,
    SYMBOLIC,
    cell_content,
    own_items,
    own_kind,
    own_length,
)
from foretrace.ir.pydata.plain_data import plain, same
from foretrace.ir.pydata.read_facts import (
    AttributeNames,
    ContainerItems,
    ContainerKeys,
    ContainerLength,
    ContainerMembers,
    ObjectClass,
    ReadFact,
    ReadLocation,
    ShownContent,
)
from foretrace.ir.source.call_site import function_of
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.python_state.access.monitor import AccessMonitor
from foretrace.python_state.reads.outside_reads import reading_by
from foretrace.python_state.snapshot.heap import HeapSnapshot
from foretrace.tracer.recorder.function_target import FunctionCall

TRAINING: Final = "training"


class InnerReads(AccessMonitor):
    """Watches one run of such a part; what it has read is noted when it ends.

    Args:
        function: what runs first, or the class of a Function.
        args: its arguments.
    """

    def __init__(self, function: Any, args: Iterable[Any]) -> None:
        super().__init__()
        self._function = function
        self._roots = [each for each in (function, *args) if not isinstance(each, torch.Tensor)]
        self._facts, self._met_modules = list[ReadFact](), list[ModuleState]()
        self._stand_ins = dict[int, tuple[Any, Any]]()
        self._mentioned = frozenset[str]()
        self.own: str | None = None
        """what it changes itself, if anything"""

    @contextmanager
    def during(self, host: AccessMonitor, *, twice: bool = False) -> Iterator[None]:
        """Watch inside, beside the watch of the whole program.

        `twice`: what it changes itself is looked for everywhere, as it would be done again.
        """
        with host:
            before = HeapSnapshot(self._roots) if twice else None
        with host.along(self, function_of(self._function)):
            yield
        with host:
            self._find(host, before)

    def _find(self, host: AccessMonitor, before: HeapSnapshot | None) -> None:
        self._stand_ins = dict(host.places.borrowed)
        own = [*self.changes(), *(before.bound() if before is not None else ())]
        self.own = next((change.name for change in own), None)
        reading = reading_by(self)
        roots = [(type(each).__name__, each) for each in self._roots]
        reading.read((), self.places.values(), roots)
        self._facts, self._met_modules = reading.found, reading.met
        self._mentioned = reading.mentioned

    def changed(self, stands: Mapping[int, Any] | None = None) -> str | None:
        """The name of something that it changes, or that is now other than it was for it.

        `stands`: what tensors of the run stand for, by their ids; a tensor that the program has
        computed is none of these, and who reads its values is seen. None: the run is not over,
        and its tensors are where they were.
        """
        if self.own is not None:
            return self.own
        now = _Now(self._stand_ins, self._mentioned, stands)
        found = (fact.name for fact in self._facts if not now.holds(fact))
        name = next(found, None)
        if name is None:
            others = (state for state in self._met_modules if not now.as_was(state))
            name = next((state.path for state in others), None)
        return name


class PartsOfRun:
    """Watches the parts of one run.

    Args:
        outside: watches the whole program; None: nobody does.
    """

    def __init__(self, outside: AccessMonitor | None) -> None:
        self._outside = outside
        self._alone: AccessMonitor | None = None
        """watches the outermost of the parts that run, where nobody watches the whole program"""
        self._forwards = list[tuple[InnerReads, list[FunctionCall]]]()

    @contextmanager
    def watched(
        self, function: Any, args: Iterable[Any], *, twice: bool = False
    ) -> Iterator[InnerReads]:
        """Watch a part that runs inside, as `InnerReads.during` has it."""
        part = InnerReads(function, args)
        with self._host() as host, part.during(host, twice=twice):
            yield part

    @contextmanager
    def changes_beyond(self, root: Any) -> Iterator[list[str]]:
        """The list takes the names of what is changed inside and can be reached from a root."""
        with self._host() as host:
            with host:
                before = HeapSnapshot([root])
            yield (found := list[str]())
            with host:
                found += [change.name for change in before.bound()]

    @contextmanager
    def _host(self) -> Iterator[AccessMonitor]:
        """Who watches what is around a part."""
        known = self._outside or self._alone
        if known is not None:
            yield known
            return
        self._alone = host = AccessMonitor()
        try:
            with host.watching(None):
                yield host
        finally:
            self._alone = None

    @contextmanager
    def of_forward(
        self, function: type[Function], args: tuple[Any, ...]
    ) -> Iterator[list[FunctionCall]]:
        """Watch the forward of a Function; the list takes the call of it."""
        with self.watched(function, args) as part:
            yield (calls := list[FunctionCall]())
        self._forwards.append((part, calls))

    def settle(self, real: Mapping[int, Any]) -> None:
        """Note at the calls what their forwards read and a call would find otherwise.

        Python's state is as it was before the run. `real`: as `stands` of `InnerReads.changed`.
        """
        for part, calls in self._forwards:
            for call in calls:
                call.reads_changed = part.changed(real)
        self._forwards.clear()


class _Now:
    """Whether Python's state is as facts say.

    Args:
        stand_ins: what the run found in the place of something else, and that, by id.
        mentioned: names of attributes.
        stands: as `InnerReads.changed` has it.
    """

    def __init__(
        self,
        stand_ins: Mapping[int, tuple[Any, Any]],
        mentioned: frozenset[str],
        stands: Mapping[int, Any] | None,
    ) -> None:
        self._mentioned, self._over = mentioned, stands is not None
        self._real = {key: real for key, (_, real) in stand_ins.items()} | dict(stands or {})
        self._filled = {
            id(each)
            for stand_in, real in stand_ins.values()
            if type(real) in WAYS and type(stand_in) is not type(real)
            for each in (stand_in, real)
        }
        self._ways: dict[type, Callable[[Any], bool]] = {
            AttributeNames: self._names, ContainerLength: self._length, ContainerKeys: self._keys,
            ContainerItems: self._items, ContainerMembers: self._members,
            ObjectClass: self._class, ShownContent: self._shown,
        }  # fmt: skip

    def holds(self, fact: ReadFact) -> bool:
        """Whether what a fact is about is as it was."""
        return self._ways.get(type(fact), self._place)(fact)

    def as_was(self, state: ModuleState) -> bool:
        """Whether a module is in the same mode, and has what it had."""
        space = vars(state.module)
        if TRAINING in self._mentioned and space[TRAINING] is not state.training:
            return False
        tables = ((space[name], before) for name, before in state.registered.items())
        return all(
            [*now] == [*before] and all(self._same(before[key], now[key]) for key in now)
            for now, before in tables
        )

    def _as_found(self, item: Any) -> Any:
        """What a stand-in stands for, once the run is over."""
        return self._real.get(id(item), item) if self._over else item

    def _same(self, before: Any, now: Any, *, itself: bool = False) -> bool:
        if id(before) in self._filled or id(now) in self._filled:
            return False
        if now is before or now is self._as_found(before):
            return True
        if issubclass(type(before), SYMBOLIC):
            return self._over and bool(before.node.expr.is_Symbol)  # else it is computed
        if isinstance(before, Abstract):  # computed: whoever reads it is seen
            return self._over and isinstance(now, torch.Tensor)
        before = self._as_found(before)
        return not itself and plain(before) and plain(now) and same(now, before)

    def _place(self, fact: ReadLocation) -> bool:
        return self._same(fact.before, self._there(fact), itself=fact.itself)

    def _there(self, fact: ReadLocation) -> Any:
        """What a place holds now; MISSING: nothing."""
        holder, key = self._as_found(fact.holder), fact.key
        if fact.how == "cell":
            return cell_content(holder)
        if fact.how == "attribute":
            return getattr(holder, str(key), MISSING)
        if own_kind(holder) is dict:
            return dict.get(holder, key, MISSING)
        try:
            kind: Any = own_kind(holder) or type(holder)
            return kind.__getitem__(holder, key)
        except LookupError:
            return MISSING

    def _names(self, fact: AttributeNames) -> bool:
        asked = self._mentioned | fact.by_library
        return asked.intersection(fact.holder) <= fact.before

    def _length(self, fact: ContainerLength) -> bool:
        holder = self._as_found(fact.holder)
        return id(holder) not in self._filled and own_length(holder) == fact.before

    def _keys(self, fact: ContainerKeys) -> bool:
        now = [key for key, _ in own_items(self._as_found(fact.holder))]
        return len(now) == len(fact.keys) and all(map(self._same, fact.keys, now))

    def _items(self, fact: ContainerItems) -> bool:
        now = {id(key): item for key, item in own_items(fact.holder)}
        return self._length(fact) and all(
            self._same(item, now.get(id(key), MISSING)) for key, item in fact.items
        )

    def _members(self, fact: ContainerMembers) -> bool:
        now = {_by_identity(item) for _, item in own_items(fact.holder)}
        return now == set(map(_by_identity, fact.members))

    def _class(self, fact: ObjectClass) -> bool:
        return type(fact.holder) is fact.before

    def _shown(self, fact: ShownContent) -> bool:
        return self._same(fact.before, fact.ask(fact.holder))


def _by_identity(item: object) -> object:
    return (type(item), item) if plain(item) else id(item)
