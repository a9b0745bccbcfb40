"""Passes of joint cuts: the derivative of a program, beside it in one list of ops."""

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch

from foretrace.autograd.backward.differentiate import Differentiation
from foretrace.autograd.backward.gradient_hooks import Hooks, hooked, standing, state_kept
from foretrace.autograd.backward.unpack_hooks import saving_calls
from foretrace.autograd.eager_history.version_counters import VersionCounters
from foretrace.errors import Refusal
from foretrace.ir.program.interface import Input, Output, Role
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import Origin, RuleName
from foretrace.ir.program.recording import Graph, Recording, maker_of
from foretrace.ir.values.tensor_type import TangentStrides, TensorType
from foretrace.ir.values.value import Value
from foretrace.lowering.cuts.cut import cut_inside, flatten
from foretrace.lowering.cuts.missing_history import check_gradients_bare
from foretrace.lowering.pipelines.passes import CUT_SUBGRAPHS, Context, as_pass
from foretrace.lowering.pipelines.verify import DIFFERENTIATED
from foretrace.operators.targets.device_answers import absent_from_backwards
from foretrace.python_state.reads.backward_reads import BackwardReads


@as_pass("check gradients")
def check_left_gradients(graph: Graph, context: Context) -> Graph:
    """Refuse a `.grad` that the program leaves with a history."""
    check_gradients_bare(context.recorded)
    return graph


@as_pass("check hooks")
def check_hooks(graph: Graph, context: Context) -> Graph:
    """Refuse an input with a hook, which would run outside of the graph."""
    for item in context.recorded.inputs:
        if item.hooked and item.value.type.requires_grad:
            raise hooked(item, context.recorded.requires.defined)
    return graph


@as_pass("differentiate", DIFFERENTIATED)
def differentiate(graph: Graph, context: Context) -> Graph:
    """Append the derivative of the tree; hooks that the program registers on inputs are in it."""
    return _differentiated(graph, context, at_inputs=True)


@as_pass("differentiate", DIFFERENTIATED)
def differentiate_between_inputs(graph: Graph, context: Context) -> Graph:
    """Append the derivative of the tree; torch's autograd runs hooks on inputs afterwards."""
    return _differentiated(graph, context, at_inputs=False)


@as_pass("flatten")
def flatten_joint(graph: Graph, context: Context) -> Graph:
    """Open each op that the level does not keep, of forward and backward."""
    level = replace(context.joint_level, differentiated=True)
    return replace(graph, ops=list(flatten(graph.ops, level)))


@as_pass(CUT_SUBGRAPHS)
def cut_joint_subgraphs(graph: Graph, context: Context) -> Graph:
    """Cut the subgraphs of ops at the same level."""
    level = replace(context.joint_level, differentiated=True)
    return replace(graph, ops=cut_inside(graph.ops, level, context.semantics))


def _differentiated(graph: Graph, context: Context, *, at_inputs: bool) -> Graph:
    """The tree, then the ops of its derivative; tangents as inputs, gradients as outputs."""
    reads = BackwardReads(context.recorded)
    recorded, walk = context.recorded, _walk(context, reads)
    tangents = _seed(recorded, walk, context.loss, context.tangents)
    walk.stale.meet(recorded.ops)
    semantics = context.semantics
    there = absent_from_backwards(semantics.target, reads.watches)
    questions = nullcontext() if semantics.here else there
    with state_kept(recorded, walk.hooks), reads.walking(), questions:
        walk.walk(recorded.ops)
        if at_inputs and walk.hooks:
            walk.hooks.of_inputs(recorded.inputs, walk)
        read = reads.found()
    gradients = [
        Output(walk.gradients.get(item.value), Role("gradient", item.role.name))
        for item in recorded.inputs
        if item.value.type.requires_grad
    ]
    return replace(
        graph,
        inputs=[*graph.inputs, *tangents],
        ops=[*graph.ops, *walk.scope.ops],
        outputs=[*graph.outputs, *gradients],
        reads=read,
    )


def _walk(context: Context, reads: BackwardReads) -> Differentiation:
    recorded, semantics = context.recorded, context.semantics
    now = {m.index: m.value for m in recorded.mutations if not m.rebound}
    outside = {
        id(item.tensor): now.get(index, item.value)
        for index, item in enumerate(recorded.inputs)
        if item.tensor is not None
    }
    walk = Differentiation(
        semantics.derivatives, semantics.inference, semantics.table, context.joint_level.whole,
        outside, VersionCounters(recorded.overwritten), Hooks(standing(recorded)),
    )  # fmt: skip
    walk.reads = reads
    for call in saving_calls(recorded) if recorded.hooks else ():
        walk.packs |= call.packs
        walk.carried |= call.carried
        reads.of_hook(call)
    return walk


NOWHERE = Op("output", (), {}, None, (), origin=Origin(None, None))
"""What an output that no op returns is because of: an input handed back."""


# ---- where the backward walk starts --------------------------------------------------------------


def _seed(
    recorded: Recording, walk: Differentiation, loss: int | None, strides_of: TangentStrides | None
) -> list[Input]:
    """Give the outputs their gradients: one for a loss, new inputs for tangents."""
    if loss is not None:
        value: Value = _loss_value(recorded, loss)
        because = maker_of(recorded.ops, value) or NOWHERE
        ones = _ones_like(value, because)
        walk.scope.ops.append(ones)
        walk.gradients[value] = ones.outs[0]
        return []
    tangents = []
    followed = [output for output in recorded.returned if recorded.differentiable(output.value)]
    types = [output.value.type.without_gaps().with_grad(False) for output in followed]
    for i, strides in enumerate(strides_of or [type.laid for type in types]):
        if strides is not None:
            tangent, output = Value(types[i].arrived(strides)), followed[i]
            tangents.append(Input(tangent, Role("tangent", output.role.name or "output")))
            maker = maker_of(recorded.ops, output.value) or NOWHERE
            walk.add(output.value, tangent, maker)
    if not tangents:
        raise Refusal(
            "no output requires grad, so there is no gradient to compute",
            kind="nothing to differentiate",
            at=recorded.requires.defined,
            do='use cut("aten"), or let a parameter or an input require grad',
        )
    return tangents


def _loss_value(recorded: Recording, loss: Any) -> Value:
    if not isinstance(loss, int) or not 0 <= loss < len(recorded.returned):
        raise Refusal(
            f"loss={loss!r}, but the program has {len(recorded.returned)} outputs",
            kind="wrong loss",
            at=recorded.requires.defined,
            do="give the index of a scalar output, or None to pass tangents",
        )
    value = recorded.outputs[loss].value
    if not recorded.differentiable(value):
        raise Refusal(
            f"output {loss} does not require grad, or is a view taken under no_grad, so it has no"
            " backward graph",
            kind="wrong loss",
            at=recorded.defined_at(value),
            do='choose another output, or use cut("aten")',
        )
    if value.type.shape and value.type.numel != 1:
        raise Refusal(
            f"output {loss} is {value.type!r}; only a scalar has an implicit gradient",
            kind="wrong loss",
            at=recorded.defined_at(value),
            do="return a scalar loss, or use loss=None and pass tangents=",
        )
    return value


def _ones_like(value: Value, because: Op) -> Op:
    plain = value.type.with_grad(False)
    out = Value(TensorType(plain.shape, plain.stride, plain.dtype, plain.device))
    kwargs = {"pin_memory": False, "memory_format": torch.preserve_format}
    return Op(
        torch.ops.aten.ones_like.default, (value,), kwargs, out, (out,),
        origin=because.origin, because=because, rule=RuleName("root gradient", "engine"),
    )  # fmt: skip
