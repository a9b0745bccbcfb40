"""Globals and closure cells that the code which ran names, as they were before it first ran."""

import gc
import sys
import types
from typing import Any

from foretrace.ir.pydata.location import Location
from foretrace.ir.pydata.members import MISSING, cell_content
from foretrace.ir.symbols.builtin_casts import Chosen, Like
from foretrace.python_state.access.noted import module_through, state_of_python
from foretrace.python_state.code.bytecode import ANNOTATED, cells_of, imported, reads_of

MOST_FRAMES = 64
"""Frames that are kept before those that have ended are let go"""
Borrowed = dict[int, tuple[Any, Any]]
"""What a run finds in the place of something else, and that, by the id of the one"""


class NamedPlaces(dict[tuple[int, str], Location]):
    """Each of them by the id of its holder and its name; a cell by its id alone.

    Args:
        borrowed: what the run finds in the place of something else.
    """

    def __init__(self, borrowed: Borrowed) -> None:
        super().__init__()
        self.borrowed = borrowed

    def note(self, name: str, space: dict[str, Any]) -> None:
        """Keep what a name of a dict of names stands for."""
        known = name == ANNOTATED or (id(space), name) in self
        if not known and type(space.get(name)) not in (Like, Chosen):
            content = self._as_it_was(space.get(name, MISSING))
            self[id(space), name] = Location(name, space, content)

    def note_cells(self, function: Any, before: dict[str, Any]) -> None:
        """Keep the content of a function's cells; as it was before, where that is known."""
        if not isinstance(function, types.FunctionType):
            return
        for name, cell in cells_of(function).items():
            if name != "__class__" and (id(cell), "") not in self:
                content = self._as_it_was(before.get(name, cell_content(cell)))
                self[id(cell), ""] = Location(name, cell, content)

    def note_code(self, code: types.CodeType, space: dict[str, Any]) -> None:
        """Keep what code reads and binds by name: its globals, and names in modules."""
        reads = reads_of(code)
        for name in reads.globals:
            if name in space or name in reads.binds:
                self.note(name, space)
        for way in reads.of_modules:
            module = module_through(way, space) if way[-1] in reads.stores else None
            if module is not None:
                self.note(way[-1], module)
        for name in imported(code, space):
            self.note(name, sys.modules)
        for name, table in state_of_python(reads, space):
            self.note(name, table)

    def names(self) -> dict[int, str]:
        """The former contents by id, with their names."""
        return {id(place.before): place.name for place in self.values()}

    def _as_it_was(self, item: Any) -> Any:
        return self.borrowed[id(item)][1] if id(item) in self.borrowed else item


class ClosureCells:
    """Finds the cells of the functions that ran, of which the interpreter reports code alone.

    Args:
        places: takes the cells.
    """

    def __init__(self, places: NamedPlaces) -> None:
        self._places = places
        self.codes: list[types.CodeType] = []
        """what ran; alive, so that no other gets the same id"""
        self._frames: list[tuple[types.FrameType, dict[str, Any]]] = []
        """their calls, with what was in the cells when each began"""
        self._functions: dict[int, tuple[types.FunctionType, dict[str, Any]]] = {}
        """the functions that were called so"""

    def note_call(self, frame: types.FrameType) -> None:
        """Keep what is in the cells of a function when it is called."""
        local = frame.f_locals
        before = {name: local.get(name, MISSING) for name in frame.f_code.co_freevars}
        self._frames.append((frame, before))
        if len(self._frames) > MOST_FRAMES:
            self._called()

    def settle(self) -> None:
        """Note the cells of what ran, which is over.

        Not of functions that the run itself creates: what they close over is local to it.
        """
        self._called()
        every = [each for code in self.codes for each in code.co_consts]
        created = {id(each) for each in every if isinstance(each, types.CodeType)}
        for function, before in self._functions.values():
            if id(function.__code__) not in created:
                self._places.note_cells(function, before)
        self._frames.clear()
        self._functions.clear()
        self.codes.clear()

    def _called(self) -> None:
        """Find the functions of the calls that have ended: what is left of a frame holds it."""
        running = []
        for frame, before in self._frames:
            content, code = gc.get_referents(frame), frame.f_code
            functions = (each for each in content if type(each) is types.FunctionType)
            found = [each for each in functions if each.__code__ is code]
            for function in found:
                self._functions.setdefault(id(function), (function, before))
            if not found:
                running.append((frame, before))
        self._frames = running
