"""Targets from files: shipped ones, a user's own, and files that are none."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foretrace
from foretrace.frontends.cli import main
from foretrace.operators.targets.build import check_kernel, names
from foretrace.operators.targets.profile import target_of
from tests.support.accelerator import VERSION, npu

CPU = torch.device("cpu")


@pytest.fixture
def written(tmp_path: Path) -> Any:
    def write(found: Any, name: str = "npu.json") -> str:
        path = tmp_path / name
        path.write_text(found if isinstance(found, str) else json.dumps(found))
        return str(path)

    return write


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.inner = nn.RMSNorm(8), nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.inner(self.norm(x)).view(2, 5, 2, 12).transpose(1, 2).chunk(3, -1)
        out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 8)
        assert torch.accelerator.current_accelerator() == torch.device(x.device.type)
        return F.dropout(x + out * torch.rand(8, device=x.device), 0.5).sum()


@pytest.mark.skipif(not VERSION.startswith("2.13"), reason="names of another version's operators")
def test_a_file_of_a_users_own_is_a_target_from_end_to_end(written: Any, tmp_path: Path) -> None:
    block, x = Block(), torch.randn(2, 5, 8, requires_grad=True)
    program = foretrace.capture(block, (x,), target=written(npu()))
    assert str(program.target) == "npu (compute capability 1.0)"
    for kind in ("export", "aten", "joint", "forward", "backward"):
        cut = program.cut(kind, **({"loss": 0} if kind not in ("export", "aten") else {}))
        graph = cut.graph_module.graph
        graph.lint()
        values = [node.meta.get("val") for node in graph.nodes]
        types = {v.device.type for v in values if isinstance(v, torch.Tensor)}
        assert types == {"privateuseone"}
    joint = program.cut("joint", loss=0)
    kernels = [str(node.target) for node in joint.graph_module.graph.nodes]
    assert "aten._scaled_dot_product_fused_attention_overrideable.default" in kernels
    assert "aten._fused_rms_norm_backward.default" in kernels
    assert "the order on privateuseone" in str(
        joint.explain("_scaled_dot_product_fused_attention_overrideable")
    )
    program.save(tmp_path / "npu.ft", joint)
    assert foretrace.load(tmp_path / "npu.ft").cut("joint", loss=0).nodes == joint.nodes


@pytest.mark.skipif(not VERSION.startswith("2.13"), reason="names of another version's operators")
def test_a_step_for_a_users_own_device(written: Any) -> None:
    net = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(net.parameters())

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    x = torch.randn(2, 4)
    there = foretrace.capture(step, (x,), target=written(npu())).cut("export").nodes
    cuda = foretrace.capture(step, (x,), target="cuda:sm90").cut("export").nodes
    assert there == cuda


def test_an_operator_that_a_file_lacks_is_refused(written: Any) -> None:
    without = npu(kernels={"PrivateUse1": ["mul.Tensor"]})
    x = torch.randn(3)
    assert foretrace.capture(lambda x: x * x, (x,), target=written(without)).cut("aten").nodes
    words = r"Could not run 'aten::sin' with arguments from the 'PrivateUse1' backend"
    with pytest.raises(foretrace.Refusal, match=words) as refused:
        foretrace.capture(torch.sin, (x,), target=written(without))
    assert refused.value.kind == "program raised"
    part = written({**without, "complete": False}, "part.json")
    with pytest.raises(foretrace.Refusal, match="has a kernel for aten::sin is not known"):
        foretrace.capture(torch.sin, (x,), target=part)


@pytest.mark.skipif(not VERSION.startswith("2.13"), reason="the kernels are of that version")
def test_a_composite_kernel_serves_where_it_calls_no_form_of_the_devices(written: Any) -> None:
    """`pixel_shuffle` takes apart what only the CPU has a kernel for; `sin` calls `sin.out`."""
    kernels = {"PrivateUse1": ["sin.out", "clone", "view"]}
    mine = target_of(written(npu(kernels=kernels)), CPU)
    for name in ("pixel_shuffle", "narrow_copy", "sin"):
        check_kernel(getattr(torch.ops.aten, name).default, mine)
    with pytest.raises(NotImplementedError, match="Could not run 'aten::cos'"):
        check_kernel(torch.ops.aten.cos.default, mine)


def test_attention_that_no_file_knows_is_refused(written: Any) -> None:
    q = torch.randn(1, 2, 4, 8)
    unknown = npu()
    del unknown["attention"]
    for target in ("rocm", "mps", "xpu", written(unknown)):
        with pytest.raises(foretrace.Refusal, match="no attention kernels are known") as refused:
            foretrace.capture(F.scaled_dot_product_attention, (q, q, q), target=target)
        assert refused.value.kind == "unknown target"


WRONG = {
    "no JSON": ("{", "is no target file"),
    "no object": ("[1]", "it holds no object"),
    "a field is missing": ({"target": "npu"}, "it has no 'device'"),
    "an unknown field": (npu(alignment=8), "it has 'alignment', which no target has"),
    "a field of another type": (npu(attention=["math"]), "'attention' is"),
    "a name": (npu(target="Cuda:sm90"), "is no name"),
    "a device": (npu(device="abacus"), "torch knows no device 'abacus'"),
    "an index": (npu(device="cuda:1"), "has an index"),
    "a kernel that torch does not have": (
        npu(kernels={"PrivateUse1": ["mul.Tensor", "frobnicate"]}),
        "torch has no operator aten::frobnicate",
    ),
    "kernels in one text": (npu(kernels={"PrivateUse1": "mul.Tensor"}), "are no list of names"),
    "a key": (npu(kernels={"PrivateUse9": ["mul.Tensor"]}), "there is no dispatch key"),
    "kernels of another target": (npu(kernels="tpu"), "none of cpu, meta, cuda"),
    "a kernel of attention": (npu(attention={"fast": []}), "attention has no kernel 'fast'"),
    "a condition": (npu(attention={"math": ["is_tuesday"]}), "no condition 'is_tuesday'"),
    "a capability": (npu(capability=["9", "0"]), "and no version"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_file_that_is_no_target_is_refused(name: str, written: Any, capsys: Any) -> None:
    found, words = WRONG[name]
    path = written(found)
    with pytest.raises(foretrace.Refusal, match=words) as refused:
        foretrace.capture(torch.sin, (torch.ones(2),), target=path)
    assert refused.value.kind == "wrong target file"
    assert main(["targets", "add", path]) == 2
    assert words in capsys.readouterr().err.replace("\n", " ")


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(foretrace.Refusal, match=r"nowhere\.json is no target file"):
        foretrace.capture(torch.sin, (torch.ones(2),), target="nowhere.json")


def test_an_added_target_is_known_by_its_name(
    written: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    mine = npu(target="mine", kernels={"PrivateUse1": ["mul.Tensor", "silu_backward"]})
    with pytest.raises(foretrace.Refusal, match="unknown target: mine"):
        foretrace.capture(torch.sin, (torch.ones(2),), target="mine")
    assert main(["targets", "add", written(mine, "as_it_came.json")]) == 0
    assert names()[-1] == "mine"
    program = foretrace.capture(lambda x: x * x, (torch.ones(2),), target="mine")
    assert program.target.device.type == "privateuseone"
    assert program.target.own_kernels == {"aten::silu_backward"}
    capsys.readouterr()
    assert main(["targets", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)[-1]
    assert (row["target"], row["sources"]) == ("mine", {"kernels": "made up"})
    assert main(["targets", "add", written(npu(target="cuda"), "cuda.json")]) == 2
    assert "which is shipped" in capsys.readouterr().err


DIFFER = {
    ("cuda:sm80", "cuda:sm80"): [],
    ("cuda:sm80", "cuda:sm90"): ["compute capability", "order of attention's kernels"],
    ("cuda:sm90", "cuda:sm100"): ["compute capability"],
}


@pytest.mark.parametrize("pair", DIFFER, ids="-".join)
def test_what_two_targets_decide_differently(pair: tuple[str, str], capsys: Any) -> None:
    assert main(["targets", "diff", *pair, "--json"]) == int(bool(DIFFER[pair]))
    assert [row["what"] for row in json.loads(capsys.readouterr().out)] == DIFFER[pair]


def test_a_difference_names_what_each_has(capsys: Any) -> None:
    assert main(["targets", "diff", "cuda:sm90", "mps"]) == 1
    told = capsys.readouterr().out
    assert "2 only here: aten::linear, aten::max_pool2d" in told
    assert main(["targets", "diff", "mps"]) == 2
    assert main(["targets", "mps"]) == 2


def test_mps_keeps_linear_whole() -> None:
    """It has a kernel of its own there, and derivatives.yaml a line for it; so has its pooling."""

    def program(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight, bias).sum() + F.linear(x, weight).sum()

    args = (torch.randn(1, 4, 6), torch.randn(4, 6), torch.randn(4))
    args = tuple(arg.requires_grad_() for arg in args)
    there, here = (
        foretrace.capture(program, args, target=target).cut("joint", loss=0)
        for target in ("mps", "cpu")
    )
    found = [str(node.target) for node in there.graph_module.graph.nodes]
    assert found.count("aten.linear_backward.default") == 2
    assert outputs(there) == outputs(here)
    with pytest.raises(foretrace.Refusal, match=r"no derivative: .* aten.max_pool2d.default"):
        foretrace.capture(lambda x: F.max_pool2d(x, 2).sum(), args[:1], target="mps").cut(
            "joint", loss=0
        )


def outputs(cut: Any) -> list[Any]:
    (out,) = (node for node in cut.graph_module.graph.nodes if node.op == "output")
    return [(node.meta["val"].shape, node.meta["val"].stride()) for node in out.args[0]]


ASKED = {
    "mps": (torch.backends.mps.is_available, torch.mps.device_count),
    "xpu": (torch.xpu.is_available, lambda: torch.xpu.current_device() + 1),
    "rocm": (torch.cuda.is_available, lambda: torch.cuda.current_device() + 1),
}


@pytest.mark.parametrize("target", ASKED)
def test_the_module_of_the_device_answers(target: str) -> None:
    there, count = ASKED[target]

    def program(x: torch.Tensor) -> torch.Tensor:
        assert there()
        assert torch.cuda.is_available() == (target == "rocm")
        torch.accelerator.synchronize()
        return x * (count() + 1)

    before = there()
    cut = foretrace.capture(program, (torch.ones(2),), target=target).cut("export")
    assert "(x, 2)" in cut.graph_module.code
    assert there() is before


@pytest.mark.skipif(not VERSION.startswith("2.13"), reason="names of another version's operators")
def test_the_module_of_an_accelerator_without_its_package(written: Any) -> None:
    target = written(npu())

    def asks(x: torch.Tensor) -> torch.Tensor:
        module = torch.get_device_module(x.device)
        return x * (module.current_device() + 2 if module.is_available() else 5)

    assert (
        "2"
        in foretrace.capture(asks, (torch.ones(2),), target=target).cut("aten").graph_module.code
    )
    assert not hasattr(torch, "privateuseone")
    for name in ("memory_allocated", "get_amp_supported_dtype"):
        with pytest.raises(foretrace.Refusal, match=f"privateuseone's {name}") as refused:
            foretrace.capture(
                lambda x, name=name: x * getattr(torch.privateuseone, name)(),
                (torch.ones(2),),
                target=target,
            )
        assert refused.value.kind == "unsupported"
