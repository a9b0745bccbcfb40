"""The two users' questions that the project was made for, and the answers it has to give."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foretrace
from tests.support.compare import same_as_eager

ATTENTION = "scaled_dot_product_attention"


def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
    return (F.scaled_dot_product_attention(q, k, v).sum(),)


def two_d() -> tuple[Tensor, ...]:
    return torch.randn(64, 3, 16, requires_grad=True).unbind(1)


def four_d() -> tuple[Tensor, ...]:
    return torch.randn(1, 2, 64, 3, 16, requires_grad=True).unbind(-2)


def targets_of(cut: foretrace.Cut) -> list[str]:
    called = [node for node in cut.graph_module.graph.nodes if node.op.startswith("call")]
    return [str(node.target).removeprefix("aten.").partition(".")[0] for node in called]


def test_export_shows_one_attention() -> None:
    assert targets_of(foretrace.capture(attend, two_d()).cut("export")) == [ATTENTION, "sum"]


def test_two_dimensions_take_the_math_body_and_its_backward() -> None:
    names = targets_of(foretrace.capture(attend, two_d()).cut("joint", loss=0))
    assert "_safe_softmax" in names
    assert "_softmax_backward_data" in names
    assert names.count("mm") == 6  # two forward, four backward


@pytest.mark.parametrize(
    ("target", "kernel"),
    [
        ("cpu", "_scaled_dot_product_flash_attention_for_cpu"),
        ("cuda:sm80", "_scaled_dot_product_efficient_attention"),
    ],
)
def test_four_dimensions_take_the_kernel_of_the_target(target: str, kernel: str) -> None:
    cut = foretrace.capture(attend, four_d(), target=target).cut("joint", loss=0)
    assert {kernel, f"{kernel}_backward"} <= set(targets_of(cut))


@pytest.mark.parametrize("inputs", [two_d, four_d])
def test_kept_attention_is_one_node_on_each_side_and_runs(inputs) -> None:
    cut = foretrace.capture(attend, inputs()).cut("joint", loss=0, keep=[ATTENTION])
    names = [name for name in targets_of(cut) if name != "<built-in function getitem>"]
    assert [name for name in names if ATTENTION in name] == [ATTENTION, f"{ATTENTION}_backward"]
    leaves = tuple(each.detach().clone().requires_grad_() for each in inputs())
    same_as_eager(attend, leaves, loss=0, keep=[ATTENTION], cuts=("joint",))


@pytest.mark.parametrize("target", ["cpu", "meta", "cuda:sm90"])
def test_rms_norm_with_an_open_size(target: str) -> None:
    x = torch.randn(4, 8, requires_grad=True)
    cut = foretrace.capture(nn.RMSNorm(8), (x,), target=target, dynamic_shapes=True).cut("joint")
    fused = {"_fused_rms_norm", "_fused_rms_norm_backward"} <= set(targets_of(cut))
    assert fused == target.startswith("cuda")
    assert "s" in str(cut.graph_module.graph.find_nodes(op="placeholder")[1].meta["val"].shape[0])
    if target != "cuda:sm90":
        assert "Sym(" in cut.graph_module.print_readable(print_output=False)


def test_another_batch_runs_through_the_same_graph() -> None:
    batches = [(torch.randn(n, 8, requires_grad=True),) for n in (4, 7)]
    same_as_eager(nn.RMSNorm(8), batches[0], dynamic_shapes=True, more_args=batches[1:], loss=None)


class MyModule(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
        return attend(q, k, v)


@pytest.mark.parametrize("inputs", [two_d, four_d])
def test_the_first_threads_program(inputs) -> None:
    """The program of the thread, with foretrace's functions in the place of torch's."""
    my_module, (q, k, v) = MyModule(), inputs()
    sg1 = foretrace.export(my_module, args=(q, k, v))
    joint_gm, joint_gs = foretrace.aot_export_module(
        my_module, (q, k, v), trace_joint=True, output_loss_index=0, decompositions=None
    )
    assert ATTENTION in str(sg1)
    assert [n.name for n in joint_gm.graph.find_nodes(op="placeholder")] == joint_gs.user_inputs
    assert joint_gs.backward_signature.loss_output == joint_gs.user_outputs[0]
    found = joint_gm(*(each.detach() for each in (q, k, v)))
    (loss,) = my_module(q, k, v)
    eager = (loss, *torch.autograd.grad(loss, (q, k, v)))
    assert all(torch.equal(mine, each) for mine, each in zip(found, eager, strict=True))
