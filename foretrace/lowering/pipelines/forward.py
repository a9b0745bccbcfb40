"""Passes of forward cuts: from the tree to a list of ops that trains as the program does."""

from collections.abc import Iterable
from dataclasses import replace

from foretrace.autograd.backward.gradient_hooks import with_hooks
from foretrace.autograd.eager_history.emit_history import EagerHistory, emit_history
from foretrace.autograd.eager_history.history_ops import HISTORY, left_in_memory, unmark
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph
from foretrace.lowering.cuts.cut import cut_inside, flatten, visible
from foretrace.lowering.cuts.dead_code import live, values_of, with_saved, without_unread
from foretrace.lowering.cuts.function_calls import check_calls
from foretrace.lowering.cuts.runtime_asserts import with_assertions
from foretrace.lowering.pipelines.passes import CUT_SUBGRAPHS, Context, as_pass
from foretrace.lowering.pipelines.returned_leaves import check_used_once, returned_inputs
from foretrace.lowering.pipelines.storage_offsets import placed
from foretrace.lowering.pipelines.verify import RUN
from foretrace.tracer.recorder.function_target import FunctionCall


@as_pass("flatten", RUN)
def flatten_leaving_writes(graph: Graph, context: Context) -> Graph:
    """Open each op that the level does not keep; writes that autograd does not see stay."""
    history = _history(context)
    return _with(
        graph,
        flatten(graph.ops, context.forward_level, history.stops, history.trained_body),
    )


@as_pass("flatten")
def flatten_forward(graph: Graph, context: Context) -> Graph:
    """Open each op that the level does not keep."""
    return _with(graph, flatten(graph.ops, context.forward_level))


@as_pass("drop unread writes", RUN)
def drop_unread_writes(graph: Graph, context: Context) -> Graph:
    """Drop writes that autograd does not see and nothing reads."""
    left = (v for old, (new, _) in context.overwritten.left.items() for v in (old, new))
    wanted = [*values_of(graph.outputs), *context.also, *(v for v in left if v is not None)]
    return _with(graph, without_unread(graph.ops, wanted, context.semantics))


@as_pass("history as ops")
def history_as_ops(graph: Graph, context: Context) -> Graph:
    """Put operators in the place of grad modes and of writes that autograd does not see."""
    history = replace(_history(context), visible=visible(graph.ops, values_of(graph.outputs)))
    return _with(graph, flatten(emit_history(graph.ops, history), context.forward_level))


@as_pass("separate reshaped")
def separate_reshaped(graph: Graph, context: Context) -> Graph:
    """Copy what is read after its shape was changed in place."""
    over = context.overwritten
    return _with(graph, over.with_copies(graph.ops)) if over.reshaped else graph


@as_pass("memory as ops")
def memory_as_ops(graph: Graph, context: Context) -> Graph:
    """Leave in memory what a backward is to find; refuse a returned leaf that is used twice."""
    recorded, left = context.recorded, context.overwritten.left
    if not left and all(output.same_as is None for output in recorded.outputs):
        return graph
    check_used_once(graph.ops, returned_inputs(recorded))
    ops = [op for value, found in left.items() for op in left_in_memory(value, *found)]
    return _with(graph, [*graph.ops, *ops]) if ops else graph


@as_pass("place views")
def place_views(graph: Graph, context: Context) -> Graph:
    """Count the offset of `as_strided` from where a copy begins."""
    if not any(op.choice is not None and op.choice.what == HISTORY for op in graph.ops):
        return graph
    return _with(graph, placed(graph.ops, context.semantics.inference.infer))


@as_pass("unmark leaves")
def unmark_leaves(graph: Graph, context: Context) -> Graph:
    """Put `detach` in the place of `requires_grad_`: autograd follows nothing."""
    return _with(graph, map(unmark, graph.ops))


@as_pass("drop dead ops")
def drop_dead(graph: Graph, context: Context) -> Graph:
    """Drop what no output needs and that does nothing else."""
    wanted = [*values_of(graph.outputs), *context.also]
    return _with(graph, live(graph.ops, wanted, context.semantics))


@as_pass(CUT_SUBGRAPHS)
def cut_trained_subgraphs(graph: Graph, context: Context) -> Graph:
    """Cut the programs that ops hold at the same level, and emit their history."""
    level, history = context.forward_level, EagerHistory(context.semantics, context.around, {})
    return _with(graph, cut_inside(graph.ops, level, context.semantics, history))


@as_pass(CUT_SUBGRAPHS)
def cut_subgraphs(graph: Graph, context: Context) -> Graph:
    """Cut the subgraphs of ops at the same level."""
    return _with(graph, cut_inside(graph.ops, context.forward_level, context.semantics))


@as_pass("return insides")
def return_insides(graph: Graph, context: Context) -> Graph:
    """Let an op that was kept whole return its inner values that are used."""
    return _with(graph, with_saved(graph.ops, values_of(graph.outputs)))


@as_pass("assert numbers")
def assert_numbers(graph: Graph, context: Context) -> Graph:
    """Assert what was assumed of numbers that data decides, where they are known."""
    if not context.recorded.symbols.assertions():
        return graph
    return _with(graph, with_assertions(graph.ops, context.recorded))


@as_pass("register hooks")
def register_hooks(graph: Graph, context: Context) -> Graph:
    """Register hooks on gradients where the run did."""
    if not context.recorded.hooks:
        return graph
    return _with(graph, with_hooks(graph.ops, context.recorded))


@as_pass("check Functions")
def check_functions(graph: Graph, context: Context) -> Graph:
    """Refuse an autograd.Function that no graph can call."""
    if any(isinstance(op.target, FunctionCall) for op in graph.ops):
        check_calls(graph.ops, graph.outputs)
    return graph


def _history(context: Context) -> EagerHistory:
    return EagerHistory(context.semantics, context.around, context.overwritten.copied)


def _with(graph: Graph, ops: Iterable[Op]) -> Graph:
    """A graph with other ops; the same graph, where they are the same list."""
    if ops is graph.ops:
        return graph
    return replace(graph, ops=ops if isinstance(ops, list) else list(ops))
