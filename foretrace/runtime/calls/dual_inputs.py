"""Dual numbers that the caller passes to a cut: torch's forward mode runs over a forward graph."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from foretrace import torch_api
from foretrace.autograd.eager_history.history_ops import HISTORY
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op, Write
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.walk import every_op
from foretrace.operators.abstract_tensors.subclass_types import dispatched
from foretrace.tracer.recorder.function_target import FunctionCall

DO = ("call the program itself", 'or its cut("export"), over which torch computes tangents')

TRACED = ("call the program itself", "or what foretrace.compile makes of it")
ENDS = (torch.ops.aten.detach.default, torch.ops.aten.data.default)


def check_plain(flat: Sequence[Any]) -> None:
    """Refuse dual numbers where a graph has a backward, or autograd does not run.

    Raises:
        Refusal: an input is one.
    """
    if any(map(_has_tangent, flat)):
        raise _refused("a graph with a backward has no tangents", DO)


def check_tangents(graph: Graph, recorded: Recording, flat: Sequence[Any]) -> None:
    """Refuse them where a forward graph computes otherwise with tangents than the program.

    Raises:
        Refusal: it writes what autograd did not follow as `detach`, which ends tangents, too; or it
            has only the forward of a Function.
    """
    if not any(map(_has_tangent, flat)):
        return
    ops = every_op(graph.ops)
    if any(op.target in ENDS and op.choice is not None and op.choice.what == HISTORY for op in ops):
        raise _refused(
            "this graph spells no_grad as detach, which ends tangents",
            TRACED,
        )
    has_views = any(item.view_of is not None for _, item in recorded.in_run_order)
    if has_views or any(mutation.hidden for mutation in recorded.mutations):
        raise _refused("an argument is written back without its tangent", TRACED)
    if any(map(_hidden, every_op(recorded.ops))):
        raise _refused("the program writes through detach(), which tangents do not follow", TRACED)
    if any(_opened(graph, recorded)):
        raise _refused("this graph has no rule for tangents of what it opened", DO)


def _hidden(op: Op) -> bool:
    return isinstance(op.target, Write) and any(s.func in ENDS for s in op.target.steps)


def _opened(graph: Graph, recorded: Recording) -> Iterator[bool]:
    """For each op of the program, whether the graph has only its part below autograd."""
    calls = (op.target for op in every_op(graph.ops) if isinstance(op.target, FunctionCall))
    whole = {call.context for call in calls}
    for op in every_op(recorded.ops):
        if isinstance(op.target, FunctionCall):
            yield op.target.context not in whole
        elif graph.kind == "aten":
            yield dispatched(op)


def _has_tangent(each: Any) -> bool:
    return isinstance(each, Tensor) and torch_api.has_tangent(each)


def _refused(why: str, do: tuple[str, ...]) -> Refusal:
    return Refusal(
        f"an input is a dual number of forward_ad, and {why}", kind="guard broken", do=do
    )
