"""`level="core"`: torch's core ATen set, and the numbers that torch's decompositions give."""

import json

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import foretrace
from foretrace.frontends.cli import main
from foretrace.frontends.program import Cut
from tests.support.models import make

pytestmark = pytest.mark.filterwarnings("ignore")

SMALL = {
    "mlp": (nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2)), (3, 4)),
    "norms": (nn.Sequential(nn.Linear(4, 4), nn.RMSNorm(4), nn.SiLU(), nn.Mish()), (3, 4)),
    "images": (
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
        (2, 3, 8, 8),
    ),
    "up": (nn.Sequential(nn.ConvTranspose2d(3, 4, 2, 2), nn.GroupNorm(2, 4)), (1, 3, 4, 4)),
    "cells": (nn.GRUCell(4, 4), (3, 4)),
    "encoder": (nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), (2, 5, 8)),
}
FOR_AUTOGRAD = {"aten.detach.default", "aten.copy_.default"}
"""What a forward cut has so that autograd follows it as it follows the program"""
WHOLE = {"aten._assert_async.msg", "aten.put.default", "aten.histc.default"}
"""Operators of which torch has no decomposition"""


def outside(cut: Cut) -> set[str]:
    """The operators of a graph that are not core."""
    targets = {node.target for node in cut.graph_module.graph.nodes if node.op == "call_function"}
    found = (t for t in targets if isinstance(t, torch._ops.OpOverload))
    return {str(t) for t in found if torch.Tag.core not in t.tags}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("cut", ["export", "aten", "joint"])
def test_core_operators_alone(name: str, cut: str) -> None:
    torch.manual_seed(0)
    model, shape = SMALL[name]
    x = torch.randn(shape)

    def program(x: Tensor) -> Tensor:
        out: Tensor = model(x)
        return out.square().mean()

    captured = foretrace.capture(program, (x,), target="portable")
    core = captured.cut(cut, loss=0 if cut == "joint" else None, level="core")
    assert outside(core) <= (set() if cut == "joint" else FOR_AUTOGRAD)
    plain = captured.cut(cut, loss=0 if cut == "joint" else None)
    torch.testing.assert_close(core(x), plain(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "bert", "swin"])
def test_models(name: str) -> None:
    """What is left is what torch has no decomposition of; the numbers are eager's, but for them."""
    model, inputs = make(name)

    def program(**batch: Tensor) -> Tensor:
        out: Tensor = model(**batch)[0].float().square().mean()
        return out

    captured = foretrace.capture(program, (), inputs, target="portable")
    core = captured.cut("joint", loss=0, level="core")
    assert outside(core) <= WHOLE
    with sdpa_kernel(SDPBackend.MATH):
        expected = program(**inputs)
    loss, gradients = core(**inputs)
    torch.testing.assert_close(loss, expected.detach())
    known = captured.cut("joint", loss=0)(**inputs)[1]
    torch.testing.assert_close(gradients, known, rtol=1e-3, atol=1e-4)


def test_bits_of_torchs_decompositions() -> None:
    """The same decompositions as a table of the caller's, and as torch runs them on the graph."""
    x = torch.randn(3, 4, requires_grad=True)

    def program(x: Tensor) -> Tensor:
        return torch.nn.functional.mish(x).sum()

    core = foretrace.capture(program, (x,)).cut("joint", loss=0, level="core")(x)
    table = torch._decomp.core_aten_decompositions()
    own = foretrace.capture(program, (x,)).cut("joint", loss=0, decompositions=table)(x)
    assert torch.equal(core[0], own[0])
    assert torch.equal(core[1]["x"], own[1]["x"])


def test_math_attention_as_eager() -> None:
    """`target="portable"`: the bits of eager where attention is left to its math kernel."""
    q = torch.randn(2, 3, 5, 8, requires_grad=True)
    mask = torch.rand(5, 5) > 0.3
    mask[:, 0] = True

    def program(q: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, mask).square().sum()

    loss, gradients = foretrace.capture(program, (q,), target="portable").cut("joint", loss=0)(q)
    with sdpa_kernel(SDPBackend.MATH):
        expected = program(q)
        expected.backward()
    assert torch.equal(loss, expected.detach())
    assert torch.equal(gradients["q"], q.grad)


def test_no_such_level() -> None:
    captured = foretrace.capture(torch.sin, (torch.ones(2),))
    with pytest.raises(foretrace.Refusal, match="there is no level 'corr'") as raised:
        captured.cut("aten", level="corr")  # type: ignore[arg-type]
    assert "core" in str(raised.value)


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "examples/rms_norm.py", "--level", "core", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["level"] == "core"
    assert {row["core"] for row in found["ops"]} == {"core"}
    assert "aten.mul.Tensor" in [row["op"] for row in found["ops"]]
    assert main(["ops", "examples/attention.py"]) == 0
    assert "without a core form" in capsys.readouterr().out
