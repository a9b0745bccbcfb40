"""What the program may read of modules and of Python state outside, as guards.

Modules: train() or eval(), which parameters, buffers and submodules there are, which hooks. All
else is what `python_state/reads/state_reads.py` has noted: plain data is compared by value,
functions, classes and all else by identity.
"""

import sys
import types
from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

from foretrace import torch_api
from foretrace.errors import Frame, LazyFrame
from foretrace.ir.program.call_requirements import ModuleState, PythonGuards
from foretrace.ir.pydata.members import MISSING, OWN, own_kind
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
from foretrace.lowering.emit.python_source import Source
from foretrace.python_state.reads.object_parts import HOOKS
from foretrace.runtime.guards.guard import Check, Checks
from foretrace.runtime.guards.state_compared import (
    Added,
    Items,
    Members,
    NotInTables,
    Order,
    Shows,
    same_items,
)

AFTER_ONE = (
    "the program left it there itself: capture after a call of it (warm=True does one), or use"
    " foretrace.compile"
)
"""A way out of a guard that the second call breaks"""

AROUND = "capture under what is on around the call, or use foretrace.compile"
"""A way out where torch is in another state"""
BY_KEY = (dict, list, tuple, deque, types.MappingProxyType)
"""Containers whose `[key]` runs nothing of the user's; for others that of their base is taken"""

HAS_VERSIONS: Final = sys.version_info < (3, 12)
"""Whether Python counts the changes of a dict; later ones store attributes inline, uncounted"""
READ = object.__getattribute__
"""How an attribute is read of a class that does not say it itself"""


class StateGuards(Checks):
    """The checks of one record's modules and of the Python state that it read."""

    def __init__(self, source: Source, python: PythonGuards, *, by_torch: bool = False) -> None:
        """`by_torch`: torch's own guard looks at what it knows of its state."""
        super().__init__(source)
        self.mentioned = python.mentioned
        for row, before in python.ambient:
            if not (by_torch and row.known_to_torch):
                self._ambient(row, before)
        for state in (*python.modules, *python.met):
            self._module(state)
        for each in python.reads:
            if isinstance(each, ObjectClass):
                self._class(each)
        for guard in python.reads:
            self._guard(guard)
        self._elsewhere(python)

    def add(
        self,
        condition: str,
        reason: str,
        at: Frame | LazyFrame | None = None,
        do: str = "",
        found: str = "",
    ) -> None:
        """One more check, of what the program may change itself."""
        self.checks.append(Check(condition, reason, at=at, do=do, found=found, of="state"))

    def _ambient(self, row: torch_api.Row, before: Any) -> None:
        """Check a row of torch's ambient state."""
        are = "are not as they were" if row.name.endswith("s") else "is not as it was"
        words = repr(f"{row.name} {are} when the program was captured")
        if row.changed is not None and not any(before):
            condition = f"not {self.source.bind(row.changed, 'changed')}()"
        else:
            now, then = self.source.bind(row.read, "now"), self.source.bind(before, "then")
            condition = f"{now}() == {then}"
        self.checks.append(Check(condition, words, do=AROUND))

    # ---- modules -----------------------------------------------------------------------------

    def _module(self, state: ModuleState) -> None:
        module, path = state.module, state.path or type(state.module).__name__
        space = self.source.bind(vars(module), "attributes")
        other = "eval()" if state.training else "train()"
        words = repr(f"{path} is in {other} mode, unlike in the capture")
        self.checks.append(Check(f"{space}['training'] is {state.training}", words))
        self._tables(path, state)
        self._hooks(path, state)

    def _tables(self, path: str, state: ModuleState) -> None:
        """Which parameters, buffers and submodules there are."""
        children = torch_api.submodule_table(state.module)
        live = (*torch_api.tensor_tables(state.module), children)
        before = [
            state.registered.get(name, {}) for name in ("_parameters", "_buffers", "_modules")
        ]
        names = [self.source.bind(table, "table") for table in live]
        more = repr(f"{path} has other parameters, buffers or submodules")
        none = [name for name, table in zip(names, before, strict=True) if not table]
        if none:
            self.add(f"not ({' or '.join(none)})", more)
        for here, now, table in zip(names, live, before, strict=True):
            known = [*map(str, table)]
            keys, order = (
                self.source.bind(known, "keys"),
                self.source.bind(Order(table).same, "order"),
            )
            found = [(f"([*{here}] == {keys} or {order}({here}))", more)] if known else []
            for name, item in table.items():
                if item is None:
                    words = repr(f"{path}.{name} is no longer None")
                    found.append((f"{here}[{name!r}] is None", words))
                elif here == names[-1]:
                    module = self.source.bind(item, "module")
                    words = repr(f"{path}.{name} is another module")
                    found.append((f"{here}[{name!r}] is {module}", words))
            if found:
                self._unchanged(here, now, found, as_it_was=same_items(now, table))

    def _unchanged(
        self, name: str, table: Any, checks: Sequence[tuple[str, str]], *, as_it_was: bool
    ) -> None:
        """Checks of one dict: none takes place while it has the same version.

        `checks`: conditions, each with what to say where it fails; `as_it_was`: they hold now.
        """
        conditions = " and ".join(condition for condition, _ in checks)
        (_, reason), *others = reversed(checks)
        for condition, words in others:
            reason = f"({reason} if {condition} else {words})"
        if HAS_VERSIONS and as_it_was and type(table) is dict:
            version = self.source.bind(torch_api.dict_version, "version")
            conditions = f"{version}({name}) == {torch_api.dict_version(table)} or {conditions}"
        self.add(conditions, reason)

    def _hooks(self, path: str, state: ModuleState) -> None:
        names = [self.source.bind(vars(state.module)[name], "hooks") for name in HOOKS]
        before = [tuple(state.registered.get(name, {}).values()) for name in HOOKS]
        if not any(before):
            words = repr(f"{path} has a hook that the capture lacked")
            self.add(f"not ({' or '.join(names)})", words)
            return
        for name, hooks in zip(names, before, strict=True):
            known = self.source.bind(hooks, "hooks")
            self.add(f"tuple({name}.values()) == {known}", repr(f"{path} has other hooks"))

    def _elsewhere(self, python: PythonGuards) -> None:
        """Check that no module has a tensor that the program read only elsewhere."""
        tables = [table for s in python.modules for table in torch_api.tensor_tables(s.module)]
        own = {id(tensor) for table in tables for tensor in table.values()}
        tensors = chain.from_iterable(each.tensors for each in python.reads)
        others = [each for each in tensors if id(each) not in own]
        if others and own:
            elsewhere = self.source.bind(NotInTables(others, tables).hold, "elsewhere")
            self.add(
                f"{elsewhere}()", repr("a module has a tensor now that was held elsewhere alone")
            )

    # ---- what else was read ------------------------------------------------------------------

    def _class(self, known: ObjectClass) -> None:
        """The class of an object, and its dict."""
        bind = self.source.bind
        item, kind = bind(known.holder, "object"), bind(known.before, "kind")
        condition = f"type({item}) is {kind}"
        if known.space is not None:
            space = f"{item}.__dict__"
            if type.__getattribute__(known.before, "__getattribute__") is not READ:
                space = f"{bind(READ, 'attribute_of')}({item}, '__dict__')"  # without its code
            condition = f"{condition} and {space} is {bind(known.space, 'attributes')}"
        self.add(condition, f"{bind(_other_class, 'other_class')}({bind(known, 'known')})")

    def _guard(self, guard: ReadFact) -> None:
        holder = self.source.bind(guard.holder, "holder")
        if isinstance(guard, ObjectClass):
            return
        if isinstance(guard, ShownContent):
            shows = self.source.bind(Shows(guard), "shows")
            self.add(f"{shows}.same()", f"{shows}.words()")
        elif isinstance(guard, AttributeNames):
            added = self.source.bind(Added(guard, self.mentioned), "added")
            known = [key for key in guard.holder if key in guard.before]
            keys = self.source.bind(known, "keys")
            condition = f"([*{holder}] == {keys} or not {added}.names({holder}))"
            self._unchanged(
                holder,
                guard.holder,
                [(condition, f"{added}.words({holder})")],
                as_it_was=len(known) == len(guard.holder),
            )
        elif isinstance(guard, ContainerLength):
            self._container(guard, holder)
            if isinstance(guard, ContainerMembers):
                same = self.source.bind(Members(guard.members).same, "members")
                self.add(f"{same}({holder})", repr(f"{guard.name} has other members"))
            if isinstance(guard, ContainerItems):
                same = self.source.bind(Items(guard.items).same, "items")
                self.add(f"{same}({holder})", repr(f"{guard.name} has other items"))
        elif isinstance(guard, ReadLocation):
            self._location(guard, holder)

    def _container(self, guard: ContainerLength, holder: str) -> None:
        known, own = type(guard.holder) in OWN, own_kind(guard.holder).__len__
        length = "len" if known else self.source.bind(own, "length")
        condition = f"{length}({holder}) == {guard.before}"
        self.add(condition, repr(f"{guard.name} has more or fewer items than it had"))
        if isinstance(guard, ContainerKeys) and len(guard.keys) > 1:
            keys = self.source.literal(guard.keys, "keys")
            own = OrderedDict if isinstance(guard.holder, OrderedDict) else dict
            now = f"tuple({self.source.bind(own.__iter__, 'keys_of')}({holder}))"
            self.add(f"{now} == {keys}", repr(f"{guard.name} has other keys, or in another order"))

    def _location(self, guard: ReadLocation, holder: str) -> None:
        if guard.itself:
            condition = (
                f"{self._place(guard, holder)} is {self.source.bind(guard.before, 'itself')}"
            )
            self.add(condition, repr(f"{guard.name} is another object now"))
        elif guard.before is MISSING:
            key, inside = self.source.literal(guard.key, "key"), f"not in {holder}"
            there = f"{key} {inside}" if guard.how == "item" else f"not hasattr({holder}, {key})"
            do = AFTER_ONE * guard.changed_inside
            self.add(there, repr(f"{guard.name} is bound now"), guard.at, do)
        else:
            place, do = self._place(guard, holder), AFTER_ONE * guard.changed_inside
            self.value(place, guard.name, guard.before, guard.at, do)

    def _place(self, guard: ReadLocation, holder: str) -> str:
        """The expression that gives what is there now."""
        if guard.how == "cell":
            return f"{holder}.cell_contents"
        if guard.how == "attribute":
            return f"{holder}.{guard.key}"
        key = self.source.literal(guard.key, "key")
        if type(guard.holder) in BY_KEY:
            return f"{holder}[{key}]"
        base = next(each for each in BY_KEY if isinstance(guard.holder, each))
        get: Any = base.__getitem__
        return f"{self.source.bind(get, 'get')}({holder}, {key})"


def _other_class(known: ObjectClass) -> str:
    """What differs, in words."""
    if type(known.holder) is known.before:
        return f"{known.name} has another __dict__"
    now, before = type(known.holder).__name__, known.before.__name__
    return f"{known.name} is of the class {now}, in the capture of {before}"
