"""`foretrace dispatch`, `targets` and `doctor`: what they print, and what they refuse."""

import json
import re
from pathlib import Path

import pytest

from foretrace.frontends.cli import main
from foretrace.operators.targets.profile import rows

ROOT = Path(__file__).parents[4]
RMS = f"{ROOT}/examples/rms_norm.py"


def test_one_operator_on_three_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dispatch", "_fused_rms_norm", "--on", "cpu,meta,cuda", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [each["device"] for each in told] == ["cpu", "meta", "cuda"]
    rules = [each["steps"][0]["rule"] for each in told]
    assert rules == ["composite implicit", "composite implicit", "autograd"]


def test_a_program_and_its_backward(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dispatch", f"{RMS}:total", "--backward"]) == 0
    said = capsys.readouterr().out
    assert " [call] op=[aten::rms_norm], key=[AutogradCPU]\n" in said
    assert "# SumBackward0, in a backward" in said
    assert main(["dispatch", f"{RMS}:total", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert (rows[0]["op"], rows[0]["at"]["file"]) == ("aten::rms_norm", RMS)


def test_a_program_that_raises_shows_what_ran(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "raises.py"
    file.write_text(
        "import torch\n"
        "def fails(x):\n    y = x + 1\n    return y @ y\n"
        "def program():\n    return fails, (torch.ones(2, 3),)\n"
    )
    assert main(["dispatch", str(file)]) == 2
    shown = capsys.readouterr()
    assert "op=[aten::add.Tensor]" in shown.out
    assert "the program raised RuntimeError" in shown.err
    assert f"{file}:4 in fails" in shown.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["mull"], "near it are aten::mul"),
        (["mm", "--mode", "fakes"], "near it is fake"),
        (["mm", "--key", "CPUU"], "near it is CPU\n"),
        (["mm", "--on", "tpu9"], "unknown target"),
        (["mm", "--backward"], "says nothing of an operator"),
        ([RMS, "--on", "cpu"], "says nothing of a program"),
        ([RMS, "--key", "CPU"], "says nothing of a program"),
    ],
)
def test_what_is_refused(words, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dispatch", *words]) == 2
    assert told in capsys.readouterr().err
    assert main(["dispatch", *words, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["refusal"]["do"]


def test_targets_are_those_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["targets", "--json"]) == 0
    names = [row["target"] for row in json.loads(capsys.readouterr().out)]
    page = (ROOT / "docs/targets.md").read_text()
    table = page[page.index("| target |") : page.index("`foretrace targets` prints")]
    first = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert names == list(rows()) == re.findall(r"`([\w:]+)`", " ".join(first))


def test_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"versions", "build", "switches", "environment", "foretrace"}
    assert told["foretrace"] == {"a tiny program": "as eager, bit for bit"}
    assert main(["doctor"]) == 0
    assert "torch's commit" in capsys.readouterr().out
