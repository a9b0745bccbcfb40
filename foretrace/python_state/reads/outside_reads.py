"""What a run that was watched may have read outside of its arguments: where the walk begins."""

from collections.abc import Collection, Iterable
from itertools import chain
from typing import Any

import torch

from foretrace.ir.program.call_requirements import CallRequirements
from foretrace.python_state.access.dynamic_names import names_of_getters
from foretrace.python_state.access.monitor import AccessMonitor
from foretrace.python_state.reads.object_parts import builtins_seen
from foretrace.python_state.reads.process_state import process_state
from foretrace.python_state.reads.state_reads import StateReads


def read_outside(
    outside: AccessMonitor,
    fn: Any,
    leaves: Iterable[tuple[str, Any]],
    requires: CallRequirements,
    inputs: Iterable[Any],
    open: set[int],
) -> None:
    """Note what the run of `fn` that was watched may have read, now that all is as before it.

    `open`: containers, by id, whose content a call reads, or leaves otherwise.
    """
    reading = reading_by(outside, open=open, unread=set(map(id, requires.notes.filled)))
    kinds = dict.fromkeys(requires.in_structure.kinds())
    items = [("the program", fn), *leaves, *((kind.__name__, kind) for kind in kinds)]
    places = chain(outside.places.values(), outside.asked.named())
    reading.read(requires.python.modules, places, items)
    reading.found += builtins_seen(outside.asked)
    reading.found += (*outside.asked.checks.values(), *outside.asked.answered())
    names = {place.name for place in outside.places.values()}
    reading.found += process_state(reading.mentioned | names)
    for index, tensor in enumerate(inputs):
        if isinstance(tensor, torch.Tensor) and vars(tensor):
            requires.inputs.set_on += reading.set_on(index, tensor)
    requires.python.reads, requires.python.met = reading.found, reading.met
    requires.python.mentioned = reading.mentioned


def reading_by(
    outside: AccessMonitor,
    *,
    also: frozenset[str] = frozenset(),
    open: Collection[int] = (),
    unread: Collection[int] = (),
) -> StateReads:
    """Follow what the code may read that a monitor has seen; `also`: further attributes."""
    named = names_of_getters(place.before for place in outside.places.values())
    return StateReads({*outside.mentions.attributes, *also, *named}, open, unread, outside.asked)
