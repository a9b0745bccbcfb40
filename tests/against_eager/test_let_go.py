"""What a capture was given is let go of: inputs at once, parameters with what holds the capture."""

import gc
from collections.abc import Callable
from typing import Any
from weakref import ref

import pytest
import torch
from torch import nn

import foretrace


def _graph(graph: Any, _: Any) -> Any:
    return graph.forward


WAYS: dict[str, Callable[[nn.Module, Any], Any]] = {
    "compile": lambda net, _: foretrace.compile(net),
    "compile, graphs": lambda net, _: foretrace.compile(net, backend=_graph),
    "dynamo": lambda net, _: torch.compile(net, backend="foretrace"),
    "aot_autograd": lambda net, _: torch.compile(
        net, backend=foretrace.aot_autograd(fw_compiler=_graph)
    ),
    "cut": lambda net, x: foretrace.capture(net, (x,)).cut("aten"),
    "joint": lambda net, x: foretrace.capture(net, (x,)).cut("joint", loss=None),
    "program": lambda net, x: foretrace.capture(net, (x,)).compile(backend=_graph),
    "export": lambda net, x: foretrace.export(net, (x,)).module(),
}


@pytest.mark.parametrize("way", WAYS)
def test_tensors_after_deletion(way: str) -> None:
    torch._dynamo.reset()
    net, x = nn.Linear(2, 2), torch.ones(1, 2)
    weight, first = ref(net.weight), ref(x)
    call = WAYS[way](net, x)
    if way == "joint":
        call(x, tangents=[torch.ones(1, 2)])
    else:
        call(x).sum().backward()
    del x
    gc.collect()
    assert first() is None
    del net, call
    gc.collect()
    assert weight() is None
