"""Rewrites of a graph for Inductor compute what the graph did, in the same types."""

import os
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import foretrace
from foretrace.runtime.backends.inductor import scale_operands

aten = torch.ops.aten


def graph_of(target: Any, one: torch.Tensor, other: torch.Tensor, alpha: Any) -> fx.GraphModule:
    graph = fx.Graph()
    nodes = [graph.placeholder(name) for name in "xy"]
    node = graph.call_function(target, tuple(nodes), {"alpha": alpha})
    for each, value in zip([*nodes, node], [one, other, target(one, other)], strict=True):
        each.meta["val"] = value
    graph.output(node)
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("target", [aten.add.Tensor, aten.sub.Tensor])
def test_alpha_becomes_a_product(target: Any, dtype: torch.dtype) -> None:
    one, other = torch.randn(3, 4), torch.arange(4).to(dtype)
    module = graph_of(target, one, other, 3)
    scale_operands(module.graph)
    module.recompile()
    (node,) = module.graph.find_nodes(op="call_function", target=target)
    assert not node.kwargs
    assert torch.equal(module(one, other), target(one, other, alpha=3))


def test_an_alpha_of_one_is_left() -> None:
    module = graph_of(aten.add.Tensor, torch.ones(2), torch.ones(2), 1)
    scale_operands(module.graph)
    assert not module.graph.find_nodes(op="call_function", target=aten.mul.Tensor)


# ---- backends that trace again -------------------------------------------------------------------


def _drops(x: Tensor) -> Tensor:
    return nn.functional.dropout(x.t() * 1, 0.5).sum(-1)


def _drops_the_middle(x: Tensor) -> Tensor:
    return nn.functional.dropout(x.view(4, 3, 2).permute(1, 2, 0), 0.3)


def _drops_parts(x: Tensor) -> Tensor:
    return nn.functional.dropout(x.view(4, 6)[:, ::2], 0.3)


def _views_what_lies_otherwise(x: Tensor) -> Tensor:
    y = nn.functional.logsigmoid(x.view(2, 3, 2, 2).permute(2, 1, 3, 0) * 2)
    return y.flatten(1) @ torch.ones(12, 2)


@pytest.mark.parametrize(
    "program", [_drops, _drops_the_middle, _drops_parts, _views_what_lies_otherwise]
)
def test_what_is_traced_again_computes_the_same(program: Any) -> None:
    sides = []
    for fn in (program, foretrace.compile(program, backend="aot_eager", fullgraph=True)):
        torch.manual_seed(0)
        x = torch.linspace(-3, 3, 24).view(4, 6).requires_grad_()
        result = fn(x)
        result.backward(torch.ones_like(result))
        sides.append((result.tolist(), result.stride(), x.grad.tolist(), x.grad.stride()))
    assert sides[0] == sides[1]


@pytest.mark.parametrize("always", [False, True])
def test_a_compiler_sets_what_the_program_reads(
    always: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Inductor's first import does, and the logging of others."""
    monkeypatch.delenv("OF_A_COMPILER", raising=False)
    graphs = list[fx.GraphModule]()

    def compiler(module: fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(module)
        monkeypatch.setenv("OF_A_COMPILER", str(len(graphs)) if always else "set")
        return module

    def program(x: Tensor) -> Tensor:
        return x * len(os.environ.get("OF_A_COMPILER", ""))

    compiled = foretrace.compile(program, backend=compiler, fullgraph=True)
    if always:
        with pytest.raises(foretrace.Refusal, match="the global environ") as error:
            compiled(torch.ones(3))
        assert error.value.kind == "unstable guard"
        assert len(graphs) == 2
        return
    for call in range(3):
        x = torch.full((3,), call + 1.0)
        assert torch.equal(compiled(x), program(x))
    assert len(graphs) == 2
