"""What a watch is told of a thread's run, by either way that Python has."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import pytest

from foretrace.python_state.access.events import (
    MONITORING,
    TOOLS,
    Events,
    Monitored,
    Profiled,
    events_for,
)
from tests.support.tools import other_tools

monitored = pytest.mark.skipif(MONITORING is None, reason="Python 3.11 has no sys.monitoring")


class Noted:
    """Notes the names of what it is told, of this file's functions."""

    def __init__(self) -> None:
        self.resting, self.told = 0, list[str]()
        self.minded: Callable[[CodeType], bool] = lambda _: True

    def event(self, frame: FrameType, event: str, arg: Any) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename == __file__:
            what = arg.__qualname__ if event == "c_call" else frame.f_code.co_name
            self.told.append(what)

    def minds(self, code: CodeType) -> bool:
        return self.minded(code)

    def inspects(self, code: CodeType) -> bool:
        return code.co_filename == __file__


WAYS = [Profiled, pytest.param(Monitored, marks=monitored)]
Way = Callable[[Noted], Events]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[Way]:
    """Either way; in the end the interpreter is as it was."""
    before = sys.getprofile()
    kind = request.param

    def made(watch: Noted) -> Events:
        if kind is Profiled:
            return Profiled(watch)
        found = events_for(watch)
        assert type(found) is Monitored
        return found

    yield made
    assert sys.getprofile() is before
    assert not taken()


def taken() -> list[int]:
    """Which of our tools somebody has."""
    return [tool for tool in TOOLS if MONITORING is not None and MONITORING.get_tool(tool)]


def inner() -> int:
    return 1


def outer() -> int:
    return inner() + inner()


def calls_c() -> str:
    return ",".join([str(len("abc"))])


def told(way: Way, run: Callable[[], object]) -> list[str]:
    """What is told of a run; not of leaving."""
    watch = Noted()
    with way(watch):
        run()
        watch.resting = 1
    return [name for name in watch.told if name not in ("__exit__", "setprofile")]


def test_functions_that_begin(way: Way) -> None:
    assert told(way, outer) == ["outer", "inner", "inner"]


def test_functions_in_c_from_the_first_call_on(way: Way) -> None:
    """A method of a type's as that of the object."""
    assert told(way, calls_c) == ["calls_c", "len", "str.join"]
    watch = Noted()
    owners = list[object]()

    def event(frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call" and frame.f_code is calls_c.__code__:
            owners.append(arg.__self__)

    watch.event = event
    with way(watch):
        calls_c()
    assert owners[1:] == [","]


def test_a_generator_each_time_that_it_goes_on(way: Way) -> None:
    def counts() -> Iterator[int]:
        try:
            yield 1
            yield 2
        except KeyError:
            yield 3

    def runs() -> None:
        going = counts()
        for call in (next, next):
            call(going)
        assert going.throw(KeyError()) == 3
        going.close()

    assert told(way, runs).count("counts") == 4


def test_nothing_of_work_of_ours(way: Way) -> None:
    watch = Noted()
    events = way(watch)
    with events:
        watch.resting = 1
        events.reports.stop()
        outer()
        watch.resting = 0
        events.reports.go_on()
        inner()
        watch.resting = 1
        events.reports.stop()
    assert watch.told == ["inner"]


def test_nothing_of_another_thread(way: Way) -> None:
    def runs() -> None:
        other = threading.Thread(target=outer)
        other.start()
        other.join()

    assert not {"outer", "inner"}.intersection(told(way, runs))


def test_an_error_of_the_watch_is_raised_where_the_function_is_called(way: Way) -> None:
    class Raises(Noted):
        def event(self, frame: FrameType, event: str, arg: Any) -> None:
            if frame.f_code is inner.__code__ and event == "call":
                raise KeyError(event)

    with way(Raises()), pytest.raises(KeyError, match="call"):
        outer()


def test_the_profiler_of_the_thread_rests(way: Way) -> None:
    seen, before = list[str](), sys.getprofile()
    sys.setprofile(lambda frame, event, arg: seen.append(frame.f_code.co_name))
    try:
        assert told(way, outer)
        assert "outer" not in seen
        outer()
        assert "outer" in seen
    finally:
        sys.setprofile(before)


def test_a_profiler_that_the_run_leaves_is_gone(way: Way) -> None:
    """The fixture looks whether the one before is there."""
    with way(Noted()):
        sys.setprofile(lambda frame, event, arg: None)


@monitored
def test_what_nobody_minds_is_told_once() -> None:
    """In each run again."""
    for _ in range(2):
        watch = Noted()
        watch.minded = lambda code: code is not inner.__code__
        with events_for(watch):
            outer()
            outer()
            watch.resting = 1
        assert watch.told == ["outer", "inner", "outer"]


@monitored
def test_no_trace_is_left_in_the_code() -> None:
    with events_for(Noted()):
        calls_c()
        (tool,) = taken()
        assert MONITORING.get_local_events(tool, calls_c.__code__) == MONITORING.events.CALL
    with other_tools(tool):
        assert MONITORING.get_local_events(tool, calls_c.__code__) == 0
        assert MONITORING.get_events(tool) == 0


@monitored
def test_what_another_let_be_told_no_more_is_told() -> None:
    """By the id that is ours then."""
    with other_tools(tool := TOOLS[0]):
        start = MONITORING.events.PY_START
        MONITORING.register_callback(tool, start, lambda *_: MONITORING.DISABLE)
        MONITORING.set_events(tool, start)
        outer()
        MONITORING.register_callback(tool, start, None)
    assert told(events_for, outer) == ["outer", "inner", "inner"]


@monitored
def test_another_tool_goes_on() -> None:
    """A profiler, coverage: during the run, and after it."""
    seen, start = list[str](), MONITORING.events.PY_START
    with other_tools(tool := TOOLS[0]):
        MONITORING.register_callback(tool, start, lambda code, _: seen.append(code.co_name))
        MONITORING.set_events(tool, start)
        assert told(events_for, outer) == ["outer", "inner", "inner"]
        assert seen.count("inner") == 2
        outer()
        assert seen.count("inner") == 4


@monitored
def test_where_others_have_every_tool_the_profile_function_tells() -> None:
    with other_tools(*TOOLS):
        assert type(events_for(Noted())) is Profiled
        assert told(events_for, outer) == ["outer", "inner", "inner"]


@monitored
def test_a_run_inside_of_a_run() -> None:
    def runs() -> None:
        assert told(events_for, inner) == ["inner"]

    assert "inner" in told(events_for, runs)
    assert not taken()


@monitored
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_child_without_the_thread_has_the_tool_free() -> None:
    inside, forked = threading.Event(), threading.Event()

    def runs() -> None:
        with events_for(Noted()):
            inside.set()
            forked.wait(60)

    other = threading.Thread(target=runs)
    other.start()
    inside.wait(60)
    try:
        if not (child := os.fork()):
            os._exit(len(taken()))
    finally:
        forked.set()
        other.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
