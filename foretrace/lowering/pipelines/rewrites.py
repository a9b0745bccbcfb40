"""Passes that rewrite the ops of a cut by the other rooms of the wing."""

from dataclasses import replace

from foretrace.ir.program.recording import Graph
from foretrace.lowering.cuts.decompose import decompose
from foretrace.lowering.cuts.functional_forms import functional
from foretrace.lowering.cuts.scalar_ops import as_tensors, in_file
from foretrace.lowering.partition.partition import partition
from foretrace.lowering.partition.recompute import recomputed
from foretrace.lowering.pipelines.passes import Context, as_pass
from foretrace.lowering.reinplace.final_copies import losses_first
from foretrace.lowering.subclasses.desugar import unwrapped


@as_pass("open subclasses")
def open_subclasses(graph: Graph, context: Context) -> Graph:
    """Put what a tensor subclass does in the place of an op on it."""
    return unwrapped(graph, context.semantics)


@as_pass("decompose")
def open_by_table(graph: Graph, context: Context) -> Graph:
    """Open the ops for which the table of the caller has a decomposition."""
    if context.table is None:
        return graph
    return decompose(graph, context.table, context.semantics, context.level.kept)


@as_pass("scalars as ops")
def scalars_as_ops(graph: Graph, context: Context) -> Graph:
    """Put operators in the place of what Python computes of numbers of data."""
    return replace(graph, ops=list(in_file(graph.ops, context.recorded.symbols)))


@as_pass("tensor numbers")
def numbers_as_tensors(graph: Graph, context: Context) -> Graph:
    """Put tensors of one element in the place of numbers of data, where the caller asks for it."""
    return as_tensors(graph, context.semantics) if context.numbers else graph


@as_pass("functional forms")
def without_writes(graph: Graph, _: Context) -> Graph:
    """Put an operator that returns a new tensor in the place of one that writes to its operand."""
    return replace(graph, ops=list(functional(graph.ops)))


@as_pass("recompute")
def recompute(graph: Graph, context: Context) -> Graph:
    """Run ops once more before a backward that reads what the policy does not keep."""
    return recomputed(graph, context.recorded, context.semantics, context.policy)


@as_pass("losses first")
def order_losses(graph: Graph, _: Context) -> Graph:
    """Let gradients depend on the numbers of their losses, and not on their types alone."""
    return losses_first(graph)


@as_pass("partition")
def take_forward(graph: Graph, context: Context) -> Graph:
    """Keep the half that gives the outputs, and what the other half reads of it."""
    return partition(graph, context.recorded, context.semantics, context.policy).forward


@as_pass("partition")
def take_backward(graph: Graph, context: Context) -> Graph:
    """Keep the half that gives the gradients, and what runs again for it."""
    return partition(graph, context.recorded, context.semantics, context.policy).backward
