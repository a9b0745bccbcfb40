"""What torch's partitioners do to a graph that changes results: draws that move, results merged."""

import operator
from collections.abc import Iterable

import torch
from torch import fx

from foretrace.autograd.eager_history.version_counters import view_positions_of
from foretrace.errors import Refusal
from foretrace.ir.program.interface import Output
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph
from foretrace.ir.values.value import Value
from foretrace.tracer.concrete.rng_draws import draws


def check_draws(joint: Graph, forward: fx.GraphModule, backward: fx.GraphModule) -> None:
    """Refuse halves that do not have each op which draws random numbers once, in its own half.

    Torch's partitioners leave out what nothing reads, and may run the others in the backward.
    """
    first, second = (
        {node.meta.get("foretrace") for node in half.graph.nodes if node.op != "placeholder"}
        for half in (forward, backward)
    )
    for op in filter(draws, joint.ops):
        if (op in first, op in second) != (not op.late, op.late):
            raise Refusal(
                f"partition_fn leaves out {op.target}, which draws random numbers, or runs it in"
                " the other half or in both",
                kind="wrong backend",
                at=op.origin.frame,
                do=(
                    "leave partition_fn out: foretrace's min_cut keeps each draw in its place",
                    "or use functorch.compile.default_partition, and what the op draws",
                ),
            )


def separate_results(
    forward: fx.GraphModule, results: Iterable[tuple[int, Output]], joint: Graph
) -> None:
    """Copy results that lie in one memory in the forward half, and in separate ones in eager.

    Torch's `min_cut_rematerialization_partition` computes once what is equal.

    Args:
        forward: changed in place.
        results: places among what it returns, with what the joint graph gives there.
        joint: the graph that was split.
    """
    end = forward.graph.output_node()
    known = _bases(joint.ops)
    places: list[fx.node.Argument] = [*end.args[0]]  # type: ignore[misc]
    there, seen = _bases_of_nodes(forward.graph), dict[fx.Node, Value]()
    for place, output in results:
        node, value = places[place], output.value
        if not isinstance(node, fx.Node) or not isinstance(value, Value):
            continue
        base = known.get(value, value)
        if seen.setdefault(there.get(node, node), base) is not base:
            with forward.graph.inserting_before(end):
                copy = forward.graph.call_function(torch.ops.aten.clone.default, (node,))
            copy.meta.update(node.meta)
            places[place] = copy
    end.args = (tuple(places),)
    forward.recompile()


def _bases(ops: Iterable[Op]) -> dict[Value, Value]:
    """For each view among the ops, what owns its memory."""
    found = dict[Value, Value]()
    for op in ops:
        for place, base, _ in view_positions_of(op):
            found[op.outs[place]] = found.get(base, base)
    return found


def _bases_of_nodes(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """The same of the nodes of a graph."""
    found = dict[fx.Node, fx.Node]()
    for node in graph.nodes:
        op = node.meta.get("foretrace")
        if not node.all_input_nodes or node.op != "call_function" or not isinstance(op, Op):
            continue
        first = node.all_input_nodes[0]
        if node.target is operator.getitem:
            found.update({node: found[first]} if first in found else {})
        elif any(True for _ in view_positions_of(op)):
            found[node] = found.get(first, first)
    return found
