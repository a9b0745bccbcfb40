"""`node.meta` of a backward: `autograd_backward`, `custom` and `seq_nr`, as torch has them."""

from collections import Counter, defaultdict
from contextlib import ExitStack

import torch
import torch.nn.functional as F
from torch import nn
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch.fx.traceback import annotate, preserve_node_meta

import foretrace


def marked(cut):
    nodes = [node for node in cut.graph_module.graph.nodes if node.op == "call_function"]
    return {node.name for node in nodes if node.meta.get("autograd_backward")}, {
        node.name for node in nodes
    }


def test_of_a_joint_graph_and_of_its_halves():
    x = torch.ones(3, requires_grad=True)
    program = foretrace.capture(lambda x: (x.sin() * x).sum(), (x,))
    backward, every = marked(program.cut("joint", loss=0))
    assert every - backward == {"sin", "mul", "sum_1"}
    assert "cos" in backward
    assert not marked(program.cut("aten"))[0]
    backward, every = marked(program.cut("backward"))
    assert every - backward == {"sin"}  # computed again: an op of the forward


def test_of_a_gradient_that_the_program_asks_for():
    def step(x):
        (grad,) = torch.autograd.grad(x.sin().sum(), x)
        return x.detach() - grad

    x = torch.ones(3, requires_grad=True)
    backward, every = marked(foretrace.capture(step, (x,)).cut("aten"))
    assert "cos" in backward
    assert {"sin", "sub"} <= every - backward


def test_annotations_are_on_the_nodes_of_their_region_and_of_its_backward():
    def program(x):
        with annotate({"stage": 1}):
            y = x.sin()
            with annotate({"part": "inner"}):
                y = torch.nn.functional.layer_norm(y, (3,))
        return y.cos().sum()

    def customs(cut):
        nodes = (node for node in cut.graph_module.graph.nodes if node.op == "call_function")
        return {node.name: node.meta.get("custom") for node in nodes}

    captured = foretrace.capture(program, (torch.ones(2, 3, requires_grad=True),))
    inner = {"stage": 1, "part": "inner"}
    assert customs(captured.cut("export")) == {
        "sin": {"stage": 1}, "layer_norm": inner, "cos": None, "sum_1": None,
    }  # fmt: skip
    joint = customs(captured.cut("joint", loss=0))
    assert joint["native_layer_norm"] == joint["native_layer_norm_backward"] == inner
    assert joint["sin"] == joint["cos_1"] == {"stage": 1}  # the derivative of sin
    assert joint["cos"] is None
    assert joint["sum_1"] is None


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm, self.conv = nn.Linear(3, 4), nn.LayerNorm(4), nn.Conv1d(5, 5, 1)

    def forward(self, x):
        y = self.conv(F.gelu(self.norm(self.linear(x))))
        return torch.cat([y.softmax(-1), y.sin()]).square().sum()


def numbered(module):
    """The operators of a backward, each with those of the forward that have its number."""
    calls = [node for node in module.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    inside, forward = [], defaultdict(set)
    for node in calls:
        if node.meta.get("autograd_backward"):
            inside.append(node)
        elif "detach" not in str(node.target):  # torch's own, of what is saved
            forward[node.meta["seq_nr"]].add(node.target)
    return Counter(
        (node.target, frozenset(forward[node.meta["seq_nr"]]))
        for node in inside
        if node.target not in {torch.ops.aten.detach.default, torch.ops.aten.ones_like.default}
        and node.target is not torch.ops.aten.add.Tensor  # sums of gradients
    )


def test_what_a_backward_computes_has_the_number_of_its_operator_as_in_torch():
    model, x = Layers(), torch.randn(2, 5, 3, requires_grad=True)
    program = foretrace.capture(model, (x,))
    with ExitStack() as stack, preserve_node_meta():
        theirs = aot_export_joint_with_descriptors(stack, model, (x,)).graph_module
    ours = numbered(program.cut("joint", loss=0).graph_module)
    assert ours == numbered(theirs)
    assert sum(ours.values()) > 20


def test_halves_and_what_a_table_opens_have_the_numbers_of_the_joint_graph():
    program = foretrace.capture(Layers(), (torch.randn(2, 5, 3),))
    for table in (None, "core"):
        backward = program.cut("backward", loss=0, level=table).graph_module  # made first
        forward = program.cut("forward", loss=0, level=table).graph_module
        numbers = {node.meta.get("seq_nr") for node in forward.graph.nodes}
        served = [node for node in backward.graph.nodes if node.meta.get("autograd_backward")]
        assert served
        assert {node.meta["seq_nr"] for node in served} <= numbers
