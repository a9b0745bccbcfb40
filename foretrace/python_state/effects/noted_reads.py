"""What the program may have read of Python state, noted when its run is over: for later calls."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from foretrace.ir.program.call_requirements import CallRequirements
from foretrace.ir.program.effects import CallMemo
from foretrace.ir.pydata.read_facts import ReadLocation
from foretrace.ir.pydata.state import Change
from foretrace.ir.source.state_change_lines import Lines
from foretrace.python_state.effects.counters import counted_in, scheduled
from foretrace.python_state.effects.memos import Memos
from foretrace.python_state.effects.module_state import located
from foretrace.python_state.effects.state_inputs import (
    Run,
    attributes_asked,
    check_first_call,
    drop_unread,
    open_holders,
)
from foretrace.python_state.effects.state_outputs import (
    bound_before,
    bound_to_data,
    of_filled,
    with_name,
)
from foretrace.python_state.reads.outside_reads import read_outside


class ReadingRun(Run, Protocol):
    """A run, and what it has read beside its inputs."""

    memos: Memos

    def ties(self, reads: Iterable[object]) -> Iterator[ReadLocation]:
        """Guards that modules still have the inputs that are not read in one of `reads`."""


def note_reads(
    fn: Any,
    leaves: list[tuple[str, Any]],
    run: ReadingRun,
    requires: CallRequirements,
    kept: list[Change],
    left: list[Change],
    lines: Callable[[], Lines],
) -> None:
    """Note what the program may have read of Python state, and which plain data it has changed.

    Args:
        fn: the program.
        leaves: its arguments.
        run: that of it.
        requires: takes it.
        kept: what is left as state.
        left: what else was changed, and is undone.
        lines: the lines of its functions.
    """
    requires.notes.effects += map(CallMemo, run.memos.calls)
    left = [located(with_name(change, run.outside), lines) for change in left]
    requires.notes.changed += left
    requires.notes.counted += counted_in((*requires.notes.changed, *kept))
    if run.outside is None:
        return
    open = open_holders(run.inputs, requires)
    kept_by_memos = [(each.name, each.result) for each in run.memos.calls]
    read_outside(run.outside, fn, [*leaves, *kept_by_memos], requires, run.inputs.real, open)
    requires.python.reads += run.memos.reads()
    data = bound_to_data(kept, run.inputs, lines)
    asked = attributes_asked(run.inputs, run.outside.mentions.own_attributes)
    requires.inputs.set_on += asked
    found = drop_unread(requires.python.reads, run.inputs, requires)
    reads = [*data, *of_filled(found, [*kept, *left], lines)]
    reads += [bound_before(change) for change in left if change.rebound]
    requires.python.reads = [*reads, *run.ties(reads)]
    requires.notes.counted += scheduled(requires.python.locations)
    check_first_call(requires, lines)
