"""`foretrace.aot_export_module`: torch's function, from one recorded run.

Source: aot_export_module in torch/_functorch/aot_autograd.py, GraphSignature in
torch/_functorch/_aot_autograd/schemas.py.
"""

from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.frontends.program import Cut, Program
from foretrace.frontends.program.later_calls import with_open_numbers
from foretrace.frontends.program.other_graphs import warn_guarded
from foretrace.frontends.torch_compat.dynamo_graph import capture_described
from foretrace.frontends.torch_compat.stateless_check import (
    check_settled,
    without_hooks,
    without_states,
)
from foretrace.ir.program.interface import Input
from foretrace.ir.program.recording import Recording
from foretrace.ir.source.call_site import Asked
from foretrace.ir.values.value import Value
from foretrace.lowering.cuts.cut import Level
from foretrace.lowering.cuts.decomposition_tracer import Table
from foretrace.lowering.cuts.writeback import check_begins
from foretrace.lowering.emit.calling_convention import Slot, arranged, as_attributes
from foretrace.lowering.pipelines.kinds import INFERENCE
from foretrace.lowering.pipelines.passes import Context, make_graph
from foretrace.lowering.pipelines.rewrites import open_by_table
from foretrace.session.run.run import record
from foretrace.session.run.session_parts import Assumed
from foretrace.session.run.setup import prepare


def aot_export_module(  # noqa: PLR0913 - torch's own signature
    mod: nn.Module,
    args: Iterable[Any],
    *,
    decompositions: Table | None = None,
    trace_joint: bool,
    output_loss_index: int | None = None,
    pre_dispatch: bool = False,
    dynamic_shapes: bool | None = None,
    kwargs: dict[str, Any] | None = None,
) -> tuple[fx.GraphModule, torch_api.GraphSignature]:
    """A flat graph of a module's call, optionally with its backward, and its signature.

    The graph takes parameters, buffers and the leaves of the call. It returns new contents of what
    the module writes, its outputs, and then the gradients of the loss. A parameter that the loss
    does not depend on has no gradient: it is not in `backward_signature`. A tensor with several
    names, or passed twice, is one input, under its first name.

    Args:
        mod: the module; it runs unmodified, once, and no kernel runs.
        args: example positional arguments; FakeTensors, with the sizes of their ShapeEnv, too.
        decompositions: functions by OpOverload, which open the graph's ops.
        trace_joint: whether the graph has the backward too.
        output_loss_index: which of the outputs is the loss, a scalar.
        pre_dispatch: leave operators as they are written; not with `trace_joint`.
        dynamic_shapes: whether every size of the arguments is a symbol.
        kwargs: example keyword arguments.

    Raises:
        Refusal: no exact graph, the loss is no scalar, another output requires grad; joint: the
            module writes to what requires grad, or the gradient of something else is needed.
    """
    with Asked("aot_export_module", mod):
        _check_call(mod, pre_dispatch and trace_joint)
        args, kwargs = tuple(args), dict(kwargs or {})
        with nullcontext() if trace_joint or pre_dispatch else torch.no_grad():
            program = _captured(mod, args, kwargs, dynamic_shapes, hooks=trace_joint)
        loss = _loss(program.recorded, output_loss_index) if trace_joint else None
        cut = _cut(program, loss, decompositions, pre_dispatch)
        return _flat_module(cut, _Call(mod, args, kwargs, program.recorded), loss)


def _cut(program: Program, loss: int | None, table: Table | None, written: bool) -> Cut:
    if loss is not None:
        return program.cut("joint", loss=loss, decompositions=table)
    if written:
        return program.cut("export", decompositions=table)
    context = Context(program.recorded, program.semantics, Level(False), table=table)
    graph = make_graph((*INFERENCE, open_by_table), "inference", context)
    return Cut(program, graph, None)


def _check_call(mod: Any, both: bool) -> None:
    if not isinstance(mod, nn.Module):
        raise Refusal(
            f"{mod!r:.60} is no nn.Module",
            kind="wrong call",
            do="call it as foretrace.aot_export_module(module, (arg, ...), trace_joint=...)",
        )
    if both:
        raise Refusal(
            "pre_dispatch and trace_joint are both set: ops as written have no backward of their"
            " own",
            kind="wrong call",
            do="leave pre_dispatch away, or keep ops by Program.cut('joint', keep=[...])",
        )


def _captured(
    mod: nn.Module, args: tuple[Any, ...], kwargs: Any, dynamic: bool | None, *, hooks: bool
) -> Program:
    """A run of the module that its next run would repeat."""
    program = _run(mod, args, kwargs, dynamic)
    counting = partial(with_open_numbers, mod, args, kwargs, dynamic or None)
    check_settled(program, partial(_run, mod, args, kwargs, dynamic), counting)
    warn_guarded(program.recorded, stacklevel=4)
    recorded = without_states(program.recorded, stacklevel=4)
    recorded = recorded if hooks else without_hooks(recorded, stacklevel=4)
    return Program(recorded, program.semantics)


def _run(mod: nn.Module, args: tuple[Any, ...], kwargs: Any, dynamic: bool | None) -> Program:
    leaves = [*torch_api.tree_leaves((args, kwargs)), *mod.parameters(), *mod.buffers()]
    if any(torch_api.is_fake(leaf) for leaf in leaves):
        return capture_described(mod, args, kwargs, leaves)
    run = prepare(
        mod, args, kwargs, None, dynamic or None, values="guard", assumed=Assumed(), separate=True
    )
    return Program(record(mod, args, kwargs, run), run.semantics)


# ---- the loss -----------------------------------------------------------------------------------


def _loss(recorded: Recording, index: Any) -> int:
    """The index of the loss among the leaves of the results; no other may require grad."""
    structure, count = recorded.out_structure, len(recorded.outputs)
    tops = structure.build(iter(range(count)))
    if not isinstance(tops, (tuple, list)):
        tops = torch_api.tree_leaves(tops)
    if type(index) is not int or not 0 <= index < len(tops) or type(tops[index]) is not int:
        raise Refusal(
            f"output_loss_index={index!r} names no tensor among the {len(tops)} outputs",
            kind="wrong loss",
            do="give the index of the output that is the scalar loss",
        )
    loss: int = tops[index]
    for place, output in enumerate(recorded.outputs):
        value = output.value
        if place != loss and isinstance(value, Value) and value.type.requires_grad:
            raise Refusal(
                f"output {output.role.name or place} requires grad and is not the loss",
                kind="wrong loss",
                at=recorded.defined_at(value),
                do="detach it, or use foretrace.capture(...).cut('joint', loss=...)",
            )
    return loss


# ---- the calling convention ---------------------------------------------------------------------


class _Call:
    """The arguments of the flat graph, in order, each with its input of the recording."""

    def __init__(
        self, mod: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], recorded: Recording
    ) -> None:
        self.recorded = recorded
        _check_containers(recorded)
        check_begins(recorded)
        self.parameters = dict(mod.named_parameters(remove_duplicate=False))
        self.buffers = dict(mod.named_buffers(remove_duplicate=False))
        lifted = (*self.parameters.values(), *self.buffers.values())
        self.in_spec = torch_api.tree_flatten(((*lifted, *args), kwargs))[1]
        self.leaves = [*lifted, *torch_api.tree_leaves((args, kwargs))]
        self.inputs = self._inputs(len(lifted))
        self.slot_of = {i: n for n, i in enumerate(self.inputs) if i is not None}

    def _inputs(self, lifted: int) -> list[int | None]:
        """For each leaf, its input; None for a constant, and for a repeated tensor."""
        inputs = self.recorded.inputs
        by_tensor = {id(item.live()): i for i, item in enumerate(inputs) if item.live() is not None}
        by_place = {item.argument: i for i, item in enumerate(inputs) if item.argument is not None}
        found: list[int | None] = [by_tensor.pop(id(t), None) for t in self.leaves[:lifted]]
        place = 0
        for leaf in self.leaves[lifted:]:
            is_input = isinstance(leaf, (torch.Tensor, torch.SymInt))
            found.append(by_place.get(place) if is_input else None)
            place += is_input
        return found

    def name(self, slot: int) -> str:
        """The parameter or buffer of a slot, or its placeholder."""
        named = [*self.parameters, *self.buffers]
        return named[slot] if slot < len(named) else argument(slot)


def _check_containers(recorded: Recording) -> None:
    for structure in (recorded.requires.in_structure, recorded.out_structure):
        if structure.objects:
            name, plain = structure.objects[0][1].__name__, "what .as_subclass(torch.Tensor) gives"
            of_tensors = torch_api.calls_function(structure.objects[0][1])
            known = "register it with torch.utils._pytree, or use dicts and tuples"
            raise Refusal(
                f"the call takes or returns a {name}, which torch's pytree does not know",
                kind="unknown container",
                do=f"pass, and return, {plain}" if of_tensors else known,
            )


def argument(slot: int) -> str:
    """Torch's name of a placeholder."""
    return f"arg{slot}_1"


def _flat_module(
    cut: Cut, call: _Call, loss: int | None
) -> tuple[fx.GraphModule, torch_api.GraphSignature]:
    recorded, outputs = call.recorded, cut.graph.outputs
    written = _written(call, joint=loss is not None)
    requiring = [i for i, item in enumerate(recorded.inputs) if item.value.type.requires_grad]
    first = len(recorded.outputs) + len(recorded.mutations)
    gradient_at = {i: first + n for n, i in enumerate(requiring)} if loss is not None else {}
    followed = [i for i in call.slot_of if i in gradient_at and outputs[gradient_at[i]].value]
    followed.sort(key=call.slot_of.__getitem__)
    order = [len(recorded.outputs) + n for n in written.values()]
    order += range(len(recorded.outputs))
    order += [gradient_at[i] for i in followed]
    outside = [(i, item) for i, item in enumerate(recorded.inputs) if i not in call.slot_of]
    for i, item in outside:
        if i in gradient_at and outputs[gradient_at[i]].value is not None:
            raise _gradient_outside(item)
    own = (range(len(written)), range(len(order) - len(followed), len(order)))
    slots = _slots(call, cut.graph_module)
    module = arranged(cut.graph_module, slots, order, as_attributes(outside), own)
    returned: Any = module.graph.output_node().args[0]
    results = [getattr(each, "name", None) for each in returned]
    leaves = [call.slot_of[i] for i in followed]
    return module, _signature(call, results, list(written), leaves, loss)


def _slots(call: _Call, module: fx.GraphModule) -> list[Slot]:
    """The placeholders; an unused one has the `val` of the same tensor, or its constant."""
    nodes = module.graph.find_nodes(op="placeholder")
    pairs = [*zip(call.leaves, call.inputs, strict=True)]
    vals = {id(leaf): nodes[i].meta["val"] for leaf, i in reversed(pairs) if i is not None}
    return [
        Slot(argument(n), i, vals.get(id(leaf), leaf) if i is None else nodes[i].meta["val"])
        for n, (leaf, i) in enumerate(pairs)
    ]


def _gradient_outside(item: Input) -> Refusal:
    return Refusal(
        f"the loss has a gradient for {item.role.name}, which is no parameter of the module",
        kind="captured gradient",
        do=(
            "register it as a parameter of the module, pass it as an argument, or detach it",
            "foretrace.capture(...).cut('joint', loss=...) takes it as it is",
        ),
    )


def _written(call: _Call, *, joint: bool) -> dict[int, int]:
    """The slots that the module writes to, in order, each with the index of its mutation."""
    found = {}
    for position, mutation in enumerate(call.recorded.mutations):
        item = call.recorded.inputs[mutation.index]
        if mutation.index not in call.slot_of:
            raise Refusal(
                f"the program writes to {item.role.name}, which is no input of the graph",
                kind="side effect",
                at=call.recorded.defined_at(mutation.value),
                do="register it as a buffer, or pass it as an argument",
            )
        if joint and item.value.type.requires_grad:
            raise Refusal(
                f"the program writes to {item.role.name}, which requires grad",
                kind="mutated input",
                at=call.recorded.defined_at(mutation.value),
                do="write to a clone; foretrace.capture(...).cut('joint') takes it as it is",
            )
        found[call.slot_of[mutation.index]] = position
    return dict(sorted(found.items()))


def _signature(
    call: _Call, results: list[Any], written: list[int], followed: list[int], loss: int | None
) -> torch_api.GraphSignature:
    """Torch's signature, by the names of placeholders and results."""
    count, lifted = len(call.parameters), len(call.parameters) + len(call.buffers)
    names: list[Any] = [argument(n) for n in range(len(call.leaves))]
    news = list(zip(results, written, strict=False))
    gradients = list(zip(results[len(results) - len(followed) :], followed, strict=True))
    outputs = results[len(written) : len(results) - len(followed)]

    def of(pairs: Iterable[tuple[Any, int]], low: int, high: int) -> dict[Any, Any]:
        return {result: call.name(slot) for result, slot in pairs if low <= slot < high}

    backward = (
        torch_api.BackwardSignature(
            of(gradients, 0, count), of(gradients, lifted, len(names)), outputs[loss]
        )
        if loss is not None
        else None
    )
    parameters: list[Any] = list(call.parameters)
    buffers: list[Any] = list(call.buffers)
    return torch_api.GraphSignature(
        parameters=parameters, buffers=buffers, user_inputs=names[lifted:], user_outputs=outputs,
        inputs_to_parameters=dict(zip(names, parameters, strict=False)),
        inputs_to_buffers=dict(zip(names[count:], buffers, strict=False)),
        buffers_to_mutate=of(news, count, lifted), parameters_to_mutate=of(news, 0, count),
        user_inputs_to_mutate=of(news, lifted, len(names)), in_spec=call.in_spec,
        out_spec=_out_spec(call.recorded), backward_signature=backward, input_tokens=[],
        output_tokens=[],
    )  # fmt: skip


def _out_spec(recorded: Recording) -> Any:
    leaves = iter(range(len(recorded.outputs)))
    return torch_api.tree_flatten(recorded.out_structure.build(leaves))[1]
