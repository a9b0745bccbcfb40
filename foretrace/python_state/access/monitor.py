"""Python state outside of the arguments: what the program's own code reads of it and changes.

While the program runs, the interpreter reports each function that is entered. The bytecode of
each names the globals and closure cells that it may read or bind. They are kept as they were before
the function first ran, so that what the run changed is known, and can be put back.
"""

import gc
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from foretrace import torch_api
from foretrace.errors import Frame, Refusal
from foretrace.ir.pydata.location import Location
from foretrace.ir.pydata.members import MISSING, cell_content, cells_of
from foretrace.ir.pydata.state import Change
from foretrace.ir.source.code_owner import NO_FILE, origin
from foretrace.ir.source.events import events_for
from foretrace.ir.symbols.builtin_casts import Chosen, Like
from foretrace.python_state.access.calling_frames import is_of_python
from foretrace.python_state.access.dynamic_names import (
    FUNCTIONS,
    dicts_in,
    passes_on,
    read_at,
    reads_by_itself,
    reads_by_name,
    reads_fields,
)
from foretrace.python_state.access.noted import (
    ABSTRACT_CHECKS,
    Asked,
    Notes,
    Refusing,
    answers_for_library,
    reads_state,
    state_of_python,
)
from foretrace.python_state.access.unknown_calls import UnknownCalls, nothing_met, switches, unnoted
from foretrace.python_state.code.bytecode import ANNOTATED, imported, reads_of
from foretrace.python_state.snapshot.changes import changes_of
from foretrace.tracer.functionalization.builder import Unmonitored, nobody_watches
from foretrace.tracer.recorder.recorder import Recorder

MOST_FRAMES = 64
"""Frames that are kept before those that have ended are let go"""


class AccessMonitor(Unmonitored):
    """Watches one run: what it reads from outside.

    Args:
        refuse: notes a refusal, in case the program catches it.
    """

    def __init__(self, refuse: Callable[[Refusal], Refusal] = unnoted) -> None:
        self.switching: dict[str, Frame] = {}
        """bindings that the program called itself and that switch torch's state, and the lines"""
        self._refuse, self._unknown = refuse, UnknownCalls(refuse, self.switching)
        self.holes: Refusing | None = None
        """refuses what the run is about to do outside of a graph; None: it may"""
        self.places: dict[tuple[int, str], Location] = {}
        self.attributes: set[str] = set()
        """names of attributes that the program's code, or torch's layers, mention"""
        self.own_attributes: set[str] = set()
        """those that the program's code mentions"""
        self.switches = False
        """whether code of torch's ran that may switch torch's state"""
        self.counts: set[str] = set()
        """names of what the program's code, or torch's layers, read and store to"""
        self.stores: set[str] = set()
        """names that the program's own code stores to; what it does not read by name it may read by
        another way (`vars(self)`)"""
        self.asked = Asked()
        self._met: dict[int, Notes] = {}
        """what to do at each call of what ran; by id, as to hash code is to hash its constants"""
        self._codes: list[types.CodeType] = []
        """what ran; alive, so that no other gets the same id"""
        self._frames: list[tuple[types.FrameType, dict[str, Any]]] = []
        """their calls, with what was in the cells when each began"""
        self._functions: dict[int, tuple[types.FunctionType, dict[str, Any]]] = {}
        """the functions that were called so"""
        self._stop: Callable[[], Any] = nobody_watches
        """stops the reports of the interpreter, during the run"""
        self._watch: Callable[[], Any] = nobody_watches
        """lets them go on"""
        self._all_again: Callable[[], Any] = nobody_watches
        self._rests_at, self._along = list[types.CodeType](), list["AccessMonitor"]()
        self.borrowed = dict[int, tuple[Any, Any]]()
        """what the run finds in the place of something else, and that, by the id of the one"""
        self.resting = 0
        """how deep work of ours is going on"""
        self.of_layers = True
        """whether what torch's layers read counts"""

    def refuse_by(self, holes: Refusing) -> None:
        """Refuse what the run is about to do outside of a graph."""
        self.holes = holes

    def has_type(self) -> None:
        """Note that the program's code has Python's own `type` at hand."""
        self.asked.classes = self.asked.identity = True

    @contextmanager
    def watching(self, fn: Any, met: Callable[[Any], bool] = nothing_met) -> Iterator[None]:
        """The run of `fn` inside is watched; the profiler of the thread rests meanwhile.

        `met`: whether it had an object before it began.
        """
        self._unknown = UnknownCalls(self._refuse, self.switching, met)
        fn = getattr(fn, "__func__", fn)
        self._cells(fn, {})
        events = events_for(self)
        if events.switched:
            self._meet_as(torch_api.asking_mode.__code__, (self._rest,))
            for code in self._rests_at:
                self._meet_as(code, (self._rest_now,))
        self._stop, self._watch = events.stop, events.go_on
        self._all_again = events.all_again
        try:
            with events:
                yield
        finally:
            self._stop = self._watch = self._all_again = nobody_watches
            # without `met`, which would keep what the program had
            self._unknown = UnknownCalls(self._refuse, self.switching)
            self.ends()

    def begins(self, fn: Any, unknown: UnknownCalls) -> None:
        """Watch a part of what another watches, from `fn` on; a stand-in there is what it finds."""
        self._unknown = unknown
        self._cells(fn, {})

    def ends(self) -> None:
        """Note what is known only now: the cells of what ran."""
        self._closures()
        self._met.clear()
        self._codes.clear()

    @contextmanager
    def along(self, other: "AccessMonitor", fn: Any) -> Iterator[None]:
        """Inside, another sees what runs, too: a part of the program, which begins with `fn`."""
        other.begins(fn, self._unknown)
        self._along.append(other)
        self._all_again()  # also code that nobody minded so far
        try:
            yield
        finally:
            self._along.remove(other)
            other.ends()

    def __enter__(self) -> None:
        """Watch nothing inside: work of ours."""
        self.resting += 1
        if self.resting == 1:
            self._stop()

    def __exit__(self, *error: object) -> None:
        self.ended()()

    def ended(self) -> Callable[[], Any]:
        """Work of ours has ended; the argument watches again, where it was the outermost.

        Its caller calls it last: the interpreter reports each function that returns after it.
        """
        self.resting -= 1
        return nobody_watches if self.resting else self._watch

    def rests_at(self, code: types.CodeType) -> None:
        """Watch nothing more where a call of this code begins, which says `__enter__` then."""
        self._rests_at.append(code)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Watch inside: the program's own code, in the midst of work of ours."""
        resting, self.resting = self.resting, 1
        self.ended()()
        try:
            yield
        finally:
            self.__enter__()
            self.resting = resting

    @contextmanager
    def of_users_alone(self) -> Iterator[None]:
        """Inside, torch's own code asks for work of ours: what its layers read is not watched."""
        before, self.of_layers = self.of_layers, False
        try:
            yield
        finally:
            self.of_layers = before

    @contextmanager
    def aside(self) -> Iterator[None]:
        """In the midst of work of ours, Python of the user's that eager does not run.

        What it reads counts as read; what it changes is undone.
        """
        other = AccessMonitor(self._refuse)
        other.borrowed = self.borrowed
        try:
            with other.watching(None), other.of_users_alone():
                yield
        finally:
            for key, place in other.places.items():
                if place.changed and id(place.now) not in self.borrowed:
                    place.restore()
                else:
                    self.places.setdefault(key, place)
            self.attributes |= other.attributes
            self.own_attributes |= other.own_attributes

    def names(self) -> dict[int, str]:
        """The former contents of globals and closure cells, by id, with their names."""
        return {id(place.before): place.name for place in self.places.values()}

    def changes(self) -> list[Change]:
        """What the run changed of globals and closure cells."""
        return changes_of(self.places.values())

    def minds(self, code: types.CodeType) -> bool:
        """Whether a later call of this code is to be noted.

        Of code that only work of ours has called so far, whether the program's call could be.
        """
        if any(each.minds(code) for each in self._along):
            return True
        notes = self._met.get(id(code))
        if notes is not None:
            return bool(notes)
        known = self.holes is not None and self.holes.marks(code)
        known |= is_of_python(code.co_filename)
        asks = reads_fields(code) or any(code is each for each in ABSTRACT_CHECKS)
        return known or asks or self._unknown.inspects(code) or origin(code, {}) != "library"

    def inspects(self, code: types.CodeType) -> bool:
        """Whether what code calls in C may be refused, or reads what no code names."""
        return self._unknown.inspects(code) or reads_by_name(code)

    def event(self, frame: types.FrameType, event: str, arg: object) -> None:
        """The reports of the interpreter."""
        for each in self._along:
            each.event(frame, event, arg)
        if event != "call":
            if event == "c_call":
                self._calls(frame, arg)
            return
        notes = self._met.get(id(frame.f_code))
        if notes is None:
            notes = self._meet(frame, frame.f_code)
        for note in notes:
            note(frame)

    def _calls(self, frame: types.FrameType, function: Any) -> None:
        """A function in C is about to be called."""
        space = frame.f_globals
        if type(function) is types.BuiltinFunctionType and function in FUNCTIONS:
            if origin(frame.f_code, space) == "user":
                read = read_at(frame)
                if read is not None and not self.asked.lists(read):
                    self.attributes.add(read.name)
        elif function is globals:
            for name in [*space] if origin(frame.f_code, space) == "user" else ():
                self._note(name, space)
        if self.holes is not None:
            self.holes.called(frame, function)
        self._unknown.called(frame, function)

    def _note_fields(self, frame: types.FrameType) -> None:
        """Note the object of which a function reads any attribute: its first argument."""
        self.asked.list_all(frame.f_locals[frame.f_code.co_varnames[0]])

    def _meet(self, frame: types.FrameType, code: types.CodeType) -> Notes:
        space = frame.f_globals
        kind = origin(code, space)
        if self.holes is not None and self.holes.marks(code):
            return self._meet_as(code, (self.holes.entered,))
        if kind != "user" and not self.of_layers:
            return ()  # met again where it runs for the program
        if any(code is getattr(each, "__code__", None) for each in gc.callbacks):
            return self._meet_as(code, ())  # the collector calls it, and not the program
        # what is imported runs once, not at each call, unlike a text that the program runs
        imported = code.co_name == "<module>" and not code.co_filename.startswith(NO_FILE)
        if any(code is each for each in ABSTRACT_CHECKS):
            self.asked.note_check(frame)
            return self._meet_as(code, (self.asked.note_check,))
        self.switches |= kind != "user" and switches(code)
        if kind == "library":
            return self._meet_library(frame, code)
        if imported:
            return self._meet_as(code, ())
        if kind == "layer":
            self.attributes |= reads_of(code).attributes
            self._note_counts(frame, code)
            return self._meet_as(code, ())
        self._read(code, space)
        if frame.f_locals is space:  # a text that binds the names themselves
            for name in reads_of(code).names:
                self._note(name, space)
        self._note_counts(frame, code)
        self.stores |= reads_of(code).stores
        self.asked.note(frame, reads_of(code))
        self.asked.attributes |= passes_on(code)
        notes: Notes = (self._note_cells,) if set(code.co_freevars) - {"__class__"} else ()
        if dicts_in(code):
            self.asked.note_dicts(frame)
            notes = (*notes, self.asked.note_dicts)
        if reads_by_itself(code):
            self._note_fields(frame)
            notes = (*notes, self._note_fields)
        return self._meet_as(code, notes)

    def _meet_library(self, frame: types.FrameType, code: types.CodeType) -> Notes:
        if reads_fields(code):
            self._note_fields(frame)
            return self._meet_as(code, (self._note_fields,))
        if answers_for_library(code):
            self.asked.note_answer(frame)
            return self._meet_as(code, (self.asked.note_answer,))
        if reads_state(code, frame.f_globals):
            self._read(code, frame.f_globals)
        if is_of_python(code.co_filename):
            self.asked.by_library |= reads_of(code).attributes
        return self._meet_as(code, ())

    def _note_counts(self, frame: types.FrameType, code: types.CodeType) -> None:
        """What the code counts with, and methods of its object that it names and may call."""
        reads = reads_of(code)
        self.counts |= reads.counts
        if code.co_argcount and code.co_varnames[0] == "self":
            for base in type(frame.f_locals.get("self")).__mro__:
                for name in reads.attributes.intersection(vars(base)):
                    if isinstance(method := vars(base)[name], types.FunctionType):
                        self.counts |= reads_of(method.__code__).counts

    def _read(self, code: types.CodeType, space: dict[str, Any]) -> None:
        reads = reads_of(code)
        self.attributes |= reads.attributes
        self.own_attributes |= reads.attributes
        for name in reads.globals:
            if name in space or name in reads.binds:
                self._note(name, space)
        self.asked.note_builtins(reads, space)
        for first, *way, name in reads.of_modules:
            module = space.get(first)
            for each in way:  # without a lookup of a class's, which may run
                module = vars(module).get(each) if isinstance(module, types.ModuleType) else None
            if isinstance(module, types.ModuleType):
                self._note(name, vars(module))
        for name in imported(code, space):
            self._note(name, sys.modules)
        for name, table in state_of_python(reads, space):
            self._note(name, table)

    def _note(self, name: str, space: dict[str, Any]) -> None:
        known = name == ANNOTATED or (id(space), name) in self.places
        if not known and type(space.get(name)) not in (Like, Chosen):
            content = self._as_it_was(space.get(name, MISSING))
            self.places[id(space), name] = Location(name, space, content)

    def _meet_as(self, code: types.CodeType, notes: Notes) -> Notes:
        self._codes.append(code)
        self.asked.ran.add(id(code))
        self._met[id(code)] = notes
        return notes

    def _note_cells(self, frame: types.FrameType) -> None:
        """What is in the cells of a function when it is called."""
        local = frame.f_locals
        before = {name: local.get(name, MISSING) for name in frame.f_code.co_freevars}
        self._frames.append((frame, before))
        if len(self._frames) > MOST_FRAMES:
            self._called()

    def _rest(self, frame: types.FrameType) -> None:
        """Watch nothing more if the recorder is next, which watches again when it has answered."""
        if issubclass(frame.f_locals[torch_api.ASKED_MODE], Recorder):
            self._stop()

    def _rest_now(self, frame: types.FrameType) -> None:
        self._stop()

    def _cells(self, function: Any, before: dict[str, Any]) -> None:
        """The cells of a function, with their former contents where those are known."""
        if not isinstance(function, types.FunctionType):
            return
        for name, cell in cells_of(function).items():
            if name != "__class__" and (id(cell), "") not in self.places:
                content = self._as_it_was(before.get(name, cell_content(cell)))
                self.places[id(cell), ""] = Location(name, cell, content)

    def _as_it_was(self, item: Any) -> Any:
        return self.borrowed[id(item)][1] if id(item) in self.borrowed else item

    def _closures(self) -> None:
        """The cells of functions that ran.

        Not of functions that the run itself creates: what they close over is local to it.
        """
        self._called()
        every = [each for code in self._codes for each in code.co_consts]
        created = {id(each) for each in every if isinstance(each, types.CodeType)}
        for function, before in self._functions.values():
            if id(function.__code__) not in created:
                self._cells(function, before)
        self._frames.clear()
        self._functions.clear()

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
