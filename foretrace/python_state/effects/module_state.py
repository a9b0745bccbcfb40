"""Parameters and buffers: found, replaced by abstract tensors for one run, put back."""

import functools
import inspect
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any, NoReturn, TypeAlias

import torch
from torch import fx, nn

from foretrace import torch_api
from foretrace.errors import LazyFrame, Refusal
from foretrace.ir.program.call_requirements import FIRST_CALL, CallRequirements, ModuleState
from foretrace.ir.pydata.members import cell_content, cells_of, own_kind
from foretrace.ir.pydata.places import Change, Contents, Entry
from foretrace.ir.source.state_change_lines import Lines
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.subclass_types import wraps
from foretrace.python_state.access.monitor import AccessMonitor
from foretrace.python_state.access.reads import REGISTERED as STATE
from foretrace.python_state.effects.leaks import abstract_in, carried_in
from foretrace.python_state.snapshot.heap import HeapSnapshot
from foretrace.python_state.snapshot.objects import ATOMS, EMPTY, Kept, KeptModule
from foretrace.python_state.snapshot.restore import (
    changes_in,
    content_changes,
    filled,
    put_all_back,
    put_back,
)

Stand: TypeAlias = Callable[[torch.Tensor, str, str, tuple[nn.Module, str]], Abstract]
"""(tensor, kind, name, (module, attribute)) -> its abstract tensor"""


def owners_of(fn: Callable[..., Any]) -> dict[str, nn.Module]:
    """The modules that a callable reaches by name, by the prefix of their parameters' names."""
    if isinstance(fn, nn.Module):
        return {"": fn}
    if isinstance(fn, fx.Interpreter):
        return {"": fn.module}
    if isinstance(fn, functools.partial):
        return owners_of(fn.func)
    owner = getattr(fn, "__self__", None)
    if isinstance(owner, nn.Module):
        return {"": owner}
    return {name: found for name, found in _reachable(fn) if isinstance(found, nn.Module)}


def names_of_tensors(fn: Callable[..., Any]) -> dict[int, str]:
    """Names under which the closure and globals of a function, or method, hold tensors."""
    names = dict[int, str]()
    for name, found in _reachable(getattr(fn, "__func__", fn)):
        if isinstance(found, torch.Tensor):
            names[id(found)] = name
        elif isinstance(found, nn.Module):
            own = (*found.named_parameters(), *found.named_buffers())
            names |= {id(each): f"{name}.{path}" for path, each in own}
    return names


def _reachable(fn: Callable[..., Any]) -> list[tuple[str, Any]]:
    """What a function closes over, and the globals with the names that its code has.

    `inspect.getclosurevars` disassembles the code from Python 3.13 on, and gives them in any order.
    """
    if not inspect.isfunction(fn):
        return []
    space, cells = fn.__globals__, cells_of(fn)
    closed = ((name, cell_content(cell)) for name, cell in cells.items())
    return [*closed, *((name, space[name]) for name in fn.__code__.co_names if name in space)]


def _with_paths(owners: dict[str, nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Every module once, by the first of its dotted paths."""
    found = set[int]()
    for prefix, owner in owners.items():
        for path, module in owner.named_modules():
            if id(module) not in found:
                found.add(id(module))
                yield f"{prefix}.{path}" if prefix and path else prefix or path, module


class SwappedModuleTensors:
    """Modules whose tensors are replaced for one run; knows what the run left in them."""

    def __init__(self, owners: dict[str, nn.Module], before: HeapSnapshot) -> None:
        named = list(_with_paths(owners))
        _check_not_scripted(named)
        self._loans = [_Loan(path, module, before.lend(module)) for path, module in named]

    def replace(self, placeholder: Stand, itself: Callable[[torch.Tensor], bool]) -> None:
        """Put abstract tensors in the place of parameters and buffers.

        Not of one for which `itself` says that the program reaches it elsewhere, too: it is one
        object to the program, by whatever way (decision 051).
        """
        for loan in self._loans:
            tables = torch_api.tensor_tables(loan.module)
            for kind, table in zip(("parameter", "buffer"), tables, strict=True):
                for name, tensor in table.items():
                    if tensor is not None:
                        owner = (loan.module, name)
                        stands = placeholder(tensor, kind, loan.full_name(name), owner)
                        table[name] = tensor if itself(tensor) else stands

    def tensors(self) -> Iterator[torch.Tensor]:
        """The parameters and buffers."""
        for loan in self._loans:
            for table in torch_api.tensor_tables(loan.module):
                yield from filter(torch.is_tensor, table.values())

    def show(self, as_program_has: Callable[[Any], Any]) -> None:
        """Let the program find what wraps others in the class that it is of."""
        for loan in self._loans:
            for table in torch_api.tensor_tables(loan.module):
                table.update({name: as_program_has(each) for name, each in table.items()})

    def states(self) -> list[ModuleState]:
        """How the modules are now."""
        return [loan.state() for loan in self._loans]

    def paths(self) -> dict[int, str]:
        """The dotted path of every module, by id."""
        return {id(loan.module): loan.path for loan in self._loans}

    def changes(self) -> list[Change]:
        """What the run has changed in plain attributes; `states.py` looks at what it has made."""
        found = [
            replace(change, path=loan.full_name(change.place.name))
            for loan in self._loans
            for change in loan.changes()
            if not isinstance(change.place, Contents)
        ]
        return [change for change in found if next(carried_in([change.after]), None) is None]

    def bound(self) -> Iterator[Change]:
        """Plain attributes that the run has bound, and entries of dicts that are attributes."""
        for loan in self._loans:
            for change in loan.changes():
                if change.rebound:
                    yield replace(change, path=loan.full_name(change.place.name))

    def rebound(self) -> Iterator[tuple[torch.Tensor, Any]]:
        """(tensor before, what is there now) of each buffer."""
        for loan in self._loans:
            for name, before in loan.registered("_buffers").items():
                yield before, torch_api.tensor_tables(loan.module)[1].get(name)

    def check_attributes(self, stands: dict[int, Any], lines: Lines) -> None:
        """Refuse a program that stored an abstract tensor in a plain attribute.

        Tensors that stand for inputs may be stored: they were there before. What a module has
        registered (parameters, buffers, hooks) has to be as it was, too.

        Args:
            stands: what stands for each input, by the id of that.
            lines: of the program.
        """
        placeholders = set(map(id, stands.values()))
        for loan in self._loans:
            loan.check_registered(lines)
            loan.check_parameters(stands, lines)
            for name, now in loan.touched():
                if any(id(tensor) not in placeholders for tensor in abstract_in([now])):
                    raise Refusal(
                        f"the program stores a tensor in the attribute `{name}`"
                        f" of {loan.path or type(loan.module).__name__}",
                        kind="side effect",
                        at=lines.binding(name, type(loan.module)),
                        module=loan.named(),
                        do=("return the tensor, or register it as a buffer", FIRST_CALL),
                    )

    def restore(self) -> list[str]:
        """Leave every module as it was; gives what could not be, in words."""
        return put_all_back(part for loan in self._loans for part in loan.parts())


def _check_not_scripted(named: list[tuple[str, nn.Module]]) -> None:
    if any(isinstance(module, torch.jit.ScriptModule) for _, module in named):
        scripted()


def scripted() -> NoReturn:
    """Refuse a module of TorchScript, whose tensors are out of Python's reach."""
    raise Refusal(
        "the program contains a TorchScript module, whose Python is gone",
        kind="unsupported module",
        do="capture the module that it was made from",
    )


TABLES = frozenset({"_parameters", "_buffers", "_modules"})
REGISTERED = tuple(
    name
    for name, item in vars(nn.Module()).items()
    if isinstance(item, (dict, set)) and name != "_modules"
)
"""Where a module keeps parameters, buffers and hooks"""
NO_PLACES = TABLES | frozenset(REGISTERED)
"""What `check_registered` looks at, or what the graph has"""


class _Loan:
    """One module's attributes, with what its dicts and lists contained."""

    def __init__(self, path: str, module: nn.Module, kept: KeptModule) -> None:
        self.path, self.module, self.kept = path, module, kept
        self._still: bool | None = None

    def state(self) -> ModuleState:
        """How the module was when the run began, with the copies that are there."""
        contents = self.kept.contents
        tables = {name: contents[name].before for name in STATE if name in contents}
        return ModuleState(self.path, self.module, self.module.training, tables)

    def registered(self, name: str) -> Any:
        """What one of the module's own tables held."""
        content = self.kept.contents.get(name)
        return {} if content is None else content.before

    @property
    def still(self) -> bool:
        """Whether the run has bound no attribute, and filled nothing that was empty."""
        if self._still is None:
            self._still = self.kept.intact and self.kept.attributes.intact
        return self._still

    def parts(self) -> Iterator[Kept]:
        """What is to be put back: where nothing was bound, as far as was looked, contents alone."""
        return iter(self.kept.contents.values()) if self._still else self.kept.parts()

    def changes(self) -> Iterator[Change]:
        """What the run has changed in plain attributes."""
        kept = self.kept
        for name, content in kept.contents.items():
            if name not in NO_PLACES:
                yield from changes_in(content, functools.partial(_named, name))
        if self.still:
            return
        for change in changes_in(kept.attributes, str):
            if change.place.name not in NO_PLACES:
                yield change
        for name, held in kept.attributes.before.items():
            if name in NO_PLACES or all(held is not each for each in filter(None, kept.empty)):
                continue
            if isinstance(held, dict):
                yield from content_changes(name, held, {}, held)
            else:
                yield filled(name, held, own_kind(held)())

    def touched(self) -> Iterator[tuple[str, Any]]:
        """Plain attributes that are or contain something else now, as far as a glance says."""
        before, contents = self.kept.attributes.before, self.kept.contents
        for name, now in vars(self.module).items() if not self.still else ():
            if name not in TABLES and (type(now) is Abstract or type(now) not in ATOMS):
                filled = name in contents or (type(now) in EMPTY and now)
                if now is not before.get(name) or filled:
                    yield name, now
        for name in contents if self.still else ():
            if name not in TABLES:
                yield name, before[name]

    def check_registered(self, lines: Lines) -> None:
        """Refuse a program after which the module has other parameters, buffers or hooks."""
        space = vars(self.module)
        contents = self.kept.contents
        for name in filter(contents.__contains__, REGISTERED) if self.still else REGISTERED:
            before, now = self.registered(name), space[name]
            if (before or now) and _present(before) != _present(now):
                what = "parameters or buffers" if name in TABLES else "hooks"
                changed = _present(before) ^ _present(now)
                at = [lines.binding(str(each), type(self.module)) for each in changed]
                raise Refusal(
                    f"the program registers or removes {what}"
                    f" of {self.path or type(self.module).__name__}",
                    kind="side effect",
                    at=next(filter(None, at), None) or lines.calling("register_", "hook"),
                    module=self.named(),
                    do=("do it before the captured program is called", FIRST_CALL),
                )

    def check_parameters(self, stands: dict[int, Any], lines: Lines) -> None:
        """Refuse a program after which one of the parameters is another tensor."""
        now = torch_api.tensor_tables(self.module)[0]
        for name, before in self.registered("_parameters").items():
            kept = now[name] is before or now[name] is stands.get(id(before))
            if before is not None and not (kept or wraps(type(before))):
                raise Refusal(
                    f"the program binds the parameter `{name}` of"
                    f" {self.path or type(self.module).__name__} to another tensor",
                    kind="side effect",
                    at=lines.binding(name, type(self.module)),
                    module=self.named(),
                    do=(
                        "write to the parameter that there is: parameter.copy_(new) under no_grad",
                        FIRST_CALL,
                    ),
                )

    def named(self) -> list[str]:
        """The module, as a refusal names it."""
        return [self.path or type(self.module).__name__]

    def full_name(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


def _named(name: str, _: Any) -> str:
    return name


def _present(registered: dict[Any, Any] | set[Any]) -> set[Any]:
    """Names of what is registered; one may be registered as None."""
    if isinstance(registered, set):
        return registered
    return {name for name, item in registered.items() if item is not None}


@contextmanager
def borrowed(
    owners: dict[str, nn.Module], before: HeapSnapshot | None = None
) -> Iterator[SwappedModuleTensors]:
    """The modules of a program, left as they were whatever happens inside."""
    loan = SwappedModuleTensors(owners, before or HeapSnapshot(()))
    with put_back(loan.restore, always=True):
        yield loan


@contextmanager
def watched(
    loan: SwappedModuleTensors,
    outside: AccessMonitor | None,
    fn: Any,
    requires: CallRequirements,
    lines: Callable[[], Lines],
    before: HeapSnapshot,
) -> Iterator[None]:
    """What the run inside does to the modules, and where it is watched, is noted and undone."""
    try:
        with outside.watching(fn) if outside is not None else nullcontext():
            yield
    finally:
        if outside is not None and before.has_met(type):  # in a table, a default, an attribute
            outside.has_type()
        changes = outside.changes() if outside is not None else []
        changes = [each for each in changes if not before.keeps(each.place)]
        # one that keeps a tensor stays as it is, for `states.py` and `leaks.py` to find
        keeps = [[*carried_in([each.place.now])] for each in changes]
        stored: Iterator[torch.Tensor] = abstract_in([each.place.now for each in changes])
        requires.notes.stored = [*map(weakref.ref, stored)]
        changes = [each for each, found in zip(changes, keeps, strict=True) if not found]
        every = map(before.itself, (*changes, *loan.changes()))
        requires.notes.changed = [located(change, lines) for change in every]
        for change in changes:  # the modules' own are undone with the loan
            change.undo()


def located(change: Change, lines: Callable[[], Lines]) -> Change:
    """The change with the line that made it."""
    content = isinstance(change.place, Entry) or not change.rebound
    return replace(
        change, at=LazyFrame(functools.partial(lines().binding, change.place.name, content=content))
    )
