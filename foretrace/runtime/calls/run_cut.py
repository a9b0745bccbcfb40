"""Run a cut: check the inputs, call the graph, write back what the program wrote."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, fx

from foretrace import torch_api
from foretrace.autograd.backward.gradient_hooks import hooked
from foretrace.errors import Refusal
from foretrace.ir.program.effect import Call, Phase
from foretrace.ir.program.interface import Input, Mutation
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.source.call_site import asking_line
from foretrace.ir.symbols.substitution import Numbers
from foretrace.ir.values.tensor_type import TangentStrides
from foretrace.lowering.reinplace.early_writes import counted_before
from foretrace.operators.abstract_tensors.subclass_types import flattened, wraps
from foretrace.runtime.calls.dual_inputs import check_plain, check_tangents
from foretrace.runtime.calls.output_tensors import OutputTensors
from foretrace.runtime.calls.tangents import agree, lay_out, sizes_by_data, strides_of
from foretrace.runtime.calls.untrainable_results import Untrained, mark, mark_spent
from foretrace.runtime.guards.cut_guards import CallGuards


class Called(Protocol):
    """A cut."""

    graph: Graph
    calls: CallGuards
    """the guards of its program"""
    again: Callable[[TangentStrides], tuple[Any, ...]]
    """builds it, and the other half, for tangents with such strides"""

    @property
    def graph_module(self) -> fx.GraphModule:
        """Its graph module."""

    @property
    def untrained(self) -> Untrained:
        """Its results that depend on Functions of which it has only the forward."""

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """Call it with flat inputs, in the order of the graph."""


def run_forward(cut: Called, args: Any, kwargs: Any) -> Any:
    """Call a forward cut like the program: same outputs, same writes."""
    flat, sizes = _inputs(cut, args, kwargs, cut.graph.ops)
    check_tangents(cut.graph, cut.calls.recorded, flat)
    with cut.calls.grad_mode(), uncast():
        results = mark(cut.graph_module(*flat), cut.untrained, flat)
    return finish(cut.calls.recorded, flat, sizes, results, (args, kwargs))[0]


def run_step(cut: Called, args: Any, kwargs: Any) -> Any:
    """Call an inference cut: in the program's grad mode, below autograd."""
    flat, sizes = _inputs(cut, args, kwargs)
    check_plain(flat)
    with cut.calls.grad_mode(), torch_api.kernels_below_autograd(), uncast():
        results = cut.graph_module(*flat)
    return finish(cut.calls.recorded, flat, sizes, results, (args, kwargs))[0]


def run_joint(
    cut: Called, args: Any, kwargs: Any, tangents: Sequence[Tensor] | None
) -> tuple[Any, dict[str, Tensor | None]]:
    """Call a joint cut: the outputs, and the gradient of everything that requires one."""
    flat, sizes = _inputs(cut, args, kwargs)
    (cut,), wanted, placed = _for_tangents((cut,), tangents, sizes)
    # Some kernels do another thing under no_grad (mkldnn_rnn_layer keeps no workspace), so the
    # grad mode is eager's, and nothing is followed because nothing requires grad.
    check_unhooked(cut.graph, flat)
    detached = [*_detached(flat), *placed]
    with torch.enable_grad(), uncast():
        results = cut.graph_module(*detached)
    recorded = cut.calls.recorded
    agree(recorded, wanted, placed, results)
    results = mark_spent(recorded, results)
    outputs, rest = finish(recorded, flat, sizes, results, (args, kwargs))
    return outputs, _named(cut.graph, rest)


def run_pair(
    forward: Called, backward: Called, args: Any, kwargs: Any, tangents: Sequence[Tensor] | None
) -> tuple[Any, dict[str, Tensor | None]]:
    """Call two halves as a joint cut is called; what the forward writes is written in between."""
    flat, sizes = _inputs(forward, args, kwargs)
    (forward, backward), wanted, placed = _for_tangents((forward, backward), tangents, sizes)
    recorded = forward.calls.recorded
    check_unhooked(forward.graph, flat)
    results = forward(*flat)
    agree(recorded, wanted, placed, results)
    results = mark_spent(recorded, results)
    outputs, saved = finish(recorded, flat, sizes, results, (args, kwargs))
    return outputs, _named(backward.graph, backward(*saved, *placed))


def _inputs(
    cut: Called, args: Any, kwargs: Any, seen: Sequence[Op] = ()
) -> tuple[list[Any], Numbers]:
    """The graph's inputs for a call, and the numbers of its open sizes.

    `seen`: the ops that run where autograd sees them.

    Raises:
        Refusal: the call breaks a guard.
    """
    flat, sizes = cut.calls.inputs(args, kwargs, cut.graph)
    if (recorded := cut.calls.recorded).effects:
        count_write([flat[index] for index in counted_before(recorded, seen)])
    return flat, sizes


def _for_tangents(
    cuts: tuple[Called, ...], tangents: Sequence[Tensor] | None, sizes: Numbers
) -> tuple[tuple[Called, ...], list[Input], list[Tensor]]:
    """The cuts for tangents with these strides, their inputs, and the tangents laid out so."""
    wanted = [item for item in cuts[-1].graph.inputs if item.role.kind == "tangent"]
    passed = [tangent.detach() for tangent in tangents or ()]
    if len(wanted) != len(passed):
        raise Refusal(
            f"the cut takes {len(wanted)} tangents, {len(passed)} were given",
            kind="wrong tangents",
            do="pass tangents=[...], one for each output that requires grad, in order",
        )
    for item, tangent in zip(wanted, passed, strict=True):
        sizes = sizes_by_data(item, tangent, sizes)
    strides = tuple(map(partial(strides_of, sizes=sizes), wanted, passed))
    if strides != tuple([item.value.type.laid for item in wanted]):
        cuts = cuts[-1].again(strides)
    return cuts, wanted, list(map(partial(lay_out, sizes=sizes), passed, strides))


def check_unhooked(graph: Graph, flat: Sequence[Any]) -> None:
    """Refuse inputs with hooks, which no graph runs, and dual numbers, whose tangents none has.

    Raises:
        Refusal: one has a hook on its gradient, from before or from an earlier call of the program;
            or is a dual number.
    """
    check_plain(flat)
    for item, passed in zip(graph.inputs, flat, strict=False):
        if item.value.type.requires_grad and torch_api.has_hooks(passed):
            raise hooked(item, asking_line())


def _named(graph: Graph, gradients: Sequence[Any]) -> dict[str, Tensor | None]:
    names = [o.role.name for o in graph.outputs if o.role.kind == "gradient"]
    return dict(zip(names, gradients, strict=True))


def run_half(module: fx.GraphModule, graph: Graph, args: Sequence[Any]) -> tuple[Any, ...]:
    """Call a forward or backward cut: flat, in the order of its signature."""
    if len(args) != len(graph.inputs):
        raise Refusal(
            f"the {graph.kind} cut takes {len(graph.inputs)} inputs, {len(args)} were given",
            kind="wrong call",
            do="pass what cut.signature lists as inputs, in order",
        )
    with torch.enable_grad(), uncast():  # as for a joint cut
        results: tuple[Any, ...] = module(*_detached(args))
    return results


@contextmanager
def uncast() -> Iterator[None]:
    """Autocast off while a graph runs: its casts are ops of the graph."""
    with ExitStack() as stack:
        for device in torch_api.autocast_devices():
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _detached(flat: Sequence[Any]) -> list[Any]:
    """The inputs, tensors detached."""
    return [each.detach() if isinstance(each, Tensor) else each for each in flat]


def finish(
    recorded: Recording, flat: list[Any], sizes: Numbers, results: Sequence[Any], arguments: Any
) -> tuple[Any, list[Any]]:
    """Write back, build the outputs, and leave what the program leaves in Python state.

    Args:
        recorded: the program.
        flat: the inputs of the graph.
        sizes: the numbers of the symbols.
        results: what the graph returned.
        arguments: those of the call.

    Returns:
        What the program returns; and the results that follow.
    """
    count = len(recorded.outputs)
    outputs, rest = list(results[:count]), list(results[count:])
    call = Call(flat, sizes, arguments, outputs)
    _run_effects(recorded, call, "memory")
    for mutation, content in zip(recorded.mutations, rest, strict=False):
        new = content if mutation.same_as is None else flat[mutation.same_as]
        write_back(recorded.inputs[mutation.index], flat[mutation.index], new, mutation)
        count_write([flat[index] for index in mutation.recounted])
    if not recorded.returns_results:
        call.outputs = OutputTensors(recorded, call).all()
    _run_effects(recorded, call, "state")
    call.result = recorded.out_structure.build(iter(call.outputs))
    _run_effects(recorded, call, "result")
    return call.result, rest[len(recorded.mutations) :]


def _run_effects(recorded: Recording, call: Call, phase: Phase) -> None:
    for kind, effects in recorded.effects_in(phase) if recorded.effects else ():
        kind.run(effects, call)


def write_back(item: Input, live: Tensor, new: Tensor, mutation: Mutation) -> None:
    """Write into an input as the program did: followed, under no_grad, or unseen by autograd.

    Raises:
        Refusal: eager gives the input the history of what it is a view of, which has none.
    """
    if mutation.owner is not None and item.owner is not None:
        setattr(*mutation.owner, new)
        return
    if mutation.hidden:
        live.data.copy_(new)
        return
    if mutation.unwritten:
        _give_history(live, new)
        return
    kept = mutation.kept or not new.requires_grad or (live.is_leaf and live.requires_grad)
    if wraps(type(live)) and (kept or not torch.is_grad_enabled()):
        _write_inner(live, new)
        return
    if not live.is_leaf and not torch_api.base_of(live).requires_grad:
        raise Refusal(
            f"the {item.role} is a view of what does not require grad, and loses its history once"
            " it is written to",
            kind="in-place on view",
            at=asking_line(),
            do="pass a clone of it",
        )
    uncounted = torch_api.uncounted(live) if mutation.uncounted else nullcontext()
    with torch.set_grad_enabled(torch.is_grad_enabled() and not kept), uncounted:
        if torch.is_grad_enabled() and not (torch_api.is_view(live) or live.retains_grad):
            live.detach_()  # else the gradient of its old values, zeros, would be added
        live.copy_(new)


def _give_history(live: Tensor, new: Tensor) -> None:
    """Let an input of another shape have the history of that shape; the content is the same."""
    if not (torch.is_grad_enabled() and new.requires_grad):
        return
    if not live.retains_grad:
        live.detach_()
    with torch_api.uncounted(live):
        live.copy_(new)


count_write = torch.autograd.graph.increment_version


def _write_inner(live: Any, new: Any) -> None:
    """Write into a subclass's inner tensors; autograd counts it as a write to the outer one."""
    for name in flattened(live)[0]:
        mine, its = getattr(live, name), getattr(new, name)
        if wraps(type(mine)):
            _write_inner(mine, its)
        elif mine is not its:
            mine.data.copy_(its)
    count_write(live)
