"""`foretrace.dispatch_trace`: runs a program once and notes each kernel.

Source of the printed form: DispatchTraceNestingGuard in
aten/src/ATen/core/dispatch/Dispatcher.h, which release wheels are built without.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Final

import torch

from foretrace import torch_api
from foretrace.errors import Refusal, Refusing, user_frame_of
from foretrace.inspect.dispatcher.calls import named_arguments, tensor_arguments
from foretrace.inspect.dispatcher.dispatch import SELECT, hands_on
from foretrace.inspect.dispatcher.kernel_trace import DispatchTrace, ProgramRaised, Ran
from foretrace.inspect.dispatcher.registrations import fallbacks
from foretrace.inspect.dispatcher.table import Served, Table
from foretrace.ir.source.call_site import LIBRARY_DIRS, Sources
from foretrace.ir.source.short_tracebacks import Hiding

LAYOUTS: dict[torch.layout, str] = {
    torch.strided: "",
    torch.sparse_coo: "Sparse",
    torch.sparse_csr: "SparseCsr",
    torch.sparse_csc: "SparseCsr",
    torch.sparse_bsr: "SparseCsr",
    torch.sparse_bsc: "SparseCsr",
}
"""The prefix of a backend's key for a layout"""
CALL: Final = "call"
REDISPATCH: Final = "redispatch"


@Hiding()
def dispatch_trace(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> DispatchTrace:
    """Run a program once, and return every kernel that the dispatcher ran, nested, with keys.

    The program runs the same kernels in the same order, to the same bits, with all its effects. Its
    backward is part of the trace. Kernels of other Python threads are not.

    Args:
        fn: the program.
        args: its arguments.
        kwargs: the same, by name.

    Raises:
        ProgramRaised: a Refusal with the program's error; its `trace` ends there.
    """
    notes = Notes()

    def refusal(error: BaseException, trace: TracebackType | None) -> Refusal:
        if isinstance(error, Refusal):
            return error
        at = user_frame_of(trace, LIBRARY_DIRS)
        return ProgramRaised(error, at, DispatchTrace(tuple(notes.calls)))

    with Refusing(refusal), torch_api.dispatches_seen(notes.around, notes.source):
        result = fn(*args, **kwargs)
    return DispatchTrace(tuple(notes.calls), result)


class Notes:
    """The kernels that ran so far."""

    def __init__(self) -> None:
        self.calls: list[Ran] = []
        self.running: list[Ran] = []
        self._sources = Sources()
        self._sources.called_by(dispatch_trace.__code__)
        self._fallbacks = fallbacks()
        self._tables: dict[Any, Table] = {}
        self._served: dict[tuple[Any, str], Served] = {}

    def source(self, op: Any, key: str) -> str:
        """The key for which the kernel that C++ takes is registered."""
        return self.served(op, key).source

    def served(self, op: Any, key: str) -> Served:
        """The kernel of an operator at a key in this build."""
        found = self._served.get((op, key))
        if found is None:
            table = self._tables.setdefault(op, Table(op, self._fallbacks))
            found = self._served[op, key] = table.at(key)
        return found

    def around(
        self, op: Any, key: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AbstractContextManager[None]:
        """A context for the run of a kernel."""
        rows = [self._begin(op, key)]
        if key == SELECT and not tensor_arguments(op):
            rows.append(self._begin(op, _backend(op, args, kwargs), seen=False))
        return _Running(self, rows)

    def _begin(self, op: Any, key: str, *, seen: bool = True) -> Ran:
        outer = self.running[-1] if self.running else None
        name, again = op.name(), False
        if outer is not None and outer.op == name:
            again = hands_on(outer.key, outer.served)
        row = Ran(
            name, key, REDISPATCH if again else CALL, len(self.running), self.served(op, key),
            self._sources.here(), torch_api.running_node(), seen,
        )  # fmt: skip
        (self.calls if outer is None else outer.inside).append(row)
        self.running.append(row)
        return row


class _Running:
    """Ends its rows on exit; a class, as a generator is slower."""

    def __init__(self, notes: Notes, rows: list[Ran]) -> None:
        self.notes, self.rows = notes, rows

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for row in self.rows:
            row.raised = error is not None
        del self.notes.running[-len(self.rows) :]


def _backend(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The key that BackendSelect computes from the options of a factory."""
    named = named_arguments(op, args, kwargs)
    device = named.get("device") or torch.device("cpu")
    layout = LAYOUTS.get(named.get("layout") or torch.strided, "")
    return layout + torch_api.backend_key(torch.device(device).type)
