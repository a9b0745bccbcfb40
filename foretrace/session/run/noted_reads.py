"""What the program may have read of Python state, noted when its run is over: for later calls."""

from collections.abc import Callable
from typing import Any

from foretrace import torch_api
from foretrace.ir.program.call_requirements import CallRequirements
from foretrace.ir.program.effects import CallMemo
from foretrace.ir.pydata.read_facts import ids_compared
from foretrace.ir.pydata.state import Change
from foretrace.ir.source.state_change_lines import Lines
from foretrace.python_state.access.global_switches import ambient_guards
from foretrace.python_state.effects.counters import counted_in, scheduled
from foretrace.python_state.effects.module_state import located
from foretrace.python_state.effects.state_inputs import (
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
from foretrace.session.run.session import Session


def note_reads(
    fn: Any,
    leaves: list[tuple[str, Any]],
    capture: Session,
    requires: CallRequirements,
    kept: list[Change],
    left: list[Change],
    lines: Callable[[], Lines],
) -> None:
    """Note what the program may have read of Python state, and which plain data it has changed.

    Args:
        fn: the program.
        leaves: its arguments.
        capture: its run.
        requires: takes it.
        kept: what is left as state.
        left: what else was changed, and is undone.
        lines: the lines of its functions.
    """
    requires.notes.effects += map(CallMemo, capture.memos.calls)
    left = [located(with_name(change, capture.outside), lines) for change in left]
    requires.notes.changed += left
    requires.notes.counted += counted_in((*requires.notes.changed, *kept))
    if capture.outside is None:
        return
    open = open_holders(capture.inputs, requires)
    kept_by_memos = [(each.name, each.result) for each in capture.memos.calls]
    read_outside(capture.outside, fn, [*leaves, *kept_by_memos], requires, capture.real, open)
    requires.python.reads += capture.memos.reads()
    data = bound_to_data(kept, capture.inputs, lines)
    asked = attributes_asked(capture.inputs, capture.real, capture.outside.mentions.own_attributes)
    requires.inputs.set_on += asked
    found = drop_unread(requires.python.reads, capture.inputs, capture.real, requires)
    reads = [*data, *of_filled(found, [*kept, *left], lines)]
    reads += [bound_before(change) for change in left if change.rebound]
    requires.python.reads = [*reads, *capture.ties(reads)]
    _note_ambient(requires, capture)
    requires.notes.counted += scheduled(requires.python.locations)
    check_first_call(requires, lines)


def _note_ambient(requires: CallRequirements, capture: Session) -> None:
    """Note which arguments the program knows by another way, and on what around it it depends."""
    objects = ids_compared(requires.python.reads)
    requires.shared.own = capture.own(requires, objects)
    asked = {"inference mode"} if capture.types.queries.answers.asks_inference else set[str]()
    if capture.recorder.scope.called_modules:
        asked.add("hooks of all modules")
    inference = capture.recorder.autograd.called_in_inference
    requires.python.ambient = ambient_guards(
        requires.python.mentioned, objects, asked, inference=inference
    )
    requires.python.kernels = [(row, row.read()) for row in torch_api.ROWS if row.chooses]
