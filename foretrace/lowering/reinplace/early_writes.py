"""Writes to inputs that a call of straight-line Python does where the program does them.

What it computes of such an input afterwards has the input's own history, so that a gradient asked
of the input, or a hook on it, sees what comes by way of the results. The others are done at the
end: until then a call can be abandoned at a question of data, and run again as Python.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from foretrace.autograd.eager_history.version_counters import view_positions_of
from foretrace.ir.program.interface import Mutation
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Recording
from foretrace.ir.program.tensor_effects import Reshape
from foretrace.ir.values.value import Value
from foretrace.operators.schemas.schema import schema_of

STRIDED = torch.ops.aten.as_strided.default
EarlyWrites = dict[int, list[Mutation]]
"""Writes, by the place of the op after which they are"""


def early_writes(
    recorded: Recording, ops: Sequence[Op], possible: Callable[[Sequence[Op]], bool]
) -> EarlyWrites:
    """The writes that autograd follows and that later ops read.

    `possible`: whether there may be one before these ops, at which a call may be abandoned.
    """
    makers = {out: place for place, op in enumerate(ops) for out in op.outs}
    groups = recorded.requires.inputs.together.items()
    excluded = {each for memory, views in groups for each in (memory, *views)}
    excluded.update(effect.index for effect in recorded.effects_of(Reshape))
    found: EarlyWrites = {}
    for mutation in recorded.mutations:
        if mutation.index in excluded or mutation.rebound or not recorded.writes_followed(mutation):
            continue
        new, old = mutation.value, recorded.inputs[mutation.index].value
        after = ops[(place := makers.get(new, len(ops))) + 1 :]
        read = any(new in op.operands and _followed(op) for op in after)
        stays = any(old in op.operands for op in after)
        # where the input begins in its memory, a view by strides would say
        laid = new.type.stride == old.type.stride and all(op.target is not STRIDED for op in after)
        if read and laid and not stays and possible(after):
            found.setdefault(place, []).append(mutation)
    return dict(sorted(found.items()))


def without_later(mutation: Mutation, after: Iterable[Op]) -> Mutation:
    """The write as it is done early: the ops that follow it in place count their writes."""
    count = _writes_among(after, mutation.value)
    return replace(mutation, counted=mutation.counts[count:])


def counted_before(recorded: Recording, ops: Sequence[Op]) -> list[int]:
    """The inputs whose version counters count what effects do to them, one by one.

    `ops`: those that run where autograd sees them. What they write, for a backward to find it so,
    is counted then.
    """
    counts = Counter(index for effect in recorded.effects for index in effect.counted)
    for index in counts if ops else ():
        counts[index] -= _writes_among(ops, recorded.inputs[index].value)
    return [*counts.elements()]


def _writes_among(ops: Iterable[Op], value: Value) -> int:
    """How often ops write in place to the memory of a value."""
    memory, count = {value}, 0
    for op in ops:
        operator = hasattr(op.target, "overloadpacket")
        written = schema_of(op.target).written_now(op.args, op.kwargs) if operator else []
        of_it = not memory.isdisjoint(written)
        count += of_it
        memory.update(op.outs[out] for out, base, _ in view_positions_of(op) if base in memory)
        memory.update(op.outs if of_it else ())
    return count


def _followed(op: Op) -> bool:
    return any(out.type.requires_grad for out in op.outs)
