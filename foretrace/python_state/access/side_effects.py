"""What a program does that no graph can repeat, and that leaves nothing behind to be found later.

It prints, reads the clock or a file, stops in a debugger, or asks for a break of the graph. The
interpreter reports each such call before it runs; where the rest of the program can be captured
around it, it is refused then, so that nothing is printed, read or advanced twice.
"""

import io
import types
from collections.abc import Callable, Iterator
from functools import cache, partial
from operator import is_
from typing import Any, Final

from foretrace import torch_api
from foretrace.errors import Frame, Refusal
from foretrace.ir.program.call_requirements import FIRST_CALL
from foretrace.ir.pydata.members import CONTENT
from foretrace.ir.source.state_change_lines import Lines
from foretrace.python_state.access.calling_frames import (
    LOGGED,
    for_a_log,
    user_frame,
)
from foretrace.python_state.access.monitor import AccessMonitor
from foretrace.python_state.snapshot.heap import HeapSnapshot

REPORTED: Final = frozenset({"print", "input", "breakpoint", "open", "open_code"})
"""Functions of `builtins` and `io`"""
CLOCKS: Final = frozenset({"now", "utcnow", "today"})
SYSTEM: Final = frozenset({
    "time", "posix", "nt", "select", "_socket", "_ssl", "_posixsubprocess", "_winapi",
    "faulthandler", "readline",
})  # fmt: skip
"""Modules of the interpreter whose functions ask, or change, the world"""
HARMLESS: Final = frozenset({"fspath", "getpid", "get_ident"})
BEGINS: Final = frozenset({"start_new_thread", "start_joinable_thread"})
"""Functions of `_thread`: what runs in another thread is not recorded, and may be waited for"""
ASKS_FILES: Final = frozenset({"stat", "lstat", "listdir", "scandir", "access", "readlink"})
"""Functions by which `os.path.exists` and `pathlib` ask for files"""
DO: Final = "do it outside of the captured program; else what is around it runs as Python"


class SideEffects:
    """Refuses what a program is about to do.

    Args:
        refuse: notes a refusal, in case the program catches it.
    """

    def __init__(self, refuse: Callable[[Refusal], Refusal]) -> None:
        self.refuse = refuse

    def called(self, frame: types.FrameType, function: Any) -> None:
        """A function in C is about to be called.

        Raises:
            Refusal: it does something that no graph can repeat.
        """
        owner = getattr(function, "__self__", None)
        if not _touches(type(owner), owner, function):
            return
        at = user_frame(frame)
        if at is None or (at is not frame and not _always(owner, function)):
            return
        if for_a_log(at):  # of a message that is not the program's, or it was refused before
            return
        what = getattr(function, "__qualname__", str(function))
        self._refuse(at, f"the program calls {_named(owner, what)}", "side effect", DO)

    def marks(self, code: types.CodeType) -> bool:
        """Whether a Python function does so."""
        return mark_of(code) is not None

    def entered(self, frame: types.FrameType) -> None:
        """A function of MARKS begins.

        Raises:
            Refusal: the program has asked for it.
        """
        what, kind = mark_of(frame.f_code) or ("", "")
        at = user_frame(frame.f_back)
        if at is None or not what:
            return
        do = (DO, FIRST_CALL) if kind == "side effect" else (DO,)
        self._refuse(at, what, kind, *do)

    def _refuse(self, at: types.FrameType, what: str, kind: str, *do: str) -> None:
        place = Frame(at.f_code.co_filename, at.f_lineno, at.f_code.co_qualname)
        raise self.refuse(Refusal(what, kind=kind, at=place, do=do))


def mark_of(code: types.CodeType) -> tuple[str, str] | None:
    """What a Python function of a library's is that no graph repeats: in words, and the kind."""
    if code is LOGGED:
        return "the program logs a message", "side effect"
    what = torch_api.break_asked(code)
    return (f"the program {what}", "graph break") if what else None


def check_iterators(
    before: HeapSnapshot, outside: AccessMonitor | None, lines: Callable[[], Lines]
) -> None:
    """Refuse a program that may take the next of an iterator from outside: it would be lost.

    Args:
        before: what the program can reach.
        outside: watches it; where it refuses no holes, nobody runs the program again.
        lines: finds where.

    Raises:
        Refusal: there is one.
    """
    holes = outside.holes if outside is not None else None
    for item, name in _iterators(before) if holes is not None else ():
        raise Refusal(
            f"the program can take from a {type(item).__name__}, and what is taken is taken once",
            kind="side effect",
            at=lines().reaching(partial(is_, item)) or lines().calling(name),
            do=("take from it outside of the captured program, and pass what it gave", DO),
        )


def _iterators(before: HeapSnapshot) -> Iterator[tuple[Any, str]]:
    """Arguments of the program, what it can reach, and files; no attribute that no code names.

    A private one may be a library's, whose code was not looked at: of a DataLoader's iterator.
    """
    for item in before.opaque:
        if isinstance(item, Iterator) and not _only_written(item):
            name = before.name(item)
            attribute = name.isidentifier() and name != CONTENT
            if not attribute or name.startswith("_") or name in before.mentioned:
                yield item, name


def _only_written(item: Any) -> bool:
    return isinstance(item, io.IOBase) and (item.closed or not item.readable())


def _touches(kind: type, owner: Any, function: Any) -> bool:
    if kind is types.ModuleType:
        return _of_module(owner.__name__, function.__name__)
    if kind is type:
        return owner.__module__ == "datetime" and function.__name__ in CLOCKS
    return _is_stream(kind)


OF_INTERPRETER: Final = types.MappingProxyType(
    {
        "sys": frozenset({"getrecursionlimit", "getswitchinterval", "gettrace", "getprofile"}),
        "gc": frozenset({"isenabled", "get_count", "get_threshold", "get_stats"}),
    }
)
"""Questions about the interpreter, whose answers no guard knows"""


@cache
def _of_module(module: str, name: str) -> bool:
    if name in OF_INTERPRETER.get(module, ()):
        return True
    if module in ("builtins", "_io", "io"):
        return name in REPORTED
    if module == "_thread":
        return name in BEGINS
    return module in SYSTEM and name not in HARMLESS


@cache
def _is_stream(kind: type) -> bool:
    """Whether objects of a type are files; those of text and bytes in memory are as good."""
    return issubclass(kind, io.IOBase)


def _always(owner: Any, function: Any) -> bool:
    """Whether it counts by whatever function of Python's own library the user has it called."""
    return isinstance(owner, io.IOBase) or function.__name__ in BEGINS | ASKS_FILES


def _named(owner: Any, name: str) -> str:
    if isinstance(owner, types.ModuleType):
        module = {"posix": "os", "nt": "os", "_io": "", "builtins": ""}.get(
            owner.__name__, owner.__name__
        )
        return f"{module}.{name}" if module else name
    return name
