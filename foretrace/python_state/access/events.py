"""The interpreter's reports on one thread's run: functions that begin, and calls of those in C.

A run is reported only between two pieces of work of ours, of which each op has one. On Python 3.11
the thread's profile function is switched off and on around each. From 3.12 on such a switch makes
the interpreter instrument all running code again, so there it stays on, by `sys.monitoring`, which
stops the reports on code that nobody watches (decision 067).
"""

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import get_ident
from types import BuiltinFunctionType, CodeType, FrameType, MethodDescriptorType
from typing import Any, Final, NamedTuple, Protocol

from foretrace import forks

MONITORING: Final[Any] = getattr(sys, "monitoring", None)
"""None on Python 3.11"""
TOOLS: Final = (3, 4)
"""Ids of tools that no kind of tool has by name: a debugger may begin in the midst of a run"""
NAME: Final = "foretrace"


def nothing() -> None:
    """What there is to do where nobody watches."""


class Watch(Protocol):
    """Who watches."""

    resting: int
    """how deep work of ours is going on: none of it is reported, where that is not switched off"""

    def event(self, frame: FrameType, event: str, arg: object) -> None:
        """As a profile function is: "call", and "c_call" with the function in C."""

    def minds(self, code: CodeType) -> bool:
        """Whether later calls of this code have to be reported."""

    def inspects(self, code: CodeType) -> bool:
        """Whether functions in C have to be reported that this code calls."""


class Reports(NamedTuple):
    """How reports are switched off and on in the midst of a run."""

    stop: Callable[[], Any] = nothing
    """at the begin of work of ours"""
    go_on: Callable[[], Any] = nothing
    """at its end; called last, as functions that return after it are reported"""
    all_again: Callable[[], Any] = nothing
    """reports code again that was left out, as nobody minded it"""


NO_REPORTS: Final = Reports()


class Events:
    """Reports to a watch, while inside, what this thread runs."""

    switched = False
    """Whether it has to stop for work of ours, the sooner the better"""

    def __init__(self, watch: Watch) -> None:
        self.watch, self.reports = watch, NO_REPORTS

    def __enter__(self) -> None:
        """Report from now on."""

    def __exit__(self, *error: object) -> None:
        """Leave the interpreter as it was."""


class Profiled(Events):
    """By the profile function of the thread; its own rests meanwhile."""

    switched = True

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        # A profiler written in C cannot be put back by its object, so that one is left alone.
        profiled: Any = sys.getprofile()
        traces = profiled is not None and not callable(profiled)
        report: Any = sys.settrace if traces else sys.setprofile
        self.reports = Reports(partial(report, None), partial(report, watch.event))
        self._put_back = partial(report, sys.gettrace() if traces else profiled)

    def __enter__(self) -> None:
        self.reports.go_on()

    def __exit__(self, *error: object) -> None:
        self._put_back()


class Monitored(Events):
    """By `sys.monitoring`, which is of all threads; the profile function of this one rests."""

    def __init__(self, watch: Watch, tool: int) -> None:
        super().__init__(watch)
        self.tool, self.thread, self.profiled = tool, get_ident(), sys.getprofile()
        self.reports = Reports(all_again=MONITORING.restart_events)
        self.codes: dict[int, CodeType] = {}
        """those whose calls of C are reported, by id: to hash code is to hash constants"""
        events = MONITORING.events
        self.callbacks = {
            events.PY_START: self._begins,
            events.PY_RESUME: self._begins,
            events.PY_THROW: self._thrown_into,
            events.CALL: self._calls,
        }

    def __enter__(self) -> None:
        """Report all code, also what was left out before."""
        self._noted = forks.noted(self._give_back)
        if callable(self.profiled):
            sys.setprofile(None)
        for event, report in self.callbacks.items():
            MONITORING.register_callback(self.tool, event, report)
        everywhere = sum(event for event in self.callbacks if event != MONITORING.events.CALL)
        MONITORING.restart_events()
        MONITORING.set_events(self.tool, everywhere)

    def __exit__(self, *error: object) -> None:
        forks.forgotten(self._noted)
        self._give_back()

    def _give_back(self) -> None:
        """Leave nothing in the code, of no thread's."""
        here, self.thread = get_ident() == self.thread, 0  # no report if this is interrupted
        MONITORING.set_events(self.tool, 0)
        for code in self.codes.values():
            MONITORING.set_local_events(self.tool, code, 0)
        for event in self.callbacks:
            MONITORING.register_callback(self.tool, event, None)
        MONITORING.free_tool_id(self.tool)
        if here and sys.getprofile() is not self.profiled:
            sys.setprofile(self.profiled)

    def _listens(self) -> bool:
        return not self.watch.resting and get_ident() == self.thread

    def _begins(self, code: CodeType, offset: int) -> Any:
        if self._listens():
            if id(code) not in self.codes and self.watch.inspects(code):
                self.codes[id(code)] = code
                MONITORING.set_local_events(self.tool, code, MONITORING.events.CALL)
            self.watch.event(sys._getframe(1), "call", None)
        return None if self.watch.minds(code) else MONITORING.DISABLE

    def _thrown_into(self, code: CodeType, offset: int, error: BaseException) -> None:
        """A generator goes on with an error; the interpreter reports each."""
        if self._listens():
            self.watch.event(sys._getframe(1), "call", None)

    def _calls(self, code: CodeType, offset: int, function: Any, first: Any) -> None:
        """A method in C comes with its object, as the object's own, as it does for a profiler."""
        if not self._listens():
            return
        if type(function) is MethodDescriptorType and isinstance(first, function.__objclass__):
            function = function.__get__(first)
        if isinstance(function, BuiltinFunctionType):
            self.watch.event(sys._getframe(1), "c_call", function)


def events_for(watch: Watch) -> Events:
    """What reports to a watch, by the better way that is free."""
    tool = _tool()
    return Profiled(watch) if tool is None else Monitored(watch, tool)


def _tool() -> int | None:
    """The id of a tool that was free, and is ours now."""
    for tool in TOOLS if MONITORING is not None else ():
        with suppress(ValueError):  # another has it
            MONITORING.use_tool_id(tool, NAME)
            return tool
    return None
