"""What a run has changed of containers and objects among its arguments."""

from collections.abc import Callable
from dataclasses import replace
from operator import is_
from typing import Any

from foretrace.errors import Refusal
from foretrace.ir.program.call_requirements import CallRequirements
from foretrace.ir.pydata.containers import (
    COPY_ONE,
    SHARED,
    Structure,
    flatten,
    named_leaves,
    shared_in,
)
from foretrace.ir.pydata.location import OnArguments
from foretrace.ir.pydata.state import Change
from foretrace.ir.source.state_change_lines import Lines
from foretrace.python_state.effects.counters import counted
from foretrace.python_state.effects.module_state import located
from foretrace.python_state.effects.state_outputs import all_known


def arguments_changed(
    arguments: list[Any],
    form: Structure,
    call: Any,
    real: Any,
    requires: CallRequirements,
    lines: Callable[[], Lines],
) -> list[Change]:
    """What the run has changed of containers and objects among its arguments; one change at most.

    It is `rebound` where a call can do it again.

    Args:
        arguments: the leaves of the call, as it began.
        form: how they were nested.
        call: the arguments, as the run has left them.
        real: those of the caller.
        requires: takes the names of numbers that are others now.
        lines: of the program.
    """
    whole = {*map(id, requires.shared.whole_arguments)}
    left, now_form = flatten(call, whole)
    if now_form == form and all(map(is_, left, arguments)):
        return []
    now, _ = named_leaves(call, whole=whole)
    if now_form == form:
        leaves = zip(requires.names, now, arguments, strict=True)
        requires.notes.counted += [name for name, (_, new), old in leaves if counted(old, new)]
    names = [name for (name, leaf), old in zip(now, arguments, strict=False) if leaf is not old]
    names += [name for name, _ in now[len(arguments) :]]
    name = names[0].rpartition(".")[2] if names else "one of its arguments"
    change = Change(OnArguments(name, {}, None), call, rebound=True)
    if shared_in(real):
        at = located(change, lines).at
        raise Refusal(SHARED, kind="aliased inputs", at=at, do=COPY_ONE)
    kept = all_known(change, set(map(id, arguments)))
    return [change if kept else replace(change, after=None, rebound=False)]
