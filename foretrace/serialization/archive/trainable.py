"""A stored pair as a differentiable call."""

from collections.abc import Callable
from functools import partial
from typing import Any

from foretrace import torch_api
from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.values.tensor_type import TangentStrides
from foretrace.ir.values.value import Value
from foretrace.lowering.cuts.cut import Level
from foretrace.lowering.partition.partition import Pair
from foretrace.lowering.pipelines.partial_tangents import partial_backward
from foretrace.lowering.pipelines.passes import Context
from foretrace.runtime.backends.autograd_function import BackwardHalf, Flat, TrainableCall
from foretrace.runtime.backends.double_backward import straight_call
from foretrace.runtime.calls.core import core_of
from foretrace.runtime.calls.run_cut import Called, check_unhooked, finish, uncast
from foretrace.serialization.archive.stored_cut import Stored


def trained_by(
    forward: Called, backward: Called, stored: Stored, semantics: TargetSemantics
) -> Callable[..., Any] | None:
    """A call like the program's that trains by these halves; None where a call does more.

    Args:
        forward: the first half.
        backward: the second.
        stored: both as graphs, with the joint graph.
        semantics: of its operators.
    """
    recorded, pair = forward.calls.recorded, stored.pair
    if pair is None or not _trains_by_pair(recorded, stored.loss):
        return None
    built = partial(_backward, recorded, semantics, stored.graph, pair, backward)
    half = BackwardHalf(pair, None, built, relaid=True)
    halves = TrainableCall(recorded, pair, torch_api.unseen(forward.graph_module), half)

    def run(*args: Any, **kwargs: Any) -> Any:
        flat, sizes = forward.calls.inputs(args, kwargs, forward.graph)
        check_unhooked(forward.graph, flat)
        with forward.calls.grad_mode(), uncast():
            results = halves(*flat)
        return finish(recorded, flat, sizes, results, (args, kwargs))[0]

    return run


def _backward(
    recorded: Recording,
    semantics: TargetSemantics,
    joint: Graph,
    pair: Pair,
    backward: Called,
    strides: TangentStrides,
) -> Flat:
    """The second half for tangents with such strides: the stored one, or another from the tree."""
    if strides == pair.strides:
        return torch_api.unseen(backward.graph_module)
    graph = partial_backward(
        joint, pair, Context(recorded, semantics, Level(False), tangents=strides)
    )
    return straight_call(graph, recorded.symbols)


def _trains_by_pair(recorded: Recording, loss: int | None) -> bool:
    """Whether the halves of a joint graph are all that a training call does.

    So it is where tangents are inputs, and each result is a separate tensor with the autograd
    history that the graph has.
    """
    if loss is not None or recorded.makes_leaves or not recorded.requires.grad_mode:
        return False
    if any(recorded.writes_followed(mutation) for mutation in recorded.mutations):
        return False
    core = core_of(recorded)
    own = [output.value for output in recorded.outputs]
    values = [each for each in own if isinstance(each, Value)]
    same = [output.value for output in core.outputs] == own
    return same and core.mutations == recorded.mutations and not any(map(recorded.loose, values))
