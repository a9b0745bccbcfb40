"""Ops on subclasses are opened to ops on what the class wraps."""

import torch
from torch import Tensor

from foretrace.ir.program.recording import Graph
from foretrace.lowering.cuts.cut import Level, flatten
from foretrace.lowering.subclasses.desugar import unwrapped
from foretrace.operators.abstract_tensors.subclass_types import Unwrap, Wrap
from tests.support.trees import recorded, semantics
from tests.support.wrapped import two


def fn(x: Tensor) -> Tensor:
    return (x * 2).sin()


def graph_of(*args: Tensor) -> Graph:
    run = recorded(fn, *args)
    ops = list(flatten(run.ops, Level(written=False)))
    return Graph(list(run.inputs), ops, list(run.outputs), "aten")


def test_wrapping_is_left_at_the_ends() -> None:
    found = unwrapped(graph_of(two(3)), semantics())
    ends = (Unwrap, Wrap)
    inner = [op for op in found.ops if type(op.target) not in ends]
    assert [str(op.target) for op in inner] == ["aten.mul.Tensor"] * 2 + ["aten.sin.default"] * 2
    assert not any(out.type.wrapped for op in inner for out in op.outs)
    assert sum(type(op.target) is Wrap for op in found.ops) == 1
    assert found.outputs[0].value.type.wrapped  # type: ignore[union-attr]


def test_a_graph_without_a_subclass_is_itself() -> None:
    graph = graph_of(torch.ones(3))
    assert unwrapped(graph, semantics()) is graph
