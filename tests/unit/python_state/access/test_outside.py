"""`AccessMonitor`: what the code of one run reads and changes, outside of its arguments."""

import sys
from typing import Any

import pytest
import torch
from torch import nn

import foretrace
from foretrace.ir.pydata.members import MISSING
from foretrace.python_state.access.events import MONITORING, TOOLS
from foretrace.python_state.access.monitor import AccessMonitor
from foretrace.python_state.code.bytecode import reads_of
from foretrace.python_state.code.code_owner import origin_of
from foretrace.session.patches.collector import UNCOLLECTED
from tests.support.tools import other_tools

monitored = pytest.mark.skipif(MONITORING is None, reason="Python 3.11 has no sys.monitoring")
COUNT, TABLE, UNREAD, TEXT = 1, {"a": 1}, 3, "ab"


def reads() -> int:
    return COUNT + TABLE["a"]


def calls_what_reads() -> int:
    return reads()


def binds() -> None:
    global COUNT  # noqa: PLW0603
    COUNT += 1


def fills() -> None:
    TABLE["b"] = 2


def makes() -> None:
    global MADE  # noqa: PLW0603
    MADE = 1


def after(fn: Any) -> tuple[AccessMonitor, list[Any]]:
    """What was watched, and is as it was."""
    outside = AccessMonitor()
    with outside.watching(fn):
        fn()
    changes = outside.changes()
    for change in changes:
        change.undo()
    return outside, [(each.place.name, each.place.before, each.after) for each in changes]


def names(fn: Any) -> list[str]:
    with UNCOLLECTED:  # as in a capture: the collector may call Python of somebody's
        return sorted(place.name for place in after(fn)[0].places.values())


def test_globals_that_the_code_of_a_function_names() -> None:
    assert names(reads) == ["COUNT", "TABLE"]


def test_those_of_functions_that_it_calls() -> None:
    assert {"COUNT", "TABLE", "reads"} <= set(names(calls_what_reads))


def test_closure_cells() -> None:
    scale = 2

    def fn():
        return scale

    ((place,),) = [list(after(fn)[0].places.values())]
    assert (place.name, place.before) == ("scale", 2)


def test_cells_of_functions_that_the_run_makes_are_its_own() -> None:
    def fn():
        inner = 1

        def nested():
            return inner

        return nested()

    assert names(fn) == []


def test_a_global_that_is_bound_is_a_change_and_undone() -> None:
    assert after(binds)[1] == [("COUNT", 1, 2)]
    assert COUNT == 1


def test_an_entry_that_is_made_is_a_change_and_undone() -> None:
    assert after(fills)[1] == [("TABLE", MISSING, 2)]
    assert TABLE == {"a": 1}


def test_a_global_that_is_made_is_a_change_and_undone() -> None:
    assert after(makes)[1] == [("MADE", MISSING, 1)]
    assert "MADE" not in globals()


def test_a_cell_that_is_bound_is_a_change_and_undone() -> None:
    count = 0

    def fn():
        nonlocal count
        count += 1

    assert after(fn)[1] == [("count", 0, 1)]
    assert count == 0


def test_what_is_read_alone_is_no_change() -> None:
    assert after(reads)[1] == []


def test_attributes_that_the_code_mentions() -> None:
    def fn():
        return getattr(nn, "Linear").__name__ + str(torch.float32.is_complex)  # noqa: B009

    assert {"Linear", "is_complex"} <= after(fn)[0].mentions.attributes


def test_nothing_is_watched_while_work_of_ours_goes_on() -> None:
    outside = AccessMonitor()
    with outside.watching(calls_what_reads), outside:
        reads()
    assert outside.places == {}


def test_the_profiler_before_the_run_is_there_after_it() -> None:
    def profiler(frame, event, arg):
        return None

    sys.setprofile(profiler)
    try:
        after(reads)
        assert sys.getprofile() is profiler
    finally:
        sys.setprofile(None)


@monitored
def test_an_op_switches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.12 on a switch instruments all code again that is running."""
    switches = list[object]()
    for switch in ("setprofile", "settrace"):
        monkeypatch.setattr(sys, switch, switches.append)

    def fn(x):
        for _ in range(5):
            x = x.sin()
        return x

    foretrace.capture(fn, (torch.ones(2),))
    assert not switches


@pytest.mark.parametrize("tools", [(), pytest.param(TOOLS, marks=monitored)])
def test_what_is_read_between_ops(tools: tuple[int, ...]) -> None:
    """Also where others have every tool that tells of it without a switch."""

    def fn(x):
        return (x.sin() * reads()).cos() * len(another())

    def another():
        return TEXT

    with other_tools(*tools):
        program = foretrace.capture(fn, (torch.ones(2),))
    held = {str(each) for each in program.recorded.requires.python.reads}
    for name in ("COUNT", "TABLE", "TEXT"):
        assert any(name in each for each in held)


def test_whose_code_a_file_has() -> None:
    assert origin_of(__file__) == "user"
    assert origin_of("<stdin>") == origin_of("<string>") == "user"
    assert origin_of(nn.modules.linear.__file__) == "layer"
    assert origin_of(nn.modules.module.__file__) == "library"
    assert origin_of(torch.__file__) == "library"
    assert origin_of(sys.modules["json"].__file__) == "library"


def test_the_names_in_a_code_object() -> None:
    found = reads_of(binds.__code__)
    assert found.globals == ("COUNT",)
    assert found.binds == {"COUNT"}
    assert reads_of(reads.__code__).binds == set()
