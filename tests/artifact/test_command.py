"""`foretrace show`, `explain` and `diff` of a file that a program was saved into."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import foretrace
from foretrace.frontends.cli import main


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    x = torch.randn(5, 4)
    for name, act in (("gelu", nn.GELU()), ("relu", nn.ReLU())):
        torch.manual_seed(0)
        program = foretrace.capture(nn.Sequential(nn.Linear(4, 3), act), (x,))
        program.save(folder / f"{name}.ft", "export", "joint")
    return folder


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    capsys.readouterr()
    code = main([*words, "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out or err)


def test_show(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(files / "gelu.ft")
    for cut in ("export", "joint", "aten", "backward"):
        code, found = said(capsys, "show", path, "--cut", cut)
        assert code == 0
        expected = foretrace.load(path)
        made = expected.cut(cut) if cut in expected.cuts else expected.program.cut(cut)
        assert [node["name"] for node in found["nodes"]] == list(made.nodes)


def test_explain(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(files / "gelu.ft")
    code, found = said(capsys, "explain", path, "gelu_backward")
    assert code == 0
    cut = foretrace.load(path).cut("joint")
    assert found["links"] == json.loads(json.dumps(cut.explain("gelu_backward").to_dict()["links"]))


def test_diff(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (str(files / f"{name}.ft") for name in ("gelu", "relu"))
    assert said(capsys, "diff", one, one)[0] == 0
    code, found = said(capsys, "diff", one, other)
    assert code == 1
    assert len(found["groups"]) == 1
    assert said(capsys, "diff", one, "--left", "export", "--right", "joint")[0] == 1


@pytest.mark.parametrize(
    "words",
    [
        ("show", "FILE", "--target", "cuda"), ("show", "FILE", "--dynamic"),
        ("show", "FILE", "--eval"), ("diff", "FILE", "--left", "joint@cuda:sm90"),
        ("diff", "FILE", "--run"), ("show", "none.ft"),
    ],
)  # fmt: skip
def test_what_a_file_does_not_give(
    words: tuple[str, ...], files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, found = said(capsys, *(str(files / "gelu.ft") if w == "FILE" else w for w in words))
    assert code == 2
    assert found["refusal"]["do"]


def test_a_break_needs_the_program(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(files / "gelu.ft"), "gelu_backward", "--break"]) == 2
    assert "is captured already" in capsys.readouterr().err


def test_a_step(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    x = torch.randn(5, 4)
    step(x)
    path = str(tmp_path / "step.ft")
    foretrace.capture(step, (x,)).save(path)
    code, found = said(capsys, "show", path, "--cut", "step")
    assert code == 0
    names = [each["name"] for each in found["signature"]["outputs"]]
    assert "momentum_buffer of model.weight" in names
    code, found = said(capsys, "explain", path, found["nodes"][-2]["name"], "--cut", "step")
    assert code == 0
    assert said(capsys, "diff", path, path, "--cut", "step")[0] == 0
