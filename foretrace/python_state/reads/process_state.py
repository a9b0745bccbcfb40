"""State of the process and of the thread that Python's own functions show, and no object has.

Each piece is a row: the names by which code asks for it, and how it is read, for a guard to read it
again. What asks the operating system ends a graph instead (`side_effects.py`).
"""

import decimal
import sys
import threading
from collections.abc import Callable, Iterator, Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from foretrace.arrays import numpy
from foretrace.ir.pydata.read_facts import ShownContent


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One piece of such state.

    Args:
        name: for a message.
        names: of attributes and globals by which code asks for it.
        read: what it is now, as plain data.
    """

    name: str
    names: frozenset[str]
    read: Callable[[], object]


def decimal_context(_: object = None) -> tuple[object, ...]:
    """How this thread computes with numbers of `decimal`; not which flags are up."""
    now = decimal.getcontext()
    traps = tuple(sorted(kind.__name__ for kind, on in now.traps.items() if on))
    return now.prec, now.rounding, now.Emin, now.Emax, now.capitals, now.clamp, traps


def _numpy_errors() -> object:
    loaded = numpy()
    return None if loaded is None else tuple(sorted(loaded.geterr().items()))


def _directory() -> object:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return None


def _thread() -> object:
    now = threading.current_thread()
    return now.name, now.daemon


ROWS: Final = (
    ProcessRow("the recursion limit", frozenset({"getrecursionlimit"}), sys.getrecursionlimit),
    ProcessRow(
        "the current directory",
        frozenset({"getcwd", "abspath", "realpath", "cwd", "absolute"}),
        _directory,
    ),
    ProcessRow("the context of decimal", frozenset({"decimal", "Decimal"}), decimal_context),
    ProcessRow("what numpy does about errors", frozenset({"np", "numpy", "geterr"}), _numpy_errors),
    ProcessRow("the thread", frozenset({"current_thread", "currentThread"}), _thread),
    ProcessRow("the number of the thread", frozenset({"get_ident"}), threading.get_ident),
    ProcessRow(
        "how many threads there are",
        frozenset({"active_count", "activeCount"}),
        threading.active_count,
    ),
)
"""State that programs were found to ask for"""
ASKED_BY: Final = frozenset(name for row in ROWS for name in row.names)


def process_state(mentioned: AbstractSet[str]) -> Iterator[ShownContent]:
    """What of it code may ask for that mentions these names."""
    names = ASKED_BY & mentioned
    for row in ROWS if names else ():
        if not names.isdisjoint(row.names):
            yield ShownContent(row.name, row, _now, row.read())


def _now(row: ProcessRow) -> object:
    return row.read()
