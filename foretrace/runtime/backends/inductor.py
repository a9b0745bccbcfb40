"""The backend "inductor": torch's own compiler on our graphs."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import fx

from foretrace import torch_api
from foretrace.lowering.partition.policies import MIN_CUT, Policy
from foretrace.runtime.backends.aot_convention import RESULTS
from foretrace.runtime.backends.compilers import TorchCompilers
from foretrace.runtime.backends.inductor_workarounds import as_taken, constants_passed, with_last
from foretrace.runtime.backends.scalar_custom_op import numbers_refused


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
        inputs, tensors = constants_passed(module, inputs)
        with numbers_refused():
            run = inductor.forward(as_taken(module), inputs, results, inference=inference)
        return with_last(run, tensors)

    def backward(module: fx.GraphModule, inputs: list[Any]) -> Any:
        inputs, tensors = constants_passed(module, inputs)
        with numbers_refused():
            run = inductor.backward(as_taken(module), inputs)
        return with_last(run, tensors)

    whole = partial(forward, inference=True)
    return TorchCompilers(
        forward, backward, whole, table, policy, writes=True, retypes=True, name="inductor"
    )


def before_capture(module: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    """Dynamo's graph after the passes that Inductor runs before anything is differentiated."""
    found: fx.GraphModule = torch_api.Inductor().before_capture(module, inputs)
    return found
