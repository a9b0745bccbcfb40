"""The backward of a pair for some tangents with their strides, from the same saved values.

Where an output gets no gradient, eager's backward does not pass through its op: parameters
that only it reaches get None, and sums lack its part. Where a gradient lies otherwise than its
output, sums over it run in another order. So the backward is differentiated again for the tangents
that there are; the forward has run already, and what it saved is all there is.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import sympy

from foretrace.errors import Refusal
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.walk import rename
from foretrace.ir.values.value import Value, substitute
from foretrace.lowering.partition.partition import Pair, missing_sizes, second
from foretrace.lowering.partition.placement import Sides
from foretrace.lowering.pipelines.counterparts import WithNumbers, counterparts, original
from foretrace.lowering.pipelines.kinds import DERIVED
from foretrace.lowering.pipelines.passes import Context, Pass, make_graph

WHY = "the backward for all gradients needs it"


def partial_backward(
    joint: Graph, pair: Pair, context: Context, then: Sequence[Pass] = ()
) -> Graph:
    """The backward for the tangents that arrived, with their strides; inputs as of the pair's.

    Args:
        joint: the graph that the pair is cut from.
        pair: what the forward has saved.
        context: the program; `tangents` says which of them there are, and their strides.
        then: the passes that were run over the joint graph before it was split.

    Raises:
        Refusal: it needs a value that the forward did not save.
    """
    recorded, semantics, strides = context.recorded, context.semantics, context.tangents or ()
    part = make_graph((*DERIVED, *then), "joint", context)
    halves = Sides(part, recorded, semantics)
    meant, numbers = counterparts(part.ops, joint.ops)
    saved = set(map(original, pair.saved))
    kept = {v: meant[v] for op in part.ops for v in op.outs if meant.get(v) in saved}
    ops, handed = second(halves, dict.fromkeys(kept, WHY))
    known: dict[Value, Any] = {v: kept.get(v, v if v in saved else None) for v in handed}
    drawn = [op.outs[0] for op in ops if op not in halves.late and halves.once(op)]
    for value in (*drawn, *(v for v in handed if known[v] is None)):
        raise _not_saved(value, recorded)
    there = iter(halves.tangents)
    late = [item for item in pair.backward.inputs if item.role.kind == "tangent"]
    tangents = [next(there) if s is not None else i for i, s in zip(late, strides, strict=True)]
    inputs = [i for i in pair.backward.inputs if i.role.kind != "tangent"]
    passed = {numbers.get(i.size, i.size): i.size for i in inputs if i.size in numbers}
    copies = WithNumbers({own: passed.get(one, one) for own, one in numbers.items()})
    ops = [rename(op, known) for op in ops]
    ops = copies.ops(ops) if numbers else ops
    for size in {*missing_sizes(halves, ops, [i.value for i in inputs])} - {i.size for i in inputs}:
        raise _not_saved(size, recorded)
    outputs = [replace(o, value=copies.tree(substitute(o.value, known))) for o in halves.gradients]
    return Graph([*inputs, *tangents], ops, outputs, "backward", part.reads)


def _not_saved(value: Value | sympy.Symbol, recorded: Recording) -> Refusal:
    return Refusal(
        f"a backward for some of the outputs alone needs {value!r}, which was not saved",
        kind="partial gradient",
        at=recorded.defined_at(value),
        do=('use foretrace.compile(..., backend="eager")', "use all outputs in the loss"),
    )
