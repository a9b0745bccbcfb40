"""Run a cut: check the inputs, call the graph, write back what the program wrote."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from foretrace.errors import Refusal
from foretrace.ir.program import Graph, Input, Mutation, Recorded
from foretrace.runtime.guards import flat_inputs
from foretrace.trace.structure import take_apart


def run_forward(
    module: fx.GraphModule, graph: Graph, recorded: Recorded, args: Any, kwargs: Any
) -> Any:
    """Call a forward cut like the program: same outputs, same writes."""
    flat = flat_inputs(recorded, *take_apart((tuple(args), kwargs)))
    return _finish(recorded, flat, module(*flat))[0]


def run_joint(
    module: fx.GraphModule,
    graph: Graph,
    recorded: Recorded,
    args: Any,
    kwargs: Any,
    tangents: Sequence[torch.Tensor] | None,
) -> tuple[Any, dict[str, torch.Tensor | None]]:
    """Call a joint cut: the outputs, and the gradient of everything that requires one."""
    flat = flat_inputs(recorded, *take_apart((tuple(args), kwargs)))
    wanted = [item for item in graph.inputs if item.role.kind == "tangent"]
    if len(wanted) != len(tangents or ()):
        raise Refusal(
            f"the cut takes {len(wanted)} tangents, {len(tangents or ())} were given",
            kind="wrong tangents",
            do="pass tangents=[...], one for each output that requires grad, in order",
        )
    # Some kernels do another thing under no_grad (mkldnn_rnn_layer keeps no workspace), so the
    # grad mode is eager's, and nothing is followed because nothing requires grad.
    detached = [x.detach() if isinstance(x, torch.Tensor) else x for x in (*flat, *(tangents or ()))]
    with torch.enable_grad():
        results = module(*detached)
    outputs, rest = _finish(recorded, flat, results)
    names = [o.role.name for o in graph.outputs if o.role.kind == "gradient"]
    return outputs, dict(zip(names, rest, strict=True))


def _finish(recorded: Recorded, flat: list[Any], results: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Write back and build the outputs; also the results that follow them."""
    count = len(recorded.outputs)
    outputs, rest = list(results[:count]), list(results[count:])
    news = {}
    for mutation, new in zip(recorded.mutations, rest, strict=False):
        news[mutation.index] = new
        _write_back(recorded.inputs[mutation.index], flat[mutation.index], new, mutation)
    for position, output in enumerate(recorded.outputs):
        if output.same_as is not None:
            outputs[position] = flat[output.same_as]
        elif output.view_of is not None:
            outputs[position] = _same_view(
                flat[output.view_of], outputs[position], news[output.view_of]
            )
    built = recorded.requires.out_structure.build(iter(outputs))
    return built, rest[len(recorded.mutations) :]


def _write_back(item: Input, live: torch.Tensor, new: torch.Tensor, mutation: Mutation) -> None:
    """Write as the program did: followed, under no_grad, or without autograd's knowledge."""
    if mutation.rebound and item.owner is not None:
        setattr(*item.owner, new)
        return
    if mutation.unseen:
        live.data.copy_(new)
        return
    leaf = live.is_leaf and live.requires_grad
    with torch.set_grad_enabled(torch.is_grad_enabled() and new.requires_grad and not leaf):
        live.copy_(new)


def _same_view(live: torch.Tensor, view: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """The view of the live tensor that `view` is of `whole`."""
    offset = view.storage_offset() - whole.storage_offset() + live.storage_offset()
    seen = live if view.requires_grad else live.detach()
    return seen.as_strided(view.shape, view.stride(), offset)
