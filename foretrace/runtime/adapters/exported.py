"""A graph of tensors as an ExportedProgram: all its inputs and outputs are the user's."""

from typing import Any

from torch import fx
from torch.export import ExportedProgram, ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)

from foretrace import torch_api


def exported(module: fx.GraphModule) -> ExportedProgram:
    """The ExportedProgram of a functional graph that holds no tensors."""
    inputs = module.graph.find_nodes(op="placeholder")
    results: Any = module.graph.output_node().args[0]
    calls = ModuleCallSignature(
        [],
        [],
        torch_api.tree_flatten((tuple(inputs), {}))[1],
        torch_api.tree_flatten(tuple(results))[1],
    )
    signature = ExportGraphSignature(
        [InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None) for node in inputs],
        [OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None) for node in results],
    )
    return ExportedProgram(
        root=module,
        graph=module.graph,
        graph_signature=signature,
        state_dict={},
        range_constraints={},
        module_call_graph=[ModuleCallEntry("", calls)],
    )
