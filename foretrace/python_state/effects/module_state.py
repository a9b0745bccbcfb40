"""Parameters and buffers: found, replaced by abstract tensors for one run, put back."""

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn, TypeAlias

import torch
from torch import nn

from foretrace import torch_api
from foretrace.errors import LazyFrame, Refusal
from foretrace.ir.program.call_requirements import FIRST_CALL, CallRequirements, ModuleState
from foretrace.ir.pydata.location import Contents, Entry
from foretrace.ir.pydata.state import Change
from foretrace.ir.source.state_change_lines import Lines
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.python_state.access.monitor import AccessMonitor
from foretrace.python_state.effects.leaks import abstract_in, carried_in
from foretrace.python_state.effects.module_owners import with_paths
from foretrace.python_state.effects.swapped_module import SwappedModule
from foretrace.python_state.snapshot.heap import HeapSnapshot
from foretrace.python_state.snapshot.late_code import LateCode
from foretrace.python_state.snapshot.restore import put_all_back, put_back

Stand: TypeAlias = Callable[[torch.Tensor, str, str, tuple[nn.Module, str]], Abstract]
"""(tensor, kind, name, (module, attribute)) -> its abstract tensor"""


class SwappedModuleTensors:
    """Modules whose tensors are replaced for one run; knows what the run left in them."""

    def __init__(self, owners: dict[str, nn.Module], before: HeapSnapshot) -> None:
        named = list(with_paths(owners))
        _check_not_scripted(named)
        self._loans = [SwappedModule(path, module, before.lend(module)) for path, module in named]

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
        """What the run has changed in plain attributes; `states.py` looks at new ones."""
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

    def rebound(self) -> Iterator[tuple[torch.Tensor, Any, tuple[torch.nn.Module, str]]]:
        """(tensor before, what is there now, module and name) of each buffer."""
        for loan in self._loans:
            for name, before in loan.registered("_buffers").items():
                now = torch_api.tensor_tables(loan.module)[1].get(name)
                yield before, now, (loan.module, name)

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
        if outside is None:
            yield
            return
        with outside.watching(fn, before.has_met, LateCode(before, outside.late).begins):
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
            if before.knows(change.place.before):  # which has its content, too
                change.place.bind(change.place.before)
            else:
                change.undo()


def located(change: Change, lines: Callable[[], Lines]) -> Change:
    """The change with the line that causes it."""
    content = isinstance(change.place, Entry) or not change.rebound
    return replace(
        change, at=LazyFrame(functools.partial(lines().binding, change.place.name, content=content))
    )
