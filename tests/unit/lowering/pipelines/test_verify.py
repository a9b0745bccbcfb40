"""Each rule of docs/stages.md that the verifier knows can be broken, and is then refused."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import Origin, RuleName
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.values.value import Value
from foretrace.lowering.pipelines.verify import (
    verify_graph,
    verify_module,
    verify_pair,
    verify_record,
)

X = torch.randn(3, 4)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.linear(x))
        y[0].mul_(2)
        return y.exp().sum()


PROGRAM = foretrace.capture(Net(), (X,), verify=True)
INFER = PROGRAM.semantics.inference.again


def test_what_foretrace_makes_is_well_formed() -> None:
    for kind in ("export", "aten", "joint"):
        assert PROGRAM.cut(kind).graph_module
    assert all(half.graph_module for half in PROGRAM.pair())


# ---- cuts ---------------------------------------------------------------------------------------


def copied(kind: str) -> Graph:
    graph = PROGRAM.cut(kind).graph
    return replace(graph, ops=list(graph.ops), outputs=list(graph.outputs))


def last_of(graph: Graph) -> Op:
    return graph.ops[-1]


def with_last(graph: Graph, **facts: Any) -> None:
    graph.ops[-1] = graph.ops[-1].but(**facts)


def uses_what_nothing_made(graph: Graph) -> None:
    with_last(graph, args=(Value(last_of(graph).operands[0].type), *last_of(graph).args[1:]))


def makes_twice(graph: Graph) -> None:
    graph.ops.append(last_of(graph))


def misses_an_output(graph: Graph) -> None:
    del graph.ops[-1]


def has_another_type(graph: Graph) -> None:
    out = Value(last_of(graph).outs[0].type.but(shape=(7,), stride=(1,)))
    with_last(graph, outs=(out,), result=out)
    graph.outputs[:] = []


def has_another_layout(graph: Graph) -> None:
    op = graph.ops[0]
    laid = op.outs[0].type
    out = Value(laid.but(stride=laid.stride[::-1]))
    graph.ops[:] = [op.but(outs=(out,), result=out)]
    graph.outputs[:] = []


def returns_what_is_none_of_its_own(graph: Graph) -> None:
    with_last(graph, result=graph.inputs[-1].value)


def is_of_a_backward(graph: Graph) -> None:
    with_last(graph, because=graph.ops[0], rule=RuleName("made up", "derived"))


def has_no_rule(graph: Graph) -> None:
    with_last(graph, because=graph.ops[0])


def has_no_line(graph: Graph) -> None:
    with_last(graph, origin=Origin(None, None), choice=None, because=None, rule=None, piece_of=None)


def writes(graph: Graph) -> None:
    with_last(graph, writes=True, below=[last_of(graph)])


def writes_without_a_value(graph: Graph) -> None:
    with_last(graph, writes=True)


BROKEN: dict[Callable[[Graph], None], str] = {
    uses_what_nothing_made: "an operand is used that nothing before has made",
    makes_twice: "a value is made twice",
    misses_an_output: "no op makes the output",
    has_another_type: "is noted, its operands give",
    has_another_layout: "is noted, its operands give",
    returns_what_is_none_of_its_own: "neither new nor an operand",
    is_of_a_backward: "there is no backward in this stage",
    has_no_rule: "has `because` and `rule`",
    has_no_line: "nothing says where it comes from",
    writes: "a write that is a value was not opened",
    writes_without_a_value: "a write has no functional form",
}


@pytest.mark.parametrize("change", BROKEN)
def test_a_cut(change: Callable[[Graph], None]) -> None:
    graph = copied("aten")
    verify_graph(graph, PROGRAM.recorded, INFER)
    change(graph)
    with pytest.raises(foretrace.Refusal, match=BROKEN[change]) as info:
        verify_graph(graph, PROGRAM.recorded, INFER)
    assert info.value.kind == "malformed"


# ---- records ------------------------------------------------------------------------------------


def record() -> Recording:
    return foretrace.capture(Net(), (X,)).recorded


def test_a_record_whose_body_makes_something_else() -> None:
    recorded = record()
    assert recorded.ops[0].region is not None
    write = next(op for op in recorded.ops[0].region if op.writes)
    assert write.region is not None
    del write.region[-1]
    with pytest.raises(foretrace.Refusal, match="its body does not make what it makes"):
        verify_record(recorded, INFER)


def test_a_record_with_a_wrong_definition() -> None:
    recorded = record()
    assert recorded.ops[0].region is not None
    linear = next(op for op in recorded.ops[0].region if op.region).region
    assert linear is not None
    shared = linear[0].definition
    assert shared is not None
    linear[0] = linear[0].but(below=replace(shared, params=shared.params[1:]))
    with pytest.raises(foretrace.Refusal, match="takes or makes another number"):
        verify_record(recorded, INFER)


# ---- pairs and graph modules --------------------------------------------------------------------


def test_a_pair_that_hands_over_something_else() -> None:
    joint = PROGRAM.cut("joint")
    forward, backward = (half.graph for half in PROGRAM.pair())
    fewer = replace(backward, inputs=backward.inputs[1:])
    with pytest.raises(foretrace.Refusal, match="the backward takes"):
        verify_pair(joint.graph, forward, fewer)
    with pytest.raises(foretrace.Refusal, match="do not give what the joint graph gives"):
        verify_pair(joint.graph, forward, backward)  # of another joint graph


def test_a_node_from_nowhere_and_a_wrong_val() -> None:
    cut = foretrace.capture(Net(), (X,)).cut("aten")
    module, symbols = cut.graph_module, cut.program.recorded.symbols
    node = next(node for node in module.graph.nodes if node.op == "call_function")
    val = node.meta["val"]
    node.meta["val"] = val.new_empty(9)
    with pytest.raises(foretrace.Refusal, match="the val of"):
        verify_module(cut.graph, module, symbols)
    node.meta["val"] = val
    verify_module(cut.graph, module, symbols)
    del node.meta["foretrace"]
    with pytest.raises(foretrace.Refusal, match="comes from no op"):
        verify_module(cut.graph, module, symbols)
