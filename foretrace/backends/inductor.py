"""The backend "inductor": torch's own compiler on our graphs."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from types import TracebackType
from typing import Any

import torch
from torch import fx

from foretrace import torch_api
from foretrace.backends.aot_convention import RESULTS
from foretrace.backends.compilers import TorchCompilers
from foretrace.backends.steps import (
    numbers_refused,
    with_opaque_steps,
    with_scaled_operands,
    with_tensors_before_softmax,
)
from foretrace.errors import Refusal, Refusing
from foretrace.frames.sources import asking_line
from foretrace.partition.policies import MIN_CUT, Policy


def inductor_compilers(
    policy: Policy = MIN_CUT, decompositions: Mapping[Any, Callable[..., Any]] | None = None
) -> TorchCompilers:
    """Inductor for the graphs of one program.

    Args:
        policy: what is saved for the backward, or kept for that of a step.
        decompositions: functions by OpOverload; None: Inductor's own table.
    """
    inductor = torch_api.Inductor()
    table = inductor.decompositions() if decompositions is None else decompositions

    def forward(module: fx.GraphModule, inputs: list[Any], *, inference: bool = False) -> Any:
        results = module.meta[RESULTS]
        inputs, tensors = _constants_given(module, inputs)
        with Refusing(_error), numbers_refused():
            plain = with_tensors_before_softmax(with_scaled_operands(with_opaque_steps(module)))
            run = inductor.forward(plain, inputs, results, inference=inference)
        return _given(run, tensors)

    def backward(module: fx.GraphModule, inputs: list[Any]) -> Any:
        inputs, tensors = _constants_given(module, inputs)
        with Refusing(_error), numbers_refused():
            run = inductor.backward(with_scaled_operands(module), inputs)
        return _given(run, tensors)

    whole = partial(forward, inference=True)
    return TorchCompilers(forward, backward, whole, table, policy, writes=True, retypes=True)


def _error(error: BaseException, trace: TracebackType | None) -> Refusal:
    """The refusal of what Inductor raises: the program has a graph, and an answer without it."""
    if isinstance(error, Refusal):
        return error
    first = str(error).strip().partition("\n")[0]
    return Refusal(
        f"Inductor raised {type(error).__name__}: {first:.200}", kind="compiler",
        at=asking_line(), do='use backend="eager"',
    )  # fmt: skip


def _constants_given(
    module: fx.GraphModule, inputs: list[Any]
) -> tuple[list[Any], list[torch.Tensor]]:
    """Let the tensors that a graph holds be its last inputs; the examples, and these tensors.

    Inductor writes the elements of small ones into its code (`get_attr` of its graph.py, 2.13.0),
    while a program reads a tensor from outside as it is at each call, and may write to it.
    """
    graph, given, found = module.graph, list(inputs), list[torch.Tensor]()
    last = max(graph.find_nodes(op="placeholder"), default=None)
    for node in graph.find_nodes(op="get_attr"):
        tensor = attrgetter(node.target)(module)
        if not isinstance(tensor, torch.Tensor):
            continue
        with graph.inserting_after(last) if last else graph.inserting_before():
            last = graph.placeholder(node.name)
        last.meta.update(node.meta)
        node.replace_all_uses_with(last)
        graph.erase_node(node)
        given.append(node.meta.get("val", tensor))
        found.append(tensor)
    if found:
        module.recompile()
    return given, found


def _given(run: Callable[..., Any], tensors: list[torch.Tensor]) -> Any:
    """What Inductor made, which takes its inputs in a list, with the last ones there already."""
    if not tensors:
        return run

    def call(inputs: list[Any]) -> Any:
        inputs.extend(tensors)
        return run(inputs)

    return torch_api.boxed(call)


def before_capture(module: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    """Dynamo's graph after the passes that Inductor runs before anything is differentiated."""
    found: fx.GraphModule = torch_api.Inductor().before_capture(module, inputs)
    return found
