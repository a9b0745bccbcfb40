"""The backend "inductor": torch's own compiler on our graphs."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import fx

from foretrace import torch_api
from foretrace.backends.aot_convention import RESULTS
from foretrace.backends.compilers import TorchCompilers
from foretrace.backends.steps import numbers_refused, with_opaque_steps
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
        with numbers_refused():
            return inductor.forward(with_opaque_steps(module), inputs, results, inference=inference)

    def backward(module: fx.GraphModule, inputs: list[Any]) -> Any:
        with numbers_refused():
            return inductor.backward(module, inputs)

    whole = partial(forward, inference=True)
    return TorchCompilers(forward, backward, whole, table, policy, writes=True, retypes=True)


def before_capture(module: fx.GraphModule, inputs: Sequence[Any]) -> fx.GraphModule:
    """Dynamo's graph after the passes that Inductor runs before anything is differentiated."""
    found: fx.GraphModule = torch_api.Inductor().before_capture(module, inputs)
    return found
