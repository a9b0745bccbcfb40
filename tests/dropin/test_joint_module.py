"""The joint cut given to torch's own partitioners, and the pair by aot_autograd's names."""

from typing import Any

import pytest
import torch
from functorch.compile import default_partition, min_cut_rematerialization_partition
from torch import Tensor, fx, nn
from torch._dynamo import utils as dynamo_utils
from torch.export import Dim
from torch.nn import functional as F

import foretrace
from foretrace.frontends.torch_compat.joint_module import joint_module
from tests.support.bits import same_bits

PARTITIONS = {"default": default_partition, "min_cut": min_cut_rematerialization_partition}
SIZES = {"static": None, "dynamic": {"x": {0: Dim("rows")}}}


class Net(nn.Module):
    """Statistics that are written, a parameter that nothing uses, a tensor of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.proj, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.unused = nn.Parameter(torch.ones(2))
        self.scale = torch.ones(8) * 2

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.gelu(self.norm(self.proj(x))) * self.scale
        return y, y.view(x.shape[0] * 2, 4).sum(1)


def names(module: fx.GraphModule) -> list[str]:
    return [node.name for node in module.graph.nodes if node.op == "placeholder"]


@pytest.mark.parametrize("dynamic", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("split", ["default", "min_cut"])
def test_trained_through_the_halves(split: str, dynamic: Any) -> None:
    """Outputs, statistics and gradients of the two halves are eager's, to the last bit."""
    net, x = Net(), torch.randn(5, 8, requires_grad=True)
    program = foretrace.capture(net, (x,), dynamic_shapes=dynamic)
    joint = joint_module(program.cut("joint"))
    assert names(joint.module) == [
        *(f"primals_{n}" for n in range(1, len(joint.primals) + 1)), "tangents_1", "tangents_2",
    ]  # fmt: skip
    forward, backward = PARTITIONS[split](joint.module, (), num_fwd_outputs=joint.num_fwd_outputs)
    assert names(forward) == [f"primals_{n}" for n in range(1, len(joint.primals) + 1)]
    assert names(backward)[-2:] == ["tangents_1", "tangents_2"]

    inputs = [program.recorded.inputs[i] for i in joint.primals]
    flat = [(x if item.argument is not None else item.live()).detach() for item in inputs]
    tangents = [torch.randn(5, 8), torch.randn(10)]
    written = [flat[i].clone() for i in joint.mutations]
    results = forward(*flat)
    saved = results[joint.num_fwd_outputs :]
    sizes_first = sorted(saved, key=lambda each: isinstance(each, Tensor))
    gradients = backward(*sizes_first, *tangents)

    outputs = net(x)
    torch.autograd.backward(outputs, tangents)
    same(results[len(written) : joint.num_fwd_outputs], outputs)
    same(results[: len(written)], [inputs[i].live() for i in joint.mutations])
    owners = dict(net.named_parameters())
    eager = [
        x.grad if item.argument is not None else getattr(owners.get(item.role.name), "grad", None)
        for item in inputs
    ]
    same(gradients, eager)
    assert any(grad is None for grad in gradients)


def same(ours: Any, theirs: Any) -> None:
    for left, right in zip(ours, theirs, strict=True):
        assert (left is None) == (right is None)
        assert left is None or same_bits(left, right)


def test_a_tensor_from_outside_that_has_a_gradient_is_a_primal() -> None:
    """What the program closes over is held by the module only if nothing is to come back for it."""
    weight, scale = torch.randn(8, requires_grad=True), torch.randn(8)
    x = torch.randn(5, 8)
    program = foretrace.capture(lambda x: x * weight * scale, (x,))
    joint = joint_module(program.cut("joint"))
    live = [program.recorded.inputs[i].live() for i in joint.primals]
    assert [each is weight for each in live] == [False, True]
    forward, backward = default_partition(joint.module, (), num_fwd_outputs=1)
    output, *saved = forward(x, weight.detach())
    expected = x * weight * scale
    expected.sum().backward()
    assert same_bits(output, expected)
    _, gradient = backward(*saved, torch.ones(5, 8))
    assert same_bits(gradient, weight.grad)


@pytest.mark.slow
def test_inductor_gives_it_its_gradient() -> None:
    """Within what torch allows Inductor, which sums in another order and has a tanh of its own."""
    weight, x = torch.randn(8, requires_grad=True), torch.randn(5, 8)
    program = foretrace.capture(lambda x: (x * weight).tanh(), (x,))
    program.compile("inductor")(x).sum().backward()
    found, weight.grad = weight.grad, None
    (x * weight).tanh().sum().backward()
    assert found is not None
    assert dynamo_utils.same(found, weight.grad)


def test_keeps_the_explanation() -> None:
    """Nodes still tell where they come from, and which half they are of."""
    module = joint_module(foretrace.capture(Net(), (torch.randn(5, 8),)).cut("joint")).module
    ops = [node for node in module.graph.nodes if "foretrace" in node.meta]
    assert {node.meta["partitioner_tag"] for node in ops} == {"is_forward", "is_backward"}
    assert all("stack_trace" in node.meta and "val" in node.meta for node in ops)
