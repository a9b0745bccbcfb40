"""Devices and strides of what operators of a device that is not here give."""

from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import foretrace


@pytest.mark.parametrize(
    "kind", [torch.tensor, list, lambda lengths: partial(torch.tensor, lengths)]
)
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_lengths_of_ctc_may_stay_on_the_cpu(reduction: str, kind: Any) -> None:
    """Eager reads their numbers; a kernel of the device takes tensors that are there."""
    lengths = {"input_lengths": kind([6, 5]), "target_lengths": kind([2, 3])}

    def losses(x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        given = {name: each() if callable(each) else each for name, each in lengths.items()}
        return F.ctc_loss(x.log_softmax(2), targets, **given, reduction=reduction)

    inputs = torch.randn(6, 2, 4, requires_grad=True), torch.tensor([[1, 2, 0], [2, 1, 3]])
    there, here = (foretrace.capture(losses, inputs, target=t) for t in ("cuda:sm90", "cpu"))
    called = [
        [node for node in each.cut("joint").graph_module.graph.nodes if "_ctc" in str(node.target)]
        for each in (there, here)
    ]
    used = [each.meta["val"] for node in called[0] for each in node.all_input_nodes]
    assert {each.device.type for each in used if isinstance(each, torch.Tensor)} == {"cuda"}
    assert [str(node.target) for node in called[0]] == [str(node.target) for node in called[1]]
    assert there.recorded.outputs[0].value.type.device.type == "cuda"


LAID = (
    lambda x: (
        x.t() * 2,
        x.t() / 2,
        x.t().exp(),
        x.t().to(torch.float64),
        torch.where(x > 0, x, 0),
    ),
    lambda x: (x.t() * torch.tensor(2.0), x.t() + torch.tensor(1)),
    lambda x: (x[:, 2:3].t() + 1, x[:, :0].t() * 2, x.expand(4, 8).t()[:, :1] * x[0, :1]),
    lambda x: (x.view(1, 2, 4).transpose(0, 2) > 0, x.t().clamp(0, 1), torch.lerp(x.t(), x.t(), 2)),
)


@pytest.mark.parametrize("fn", LAID, ids=range(len(LAID)))
def test_results_of_one_row_lie_as_torchs_iterator_lays_them(fn: Any) -> None:
    """On every device but meta, whose kernels in Python lay a size of 1 out otherwise."""
    x = torch.randn(1, 8)
    outputs = foretrace.capture(fn, (x,), target="cuda:sm90").recorded.outputs
    assert [out.value.type.stride for out in outputs] == [each.stride() for each in fn(x)]
