"""`node.meta["autograd_backward"]`: as torch marks what a backward computes."""

import torch
from torch.fx.traceback import annotate

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
