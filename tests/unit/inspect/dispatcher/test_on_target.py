"""Files for a device that is not here: each node beside the kernels of the target, and on meta."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foretrace
from foretrace.frontends.cli import main
from foretrace.inspect.dispatcher.on_target import nodes_there
from foretrace.operators.targets.build import build_named

NET = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3))
X = torch.randn(2, 1, 8, 8)
CUDA_AS_HERE = pytest.mark.skipif(
    not torch.__version__.startswith(build_named("cuda").version), reason="no record of its kernels"
)


def there(cut: Any, program: foretrace.Program) -> list[Any]:
    return list(nodes_there(cut.graph_module, program.target, program.semantics.symbols.hint))


def npu(folder: Path, kernels: dict[str, list[str]]) -> str:
    found = {"target": "npu", "device": "privateuseone", "torch": torch.__version__[:6],
             "sources": {"kernels": "made up"}, "kernels": kernels}  # fmt: skip
    path = folder / "npu.json"
    path.write_text(json.dumps(found))
    return str(path)


@CUDA_AS_HERE
def test_a_step_in_a_file_for_a_device(tmp_path: Path, capsys: Any) -> None:
    optimizer = torch.optim.SGD(NET.parameters(), lr=0.1)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(NET(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    args = X, torch.tensor([0, 2])
    foretrace.capture(step, args, target="cuda:sm90", warm=True).save(tmp_path / "step.ft")
    program = foretrace.capture(NET, (X,), target="cuda:sm90")
    program.save(tmp_path / "net.ft", "joint", program.pair())
    files = [str(tmp_path / name) for name in ("step.ft", "net.ft")]
    assert main(["check", *files, "--target", "cuda:sm90", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["cut"] for row in told["checks"]] == ["step", "joint", "forward", "backward"]
    nodes = [node for row in told["checks"] for node in row["nodes"]]
    assert {node["key"] for node in nodes} == {"CUDA"}
    assert not [node for node in nodes if node["on_meta"] or node["differs"]]
    assert main(["check", *files, "--target", "xpu"]) == 2
    assert "is captured for cuda:sm90, not for xpu" in capsys.readouterr().err.replace("\n", " ")


def test_a_node_without_a_kernel_is_told(tmp_path: Path, capsys: Any) -> None:
    """The gradient of `cos` has `sin`, which nothing calls before."""
    target = npu(tmp_path, {"PrivateUse1": ["cos.out", "sum", "mul.out", "neg.out"]})
    x = torch.randn(3, requires_grad=True)
    program = foretrace.capture(lambda x: x.cos().sum(), (x,), target=target)
    found = {node.op: node.kernel for node in there(program.cut("joint"), program)}
    assert found["aten.cos.default"] == "CompositeExplicitAutogradNonFunctional"
    assert (found["aten.sin.default"], found["aten.sum.default"]) == ("none", "PrivateUse1")
    file = str(tmp_path / "program.ft")
    program.save(file, "joint")
    assert main(["check", file, "--target", target]) == 1
    assert "aten.sin.default, 1 node: its kernel for PrivateUse1: none" in capsys.readouterr().out


def test_open_sizes_have_the_numbers_of_the_run() -> None:
    program = foretrace.capture(NET[0], (X,), target="meta", dynamic_shapes=True)
    (node,) = there(program.cut("aten"), program)
    assert (node.key, node.kernel, node.said) == ("Meta", "Meta", "")


def test_other_types_and_no_data_are_told() -> None:
    program = foretrace.capture(lambda x: (x * 2, x.nonzero()), (X,), target="cuda:sm90")
    cut = program.cut("aten")
    for node in cut.graph_module.graph.nodes:
        if node.name == "mul":
            node.meta["val"] = torch.empty(2, dtype=torch.float16, device="meta")
    told = {node.node: node.said for node in there(cut, program)}
    assert told["mul"] == "other types on meta: float32[2, 1, 8, 8], not float16[2]"
    assert told["nonzero"]


def test_a_kernel_of_another_layout_serves_none(tmp_path: Path) -> None:
    target = npu(tmp_path, {"SparsePrivateUse1": ["cos.out", "cos"]})
    with pytest.raises(foretrace.Refusal, match=r"Could not run 'aten::cos' .*'PrivateUse1'"):
        foretrace.capture(torch.cos, (torch.randn(3),), target=target)
