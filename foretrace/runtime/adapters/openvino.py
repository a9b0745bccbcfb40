"""OpenVINO: its importer of ExportedPrograms, on the CPU."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor, fx

from foretrace.runtime.adapters.adapter import Adapter, Run
from foretrace.runtime.adapters.exported import exported

PRECISION: Final = {"INFERENCE_PRECISION_HINT": "f32"}
"""Without it, it computes in a narrower type"""


def _build(module: fx.GraphModule) -> Run:
    openvino: Any = import_module("openvino")
    model = openvino.convert_model(exported(module))
    inputs = module.graph.find_nodes(op="placeholder")
    shapes = [[*node.meta["val"].shape] for node in inputs]
    model.reshape(dict(zip(model.inputs, shapes, strict=True)))  # it takes all sizes for open
    compiled = openvino.Core().compile_model(model, "CPU", PRECISION)

    def run(inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        found = compiled([each.numpy() for each in inputs], share_outputs=False)
        return [torch.from_numpy(each.copy()) for each in found.to_tuple()]

    return run


ADAPTER: Final = Adapter("openvino", ("openvino",), "openvino", _build)
compile: Final = ADAPTER.compile
