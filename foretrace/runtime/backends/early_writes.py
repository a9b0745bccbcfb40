"""Writes to inputs that a call of straight-line Python does where the program does them.

What it computes of such an input afterwards has the input's own history, so that a gradient asked
of the input, or a hook on it, sees what comes by way of the results. The others are done at the
end: until then a call can be abandoned, and run again as Python.
"""

from collections.abc import Sequence

import torch

from foretrace.ir.program.interface import Mutation
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.tensor_effects import Reshape
from foretrace.ir.values.value import values_in
from foretrace.lowering.emit.python_code import Straight
from foretrace.lowering.reinplace.order import raises
from foretrace.runtime.backends.inline_guards import ASSERTIONS, Undo
from foretrace.runtime.calls.epilogue import write_line

STRIDED = torch.ops.aten.as_strided.default
EarlyWrites = dict[int, list[Mutation]]
"""Writes, by the place of the op after which they are"""


def early_writes(recorded: Recording, ops: Sequence[Op], undo: Undo | None) -> EarlyWrites:
    """The writes that autograd follows and that later ops read.

    None after which a call may still be abandoned. `undo`: abandons it; None: nothing does.
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
        abandoned = undo is not None and any(_abandons(op, undo) for op in after)
        if read and laid and not (stays or abandoned):
            found.setdefault(place, []).append(mutation)
    return dict(sorted(found.items()))


def write_ops(
    straight: Straight, recorded: Recording, graph: Graph, inputs: Sequence[str],
    early: EarlyWrites, undo: Undo | None,
) -> None:  # fmt: skip
    """Statements for all ops, with these writes among them.

    Args:
        straight: takes them.
        recorded: the program.
        graph: its ops.
        inputs: names of the graph's inputs.
        early: the writes.
        undo: abandons the call before the first of them.
    """
    kept = {v for output in graph.outputs for v in values_in(output.value)}
    kept.update(item.value for item in graph.inputs)
    begin, source = 0, straight.source
    for place, mutations in early.items():
        later = {value for op in graph.ops[place + 1 :] for value in op.operands}
        straight.run(graph.ops[begin : place + 1], kept | later)
        if undo is not None and not begin:
            source.lines = undo.around(source.lines)
        for mutation in mutations:
            live, new = inputs[mutation.index], straight.names[mutation.value]
            write_line(source, recorded, mutation, live, new)
            straight.names[mutation.value] = live
        begin = place + 1
    straight.run(graph.ops[begin:], kept)


def _followed(op: Op) -> bool:
    return any(out.type.requires_grad for out in op.outs)


def _abandons(op: Op, undo: Undo) -> bool:
    return op.target in ASSERTIONS or raises(op, undo.may_raise)
