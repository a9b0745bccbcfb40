"""Run a cut: check the inputs, call the graph, write back what the program wrote."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Protocol

import sympy
import torch
from torch import Tensor, fx

from foretrace import torch_api
from foretrace.autograd.backward.gradient_hooks import hooked
from foretrace.autograd.derivatives.target_semantics import Captured
from foretrace.errors import Refusal
from foretrace.ir.program.nested import map_tree
from foretrace.ir.program.op import Value, ViewStep
from foretrace.ir.program.recording import Graph, Input, Mutation, Output, Recording
from foretrace.ir.program.tensor_type import TangentStrides
from foretrace.ir.pydata.returned import restore_identity
from foretrace.ir.pydata.state import put_all
from foretrace.ir.source.call_site import asking_line
from foretrace.ir.symbols.substitution import Numbers
from foretrace.operators.abstract_tensors.subclass_types import flattened, wraps
from foretrace.runtime.calls.dual_inputs import check_plain, check_tangents
from foretrace.runtime.calls.tangents import agree, lay_out, only_numbers, sizes_by_data, strides_of
from foretrace.runtime.calls.untrainable_results import Untrained, after_backward, mark, mark_spent
from foretrace.runtime.guards.cut_guards import CallGuards, number
from foretrace.runtime.guards.sizes_0_1 import SmallSizes


class Called(Protocol):
    """A cut."""

    graph: Graph
    calls: CallGuards
    """of the program that it is of"""
    again: Callable[[TangentStrides], tuple[Any, ...]]
    """makes it, and the other half, for tangents with such strides"""
    small: SmallSizes
    """of which sizes 0 and 1 it holds; of a half, the joint cut"""
    at: Callable[[Captured], tuple[Any, ...]]
    """makes it, and the other half, of the record at such sizes"""

    @property
    def graph_module(self) -> fx.GraphModule:
        """What runs it."""

    @property
    def untrained(self) -> Untrained:
        """Its results that depend on Functions of which it has only the forward."""

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """Flat, in the order of the graph."""


def run_forward(cut: Called, args: Any, kwargs: Any) -> Any:
    """Call a forward cut like the program: same outputs, same writes."""
    (cut,), flat, sizes = _at_sizes((cut,), args, kwargs)
    check_tangents(cut.graph, cut.calls.recorded, flat)
    with cut.calls.grad_mode(), uncast():
        results = mark(cut.graph_module(*flat), cut.untrained, flat)
    return finish(cut.calls.recorded, flat, sizes, results, (args, kwargs))[0]


def run_step(cut: Called, args: Any, kwargs: Any) -> Any:
    """Call a cut that autograd follows no more: in the program's grad mode, below autograd."""
    (cut,), flat, sizes = _at_sizes((cut,), args, kwargs)
    check_plain(flat)
    with cut.calls.grad_mode(), torch_api.below_autograd(), uncast():
        results = cut.graph_module(*flat)
    return finish(cut.calls.recorded, flat, sizes, results, (args, kwargs))[0]


def run_joint(
    cut: Called, args: Any, kwargs: Any, tangents: Sequence[Tensor] | None
) -> tuple[Any, dict[str, Tensor | None]]:
    """Call a joint cut: the outputs, and the gradient of everything that requires one."""
    cuts, flat, sizes = _at_sizes((cut,), args, kwargs)
    (cut,), wanted, placed = _as_given(cuts, tangents, sizes)
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
    cuts, flat, sizes = _at_sizes((forward, backward), args, kwargs)
    (forward, backward), wanted, placed = _as_given(cuts, tangents, sizes)
    recorded = forward.calls.recorded
    check_unhooked(forward.graph, flat)
    results = forward(*flat)
    agree(recorded, wanted, placed, results)
    results = mark_spent(recorded, results)
    outputs, saved = finish(recorded, flat, sizes, results, (args, kwargs))
    return outputs, _named(backward.graph, backward(*saved, *placed))


def _at_sizes(
    cuts: tuple[Called, ...], args: Any, kwargs: Any
) -> tuple[tuple[Called, ...], list[Any], Numbers]:
    """The cuts for a call, where sizes 0 and 1 have some of their own; inputs and sizes.

    Raises:
        Refusal: the call breaks a guard.
    """
    has_hooks = cuts[0].graph.kind in ("joint", "forward")
    flat, sizes = cuts[0].calls.inputs(args, kwargs, small=True, hooks=has_hooks)
    there = cuts[0].small.there(sizes)
    if there is not None:
        return _at_sizes(cuts[-1].at(there), args, kwargs)
    for index in cuts[0].calls.recorded.requires.reshaped:
        count_write(flat[index])
    return cuts, flat, sizes


def _as_given(
    cuts: tuple[Called, ...], tangents: Sequence[Tensor] | None, sizes: Numbers
) -> tuple[tuple[Called, ...], list[Input], list[Tensor]]:
    """The cuts for tangents that lie as these, what they are of, and these: sums run in order."""
    wanted = [item for item in cuts[-1].graph.inputs if item.role.kind == "tangent"]
    given = [tangent.detach() for tangent in tangents or ()]
    if len(wanted) != len(given):
        raise Refusal(
            f"the cut takes {len(wanted)} tangents, {len(given)} were given",
            kind="wrong tangents",
            do="pass tangents=[...], one for each output that requires grad, in order",
        )
    for item, tangent in zip(wanted, given, strict=True):
        sizes = sizes_by_data(item, tangent, sizes)
    strides = tuple(map(partial(strides_of, sizes=sizes), wanted, given))
    if strides != tuple([item.value.type.laid for item in wanted]):
        cuts = cuts[-1].again(strides)
        there = cuts[-1].small.there(only_numbers(sizes))
        if there is not None:
            return _as_given(cuts[-1].at(there), tangents, sizes)
    return cuts, wanted, list(map(partial(lay_out, sizes=sizes), given, strides))


def check_unhooked(graph: Graph, flat: Sequence[Any]) -> None:
    """Refuse inputs with hooks, which no graph runs, and dual numbers, whose tangents it has not.

    Raises:
        Refusal: one has a hook on its gradient, from before or from an earlier call of the program;
            or is a dual number.
    """
    check_plain(flat)
    for item, given in zip(graph.inputs, flat, strict=False):
        if item.value.type.requires_grad and torch_api.has_hooks(given):
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
    """Autocast is off while a graph runs: what it casts is an op of the graph."""
    with ExitStack() as stack:
        for device in torch_api.autocast_devices():
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _detached(flat: Sequence[Any]) -> list[Any]:
    """Inputs that nothing follows; a number is as it is."""
    return [each.detach() if isinstance(each, Tensor) else each for each in flat]


def finish(
    recorded: Recording, flat: list[Any], sizes: Numbers, results: Sequence[Any], call: Any
) -> tuple[Any, list[Any]]:
    """Write back, build the outputs, and leave what the program leaves in Python state.

    Args:
        recorded: the program.
        flat: the inputs of the graph.
        sizes: what the symbols are.
        results: what the graph has given.
        call: the arguments of the call.

    Returns:
        What the program returns; and the results that follow.
    """
    count = len(recorded.outputs)
    outputs, rest = list(results[:count]), list(results[count:])
    for mutation, new in zip(recorded.mutations, rest, strict=False):
        write_back(recorded.inputs[mutation.index], flat[mutation.index], new, mutation)
    for index, type in recorded.requires.reshaped.items():
        lie_as(flat[index], *([number(n, sizes) for n in p] for p in (type.shape, type.stride)))
    _place(recorded, flat, sizes, outputs)
    for change in recorded.requires.changed:
        change.redo()
    put_all(recorded.requires.states, outputs, flat, call)
    for index in recorded.requires.cleared:
        flat[index].grad = None
    for index, on in recorded.requires.flags.items():
        flat[index].requires_grad_(on)
    built = recorded.out_structure.build(iter(outputs))
    built = restore_identity(recorded.requires.handed, built, call)
    return built, rest[len(recorded.mutations) :]


def _place(recorded: Recording, flat: list[Any], sizes: Numbers, outputs: list[Any]) -> None:
    """Put inputs that are handed back, views of their memory, and constants in their places."""
    views: dict[Value, Tensor] = {}
    for position, output in recorded.as_made:
        if position is None:
            views[output.value] = _view(flat, sizes, recorded, output, None, views)
        elif not isinstance(output.value, (Value, sympy.Basic)):
            outputs[position] = output.value
        elif output.same_as is not None:
            outputs[position] = flat[output.same_as]
        elif recorded.spent(output.value):
            outputs[position] = after_backward(outputs[position])
        elif output.view_of is not None or (
            recorded.loose(output.value) and outputs[position].requires_grad
        ):
            if output.value not in views:  # one tensor that is returned twice is one again
                views[output.value] = _view(flat, sizes, recorded, output, outputs[position], views)
            outputs[position] = views[output.value]


def write_back(item: Input, live: Tensor, new: Tensor, mutation: Mutation) -> None:
    """Write as the program did: followed, under no_grad, or without autograd's knowledge.

    Raises:
        Refusal: eager gives the input the history of what it is a view of, which has none.
    """
    if mutation.rebound and item.owner is not None:
        setattr(*item.owner, new)
        return
    if mutation.hidden:
        live.data.copy_(new)
        return
    if wraps(type(live)):
        _write_held(live, new)
        return
    if not live.is_leaf and not torch_api.base_of(live).requires_grad:
        raise Refusal(
            f"the {item.role} is a view of what does not require grad, and loses its history once"
            " it is written to",
            kind="in-place on view",
            at=asking_line(),
            do="pass a clone of it",
        )
    kept = mutation.kept or not new.requires_grad or (live.is_leaf and live.requires_grad)
    with torch.set_grad_enabled(torch.is_grad_enabled() and not kept):
        if torch.is_grad_enabled() and not (torch_api.is_view(live) or live.retains_grad):
            live.detach_()  # else the gradient of what it held, zeros, would be added
        live.copy_(new)


count_write = torch.autograd.graph.increment_version


def lie_as(live: Tensor, shape: list[int], stride: list[int]) -> None:
    """Give an input the shape that operators in place gave it.

    Version counters have told of it before the graph ran: what the caller has saved is another now,
    what the graph saves afterwards is as it was. What it saves before is written over in the graph.
    """
    with torch_api.uncounted(live):
        live.as_strided_(shape, stride)


def _write_held(live: Any, new: Any) -> None:
    """Write into what a tensor holds; autograd, which follows no such write, counts it."""
    for name in flattened(live)[0]:
        mine, its = getattr(live, name), getattr(new, name)
        if wraps(type(mine)):
            _write_held(mine, its)
        elif mine is not its:
            with torch.no_grad():
                mine.copy_(its)
    count_write(live)


class _InMemory(torch.autograd.Function):
    """Gives a tensor's memory the history of another that has the same content."""

    @staticmethod
    def forward(ctx: Any, memory: Tensor, made: Tensor) -> Tensor:
        return memory.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, gradients[0]


in_memory: Any = _InMemory.apply


def _taken(of: Tensor, step: ViewStep, sizes: Numbers) -> Tensor:
    """The view that a call takes."""
    where = map_tree(step.args[1:], lambda n: number(n, sizes) if isinstance(n, sympy.Basic) else n)
    view: Tensor = step.func(of, *where)
    return view


def loose(tensor: Tensor) -> Tensor:
    """The tensor as a view that is taken under no_grad: it requires grad, without a history."""
    leaf = tensor.detach().requires_grad_()
    with torch.no_grad():
        return torch.ops.aten.alias.default(leaf)  # view_as has other strides where a size is 1


def _view(
    flat: list[Any],
    sizes: Numbers,
    recorded: Recording,
    output: Output,
    made: Any,
    views: dict[Value, Tensor],
) -> Tensor:
    """An output that is a view: of a live input's memory, or without a history.

    `made` is what the graph gives for it, if it is returned; `views` are those made so far.
    """
    value: Value = output.value
    if output.view_of is None or output.view_type is None:
        return loose(made)
    live, seen = flat[output.view_of], output.view_type
    before = recorded.inputs[output.view_of].value.type.offset
    shape, stride = (tuple(number(n, sizes) for n in part) for part in (seen.shape, seen.stride))
    offset = number(seen.offset, sizes) - number(before, sizes) + live.storage_offset()
    followed = made is None or (made.requires_grad and recorded.followed(value))
    if followed and output.through is not None:
        live = views[output.through.value]
    own = output.apart or not followed
    if output.step is not None and followed:
        return _taken(live, output.step, sizes)
    view = (live.detach() if own else live).as_strided(shape, stride, offset)
    if followed and output.apart:
        return in_memory(view, made)
    if made is None or not made.requires_grad or followed:
        return view
    return loose(view) if recorded.loose(value) else view.requires_grad_()
