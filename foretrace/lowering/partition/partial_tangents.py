"""The backward of a pair for the tangents that there are, as they lie, from the same saved values.

Where an output gets no gradient, eager's backward does not pass through what made it: parameters
that only it reaches get None, and sums lack its part. Where a gradient lies otherwise than its
output, sums over it run in another order. So the backward is differentiated again for the tangents
that there are; the forward has run already, and what it saved is all there is.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.autograd.eager_history.history_ops import rename
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op, Value, map_values, substitute
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.tensor_type import TangentStrides
from foretrace.lowering.cuts.cut import Level, differentiated
from foretrace.lowering.partition.partition import SAVED_COPY, Pair, Saved, second
from foretrace.lowering.partition.placement import Sides
from foretrace.lowering.subclasses.desugar import unwrapped

WHY = "the backward for all gradients needs it"


def partial_backward(
    recorded: Recording,
    semantics: TargetSemantics,
    joint: Graph,
    pair: Pair,
    given: TangentStrides,
    opened: Callable[[Graph], Graph] = lambda graph: graph,
) -> Graph:
    """The backward for the tangents that are given, as they lie; inputs as of the pair's.

    Args:
        recorded: the program.
        semantics: what operators mean on its target.
        joint: the graph that the pair is made from.
        pair: what the forward has saved.
        given: which of the tangents there are, and their strides.
        opened: what was done to the joint graph before it was split.

    Raises:
        Refusal: it needs a value that the forward did not save.
    """
    part = differentiated(recorded, semantics, Level(False), None, given)
    part = opened(unwrapped(part, semantics))
    halves = Sides(part, recorded, semantics)
    meant = _counterparts(part.ops, joint.ops)
    saved = set(map(_original, pair.saved))
    kept = {v: meant[v] for op in part.ops for v in op.outs if meant.get(v) in saved}
    ops, handed = second(halves, dict.fromkeys(kept, WHY))
    known: dict[Value, Any] = {v: kept.get(v, v if v in saved else None) for v in handed}
    drawn = [op.outs[0] for op in ops if op not in halves.late and halves.once(op)]
    for value in (*drawn, *(v for v in handed if known[v] is None)):
        raise _not_saved(value, recorded)
    there = iter(halves.tangents)
    late = [item for item in pair.backward.inputs if item.role.kind == "tangent"]
    tangents = [next(there) if s is not None else i for i, s in zip(late, given, strict=True)]
    inputs = [i for i in pair.backward.inputs if i.role.kind != "tangent"]
    outputs = [replace(o, value=substitute(o.value, known)) for o in halves.gradients]
    return Graph([*inputs, *tangents], [rename(op, known) for op in ops], outputs, "backward")


def _original(saved: Saved) -> Any:
    """The value itself, by which the backward has it, where a copy of it is handed over."""
    op = saved.op
    copied = op is not None and op.choice is not None and op.choice.what == SAVED_COPY
    return op.args[-1] if op is not None and copied else saved.value


def _counterparts(ops: Iterable[Op], others: Iterable[Op]) -> dict[Value, Value]:
    """For each value of `ops`, the equal one among `others`: the same call of equal operands."""
    known: dict[str, Op] = {}
    found: dict[Value, Any] = {}
    for op in others:
        known.setdefault(_key(op, {}), op)
        found.update((out, out) for out in op.outs)
    for op in ops:
        other = known.get(_key(op, found))
        alike = other is not None and len(other.outs) == len(op.outs)
        if other is not None and alike and found.keys().isdisjoint(op.outs):
            found.update(zip(op.outs, other.outs, strict=True))
    return found


def _key(op: Op, found: dict[Value, Any]) -> str:
    """What the op calls, and with what."""
    return repr((id(op.target), map_values(substitute((op.args, op.kwargs), found), id)))


def _not_saved(value: Value, recorded: Recording) -> Refusal:
    return Refusal(
        f"a backward for some of the outputs alone needs {value!r}, which was not saved",
        kind="partial gradient",
        at=recorded.made_at(value),
        do=('use foretrace.compile(..., backend="eager")', "use all outputs in the loss"),
    )
