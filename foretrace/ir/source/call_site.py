"""The user's line behind each op, and behind what no op shows."""

import functools
import inspect
import linecache
import operator
import sys
from collections import ChainMap
from collections.abc import Mapping
from types import BuiltinFunctionType, CellType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final

import torch
from torch import nn

from foretrace import torch_api
from foretrace.errors import PACKAGE_DIR, PYTHON_DIR, Frame, Refusal, is_library
from foretrace.ir.source.graph_lines import GraphLines, is_of_graph
from foretrace.ir.source.short_tracebacks import Hiding

NAMED = (ModuleType, FunctionType, BuiltinFunctionType)
"""What a closure cell may be kept for: it holds no tensor"""
LIBRARY_DIRS = (torch_api.TORCH_DIR,)
ATTRIBUTES: Final = PACKAGE_DIR + "torch_api/tensor_attributes.py"
"""By which the program comes to what stands for a tensor from outside"""
DEBUGGERS: Final = (PYTHON_DIR + "bdb.py", PYTHON_DIR + "pdb.py")
DEBUGGING: Final = ("/pydevd", "/debugpy/", "/IPython/", "/ipdb/", "/pudb/")
"""Python's own, and parts of the paths of others"""
_NEW: Final = object()
"""In the place of the frame of an instruction that was not met yet"""


class Sources:
    """Finds the innermost frame that is neither ours nor torch's; remembers what it found."""

    def __init__(self) -> None:
        self._last: CodeType | None = None
        self.defined: Frame | None = None
        """the line of the program: of an op that no line of it asks for, as at its end"""
        self._library, self._others = set[int](), set[int]()
        """ids of code objects, of a library and of the user: to hash one is to hash its constants

        One that calls the program belongs to neither.
        """
        self._noted: set[int] = set()
        """ids of those that were looked at for `ran`"""
        self._frames: dict[tuple[int, int], Any] = {}
        """by code and instruction: a Frame, or None of a graph's node that has no line"""
        self._graph_lines = GraphLines(LIBRARY_DIRS)
        self.ran: dict[CodeType, Mapping[str, Any]] = {}
        """the user's functions that were running at an op, with what their names are"""
        self._codes: list[CodeType] = []
        """those whose ids are keys, kept alive so that no other gets the same"""

    def called_by(self, code: CodeType) -> None:
        """Note the code of ours that calls the program: no frame above it is the program's."""
        self._last = code
        self._library.discard(id(code))

    def define(self, at: Frame | None) -> Frame | None:
        """Note the line of the program; gives it."""
        self.defined = at
        return at

    def here(self, above: int = 1) -> Frame | None:
        """The user's line that is running now; so many frames up, the first that may be his."""
        library = self._library
        at: FrameType | None = sys._getframe(above)
        while at is not None:
            code = at.f_code
            if id(code) not in library:  # an optimizer's op has twenty frames above it
                if code is self._last:
                    return self.defined
                if id(code) in self._others or not self._meet(code):
                    found = self._frames.get((id(code), at.f_lasti), _NEW)
                    if found is _NEW:
                        found = self._frame(at)
                    if found is not None:
                        return found
            at = at.f_back
        return None

    def _meet(self, code: CodeType) -> bool:
        """Whether it is a library's."""
        self._codes.append(code)
        found = is_library(code, LIBRARY_DIRS) and not is_of_graph(code)
        (self._library if found else self._others).add(id(code))
        return found

    def _frame(self, at: FrameType) -> Frame | None:
        code = at.f_code
        frame = (
            self._graph_lines.of_running(at)
            if is_of_graph(code)
            else Frame(code.co_filename, at.f_lineno, code.co_qualname)
        )
        self._frames[id(code), at.f_lasti] = frame
        self._note(at)
        return frame

    def _note(self, at: FrameType | None) -> None:
        """Keep which of the user's functions are running."""
        while at is not None and at.f_code is not self._last:
            code = at.f_code
            if id(code) not in self._noted:
                self._noted.add(id(code))
                self._codes.append(code)
                if not is_library(code, LIBRARY_DIRS):
                    content = at.f_locals if code.co_freevars else {}
                    free = (n for n in code.co_freevars if isinstance(content.get(n), NAMED))
                    names = {n: content[n] for n in free}
                    names = {n: _without_tensors(item, set()) for n, item in names.items()}
                    self.ran[code] = ChainMap(names, at.f_globals) if names else at.f_globals
            at = at.f_back


class Asked(Hiding):
    """While inside, a refusal gets what only the entry point knows, and a short traceback.

    Args:
        entry: how the user came: one of those of a `Way`.
        program: the callable, whose definition is the line of a refusal that has no other; or that
            line itself.
    """

    def __init__(self, entry: str, program: Any) -> None:
        self.entry, self.program = entry, program

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Refusal):
            error.entry = self.entry
            known = self.program is None or isinstance(self.program, Frame)
            error.located(self.program if known else place_of(self.program), (), ())
        super().__exit__(kind, error, trace)


def place_of(program: Any) -> Frame | None:
    """The line that defines a program; of one that is torch's own, the line that hands it over."""
    function = function_of(program)
    if function is None or is_library(function.__code__, LIBRARY_DIRS):
        return asking_line()
    return definition(function.__code__)


def definition(code: CodeType) -> Frame:
    """The line of its `def`."""
    return Frame(code.co_filename, _first_line(code), code.co_qualname)


def names_of(function: FunctionType) -> Mapping[str, Any]:
    """What the names of a function are: its closure cells, and globals."""
    pairs = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    cells = {name: content for name, cell in pairs for content in _content_of(cell)}
    return ChainMap(cells, function.__globals__) if cells else function.__globals__


def _content_of(cell: CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # nothing yet
        return []


def _without_tensors(item: Any, seen: set[int]) -> Any:
    """A function without the tensors in its closure, which it would keep alive; else the same."""
    if not isinstance(item, FunctionType) or not item.__closure__:
        return item
    if id(item) in seen:
        return None
    seen.add(id(item))
    cells = list(item.__closure__)
    for place, cell in enumerate(cells):
        for content in _content_of(cell):
            kept = None if isinstance(content, torch.Tensor) else _without_tensors(content, seen)
            cells[place] = cell if kept is content else CellType(kept)
    if all(map(operator.is_, cells, item.__closure__)):
        return item
    return FunctionType(item.__code__, item.__globals__, item.__name__, None, tuple(cells))


def function_of(program: Any) -> FunctionType | None:
    """The function behind a callable, if Python runs it."""
    while isinstance(program, functools.partial):
        program = program.func
    if isinstance(program, nn.Module):
        program = program.forward
    program = inspect.unwrap(getattr(program, "__func__", program))
    found = program if inspect.isfunction(program) else vars(type(program)).get("__call__")
    return found if inspect.isfunction(found) else None


def _first_line(code: CodeType) -> int:
    """The line of `def`, which may have decorators above it."""
    line = first = code.co_firstlineno
    while linecache.getline(code.co_filename, line).lstrip().startswith(("@", "#")):
        line += 1
    text = linecache.getline(code.co_filename, line).lstrip()
    return line if text.startswith(("def ", "async def ")) else first


def asked(depth: int) -> bool:
    """Whether the program asks, itself or by a function of torch's; the frame so far up does."""
    return _asking(sys._getframe(depth), PACKAGE_DIR) is not None


def asks_for_text(depth: int) -> bool:
    """Whether the program asks for a text, and neither foretrace nor a debugger; as for `asked`."""
    at: FrameType | None = sys._getframe(depth)
    while at is not None and is_library(at.f_code, LIBRARY_DIRS):
        file = at.f_code.co_filename
        if file.startswith((PACKAGE_DIR, *DEBUGGERS)) and file != ATTRIBUTES:
            return False
        at = at.f_back
    return at is not None and not any(part in at.f_code.co_filename for part in DEBUGGING)


def compares() -> bool:
    """Whether it is the program's own code that wants to know whether a relation holds."""
    at: FrameType | None = sys._getframe(1)
    while at is not None and at.f_code is not torch_api.TRUTH_OF_RELATION:
        at = at.f_back
    while at is not None and at.f_code in torch_api.TRUTHS:
        at = at.f_back
    return at is not None and not is_library(at.f_code, LIBRARY_DIRS)


def asking_line() -> Frame | None:
    """The user's line that asks for something; there is none in the command line."""
    at = _asking(sys._getframe(1), PACKAGE_DIR + "cli/")
    return None if at is None else Frame(at.f_code.co_filename, at.f_lineno, at.f_code.co_qualname)


def users_frame() -> FrameType | None:
    """The innermost frame of the user's."""
    at: FrameType | None = sys._getframe(1)
    while at is not None and is_library(at.f_code, LIBRARY_DIRS):
        at = at.f_back
    return at


def _asking(at: FrameType | None, end: str) -> FrameType | None:
    """The innermost frame of the user's from here, if none of the folder `end` comes before it."""
    while at is not None and not at.f_code.co_filename.startswith(end):
        if not is_library(at.f_code, LIBRARY_DIRS):
            return at
        at = at.f_back
    return None
