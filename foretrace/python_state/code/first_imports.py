"""Modules that a program is the first to import.

The body of a module runs once in a process, and the module keeps what it makes: tensors,
parameters, numbers that it draws. So it never runs inside of a recording. The run ends where the
program imports such a module, which is imported as Python then, as though before the program; the
program is recorded again and finds it. Where the body could find something else than in eager,
because of what the program has done before, that is refused: a first call, which runs as Python.

Modules of torch's, of what torch is built on and of Python's library are imported in place: they
draw nothing, and no program reaches what they read. No mode sees what they make.
"""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.machinery import SourceFileLoader
from types import ModuleType
from typing import Any, Final, NoReturn

import torch

from foretrace import forks, torch_api
from foretrace.errors import OUTSIDE, Attempt, Refusal
from foretrace.ir.program.call_requirements import FIRST_CALL
from foretrace.ir.pydata.state import Change
from foretrace.ir.source.call_site import asking_line
from foretrace.python_state.code.code_owner import origin_of
from foretrace.tracer.concrete.rng_draws import draws
from foretrace.tracer.recorder.recorder import Recorder

STEPS: Final = ("create_module", "exec_module")
"""What import calls of a loader: the first runs the code of a module that is written in C"""
EXECUTES: Final[type] = next(k for k in SourceFileLoader.__mro__ if STEPS[1] in vars(k))
"""The class of which all loaders of Python's files have `exec_module`"""
IMPORTS: Final = "is the first to import"
FOLLOWED: Final = frozenset({"grad mode", "forward gradients"})
"""Rows that a module may find otherwise: it is imported in the grad mode in which the program is"""
DO: Final = ("import it before the captured program is called", FIRST_CALL)


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of the program, while its Python runs."""

    refused: Callable[[Refusal], Refusal]
    reason: Callable[[], str]
    thread: int


class FirstImports:
    """The modules that a program is the first to import, over all its runs.

    While one runs it is a finder of modules.
    """

    def __init__(self) -> None:
        self._run: _Run | None = None
        self._wanted = "", True
        """the module at which the last run has ended, and the grad mode there"""
        self._tried = set[str]()
        """those that were imported between runs"""
        self._raised = dict[str, Exception]()
        """what that has raised, which has its traceback"""

    @contextmanager
    def watched(
        self, refused: Callable[[Refusal], Refusal], reason: Callable[[], str]
    ) -> Iterator[None]:
        """Inside, no user's module is imported for the first time.

        Args:
            refused: notes a refusal, in case the program catches it.
            reason: says why the body of a module may find something else than before the program;
                empty where it finds the same.
        """
        execute = vars(EXECUTES)[STEPS[1]]

        def undo() -> None:
            setattr(EXECUTES, STEPS[1], execute)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            self._run = None

        with forks.undone(undo):
            self._run = _Run(refused, reason, threading.get_ident())
            self._wanted = "", True
            sys.meta_path.insert(0, self)
            setattr(EXECUTES, STEPS[1], self._by_hand(execute))
            yield

    def import_wanted(self) -> bool:
        """Import the module at which the last run has ended; whether to record once more.

        What its body raises is raised where the program imports it.
        """
        (name, grad_mode), self._wanted = self._wanted, ("", True)
        if not name:
            return False
        self._tried.add(name)
        same = grad_mode is torch.is_grad_enabled()
        attempt = Attempt(Exception)
        with attempt, nullcontext() if same else torch.set_grad_enabled(grad_mode):
            import_module(name)
        if isinstance(attempt.error, Exception):
            self._raised[name] = attempt.error
        # one that is not found is found by what the program's own Python does before
        return not isinstance(attempt.error, ModuleNotFoundError) or attempt.error.name != name

    # ---- while it runs --------------------------------------------------------------------------

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Where a module is that is being imported, as all other finders have it."""
        spec = torch_api.found_after(self, name, path, target)
        loader: Any = getattr(spec, "loader", None)
        if loader is None or isinstance(loader, type) or not hasattr(loader, "__dict__"):
            return spec
        what = "reloads" if name in sys.modules else IMPORTS
        for step in STEPS:
            if hasattr(loader, step):
                do = partial(self._step, spec, step, getattr(loader, step), what)
                vars(loader)[step] = do
        return spec

    def _step(self, spec: Any, step: str, do: Callable[[Any], Any], what: str, item: Any) -> Any:
        """One of the two steps of an import: `do` of the item."""
        run = self._here()
        users = run is not None and _is_users(spec)
        for each in STEPS if users or step == STEPS[1] else ():
            vars(spec.loader).pop(each, None)
        if run is None:
            return do(item)
        if users:
            _drop(spec.name, item)
            self._refuse(run, spec.name, what)
        with torch_api.CleanRoom():
            return do(item)

    def _by_hand(self, execute: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        """`exec_module`, which a program may call itself, with a new module."""

        def exec_module(loader: Any, module: ModuleType) -> None:
            run, spec = self._here(), module.__spec__
            if run is None or spec is None or not _is_users(spec):
                execute(loader, module)
                return
            if spec.loader_state is not None:  # `LazyLoader` cannot end what it has begun
                with torch_api.CleanRoom():
                    execute(loader, module)
                return
            _drop(spec.name, module)
            self._refuse(run, spec.name, "executes")

        return exec_module

    def _here(self) -> _Run | None:
        """The run, if it is in this thread."""
        run = self._run
        return run if run is not None and run.thread == threading.get_ident() else None

    def _refuse(self, run: _Run, name: str, what: str) -> NoReturn:
        """End the run, or raise what the body has raised when it ran.

        Raises:
            Refusal: the program imports it; between this run and the next it is imported.
        """
        if name in self._raised:
            raise self._raised[name]
        reason = ", which removes itself" if name in self._tried else run.reason()
        reason = reason if what == IMPORTS else ", whose body runs at each call"
        if not reason:
            self._wanted = name, torch.is_grad_enabled()
        raise run.refused(
            Refusal(
                f"the program {what} the module {name}{reason}",
                kind="side effect",
                at=asking_line(),
                do=OUTSIDE[:1] if what == "reloads" else DO,
            )
        )


def of_run(
    recorder: Recorder, changes: Callable[[], Iterable[Change]], *, example: bool
) -> Callable[[], str]:
    """Says why, by what the program has done in a run so far.

    Args:
        recorder: of the run, which begins.
        changes: finds what the program has changed so far.
        example: whether the run goes where its example leads.
    """
    scope = recorder.scope
    ambient = [(row, row.read()) for row in torch_api.ROWS if row.name not in FOLLOWED]

    def reason() -> str:
        if not example or scope.in_subgraph:
            return ", on a side on which eager may not be"
        if any(map(draws, (op for ops in (scope.log, *scope.bodies) for op in ops or ()))):
            return ", after it has drawn random numbers"
        switched = next((row.name for row, before in ambient if row.read() != before), "")
        if switched:
            return f", and has switched torch's state: {switched}"
        changed = next(iter(changes()), None)
        return f", after it has changed {changed.name}" if changed is not None else ""

    return reason


def in_backward() -> str:
    """Why, of Python that runs while a backward is derived."""
    return ", while its backward is derived"


def _drop(name: str, module: object) -> None:
    """Remove a module from those that are imported, if its body has never run."""
    known = sys.modules.get(name) is module
    if known and all(each.startswith("__") for each in vars(module)):
        del sys.modules[name]


def _is_users(spec: Any) -> bool:
    """Whether it is the program that imports a module, and not of torch or Python's library."""
    if not torch_api.seen_by(Recorder):
        return False
    if not spec.has_location:
        return spec.name.partition(".")[0] not in sys.stdlib_module_names
    return origin_of(spec.origin) == "user"
