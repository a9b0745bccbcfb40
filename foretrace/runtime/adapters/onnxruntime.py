"""onnx, onnxscript and onnxruntime: torch's own exporter makes the model."""

import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor, fx

from foretrace.runtime.adapters.adapter import Adapter, Run
from foretrace.runtime.adapters.exported import exported


def _build(module: fx.GraphModule) -> Run:
    runtime: Any = import_module("onnxruntime")
    with warnings.catch_warnings():  # of torch's own calls of itself
        warnings.simplefilter("ignore", FutureWarning)
        program: Any = torch.onnx.export(
            exported(module), dynamo=True, verbose=False, optimize=False
        )
    model = program.model_proto.SerializeToString()
    options = runtime.SessionOptions()
    options.log_severity_level = ERRORS
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]

    def run(inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        feed = {name: each.numpy() for name, each in zip(names, inputs, strict=True)}
        return [torch.from_numpy(each) for each in session.run(None, feed)]

    return run


ERRORS: Final = 3
"""The level of its messages; below are notes on its own passes"""
ADAPTER: Final = Adapter("onnxruntime", ("onnx", "onnxscript", "onnxruntime"), "onnx", _build)
compile: Final = ADAPTER.compile
