"""Python state outside of the arguments: what the program's own code reads of it and changes.

While the program runs, the interpreter reports each function that is entered. The bytecode of
each names the globals and closure cells that it may read or bind. They are kept as they were before
the function first ran, so that what the run changed is known, and can be put back.
"""

import gc
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from foretrace import torch_api
from foretrace.errors import Frame, Refusal
from foretrace.ir.pydata.state import Change
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
from foretrace.python_state.access.events import NO_REPORTS, events_for
from foretrace.python_state.access.named_places import Borrowed, ClosureCells, NamedPlaces
from foretrace.python_state.access.noted import (
    ABSTRACT_CHECKS,
    Asked,
    Mentions,
    Notes,
    Refusing,
    answers_for_library,
    reads_state,
)
from foretrace.python_state.access.unknown_calls import UnknownCalls, nothing_met, switches, unnoted
from foretrace.python_state.code.bytecode import reads_of
from foretrace.python_state.code.code_owner import NO_FILE, origin
from foretrace.python_state.snapshot.changes import changes_of
from foretrace.tracer.functionalization.builder import Unmonitored, nobody_watches
from foretrace.tracer.recorder.recorder import Recorder

Begins = Callable[[types.FrameType, Callable[[], dict[int, tuple[Any, Any]]]], None]


def nobody_looks(frame: types.FrameType, others: Callable[[], dict[int, tuple[Any, Any]]]) -> None:
    """Do nothing where code begins."""


class AccessMonitor(Unmonitored):
    """Watches one run: what it reads from outside.

    Args:
        refuse: notes a refusal, in case the program catches it.
        borrowed: what the run finds in the place of something else; empty: it is yet to be known.
        late: takes the functions that it comes to, and to which no name leads.
    """

    def __init__(
        self,
        refuse: Callable[[Refusal], Refusal] = unnoted,
        borrowed: Borrowed | None = None,
        late: list[types.FunctionType] | None = None,
    ) -> None:
        self.late = [] if late is None else late
        self.switching: dict[str, Frame] = {}
        """bindings that the program called itself and that switch torch's state, and the lines"""
        self._unknown = UnknownCalls(refuse, self.switching)
        self.holes: Refusing | None = None
        """refuses what the run is about to do outside of a graph; None: it may"""
        self.places = NamedPlaces({} if borrowed is None else borrowed)
        """the globals and closure cells that the program's code names"""
        self._cells = ClosureCells(self.places)
        self.mentions, self.asked = Mentions(), Asked()
        self._met: dict[int, Notes] = {}
        """what to do at each call of what ran; by id, as to hash code is to hash its constants"""
        self._reports = NO_REPORTS
        """switches those of the interpreter, during the run"""
        self._rests_at, self._along = list[types.CodeType](), list["AccessMonitor"]()
        self.resting = 0
        """how deep work of ours is going on"""
        self._begins: Begins = nobody_looks
        """is called where code of the user's begins for the first time"""
        self.of_layers = True
        """whether what torch's layers read counts"""

    def refuse_by(self, holes: Refusing) -> None:
        """Refuse what the run is about to do outside of a graph."""
        self.holes = holes

    def has_type(self) -> None:
        """Note that the program's code has Python's own `type` at hand."""
        self.asked.classes = self.asked.identity = True

    @contextmanager
    def watching(
        self, fn: Any, met: Callable[[Any], bool] = nothing_met, begins: Begins = nobody_looks
    ) -> Iterator[None]:
        """The run of `fn` inside is watched; the profiler of the thread rests meanwhile.

        `met`: whether it had an object before it began. `begins`: as `late_code.py` has it.
        """
        self._unknown, self._begins = self._unknown.knowing(met), begins
        self.places.note_cells(getattr(fn, "__func__", fn), {})
        events = events_for(self)
        if events.switched:
            self._meet_as(torch_api.asking_mode.__code__, (self._rest,))
            for code in self._rests_at:
                self._meet_as(code, (self._rest_now,))
        self._reports = events.reports
        try:
            with events:
                yield
        finally:
            self._reports = NO_REPORTS
            # without `met`, which would keep what the program had
            self._unknown, self._begins = self._unknown.knowing(nothing_met), nobody_looks
            self.ends()

    def begins(self, fn: Any, unknown: UnknownCalls) -> None:
        """Watch a part of what another watches, from `fn` on; a stand-in there is what it finds."""
        self._unknown = unknown
        self.places.note_cells(fn, {})

    def ends(self) -> None:
        """Note what is known only now: the cells of what ran."""
        self._cells.settle()
        self._met.clear()

    @contextmanager
    def along(self, other: "AccessMonitor", fn: Any) -> Iterator[None]:
        """Inside, another sees what runs, too: a part of the program, which begins with `fn`."""
        other.begins(fn, self._unknown)
        self._along.append(other)
        self._reports.all_again()  # also code that nobody minded so far
        try:
            yield
        finally:
            self._along.remove(other)
            other.ends()

    def __enter__(self) -> None:
        """Watch nothing inside: work of ours."""
        self.resting += 1
        if self.resting == 1:
            self._reports.stop()

    def __exit__(self, *error: object) -> None:
        self.ended()()

    def ended(self) -> Callable[[], Any]:
        """Work of ours has ended; the argument watches again, where it was the outermost.

        Its caller calls it last: the interpreter reports each function that returns after it.
        """
        self.resting -= 1
        return nobody_watches if self.resting else self._reports.go_on

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
        other = AccessMonitor(self._unknown.refuse, self.places.borrowed)
        try:
            with other.watching(None), other.of_users_alone():
                yield
        finally:
            for key, place in other.places.items():
                if place.changed and id(place.now) not in self.places.borrowed:
                    place.restore()
                else:
                    self.places.setdefault(key, place)
            self.mentions.take(other.mentions)

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
                    self.mentions.attributes.add(read.name)
        elif function is globals:
            for name in [*space] if origin(frame.f_code, space) == "user" else ():
                self.places.note(name, space)
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
        self.mentions.switches |= kind != "user" and switches(code)
        if kind == "library":
            return self._meet_library(frame, code)
        if imported:
            return self._meet_as(code, ())
        if kind == "layer":
            self.mentions.attributes |= reads_of(code).attributes
            self.asked.note_named(reads_of(code), space)
            self.mentions.note_counts(frame)
            return self._meet_as(code, ())
        return self._meet_users(frame, code)

    def _meet_users(self, frame: types.FrameType, code: types.CodeType) -> Notes:
        space = frame.f_globals
        self.resting += 1  # without a switch: nothing is reported in here by itself
        try:
            self._begins(frame, self._of_run)
        finally:
            self.resting -= 1
        self._read(code, space)
        if frame.f_locals is space:  # a text that binds the names themselves
            for name in reads_of(code).names:
                self.places.note(name, space)
        self.mentions.note_counts(frame)
        self.mentions.stores |= reads_of(code).stores
        self.asked.note(frame, reads_of(code))
        self.asked.attributes |= passes_on(code)
        notes: Notes = (self._cells.note_call,) if set(code.co_freevars) - {"__class__"} else ()
        if dicts_in(code):
            self.asked.note_dicts(frame)
            notes = (*notes, self.asked.note_dicts)
        if reads_by_itself(code):
            self._note_fields(frame)
            notes = (*notes, self._note_fields)
        return self._meet_as(code, notes)

    def _of_run(self) -> dict[int, tuple[Any, Any]]:
        """By id, what is put in the place of something else, by the run or for it, and that."""
        changed = [place for place in self.places.values() if place.changed]
        return {id(p.now): (p.now, p.before) for p in changed} | self.places.borrowed

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

    def _read(self, code: types.CodeType, space: dict[str, Any]) -> None:
        reads = reads_of(code)
        self.mentions.attributes |= reads.attributes
        self.mentions.own_attributes |= reads.attributes
        self.places.note_code(code, space)
        self.asked.note_builtins(reads, space)
        self.asked.note_named(reads, space)

    def _meet_as(self, code: types.CodeType, notes: Notes) -> Notes:
        self._cells.codes.append(code)
        self.asked.ran.add(id(code))
        self._met[id(code)] = notes
        return notes

    def _rest(self, frame: types.FrameType) -> None:
        """Watch nothing more if the recorder is next, which watches again when it has answered."""
        if issubclass(frame.f_locals[torch_api.ASKED_MODE], Recorder):
            self._reports.stop()

    def _rest_now(self, frame: types.FrameType) -> None:
        self._reports.stop()
