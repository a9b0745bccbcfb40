"""The command line: what it prints, for people and for programs, and what it returns."""

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch

import foretrace
from foretrace.frontends.cli import main

ROOT = Path(__file__).parents[4]
ATTENTION = str(ROOT / "examples/attention.py")
RMS_NORM = str(ROOT / "examples/rms_norm.py")
COMMANDS = ("show", "explain", "check", "diff")

pytestmark = pytest.mark.filterwarnings("always:a word of warning")

PROGRAM = """
import warnings
import torch
from torch import nn
from beside import HALF

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x):
        print("a word to stdout")
        warnings.warn("a word of warning")
        return self.norm(self.linear(x) * HALF).square().sum()

def program():
    torch.manual_seed(0)
    return Net(), (torch.randn(4, 3, requires_grad=True),)

def with_kwargs():
    return torch.sum, [torch.ones(2, 3)], {"dim": 0}

def raises():
    return 1 / 0  # here

def branches():
    return lambda x: x * (x * 1j).sum().item(), (torch.ones(2),)

def asks():
    return lambda x: x if x.sum() > 0 else -x, (torch.ones(2),)

def different():
    import itertools
    state = itertools.count(1)
    def fn(x):
        return x * next(state)
    return fn, (torch.ones(2, requires_grad=True),)

def alone(): return torch.sin
def three_of_four(): return 1, 2, 3, 4
def not_callable(): return "sin", ()
def args_are_a_tensor(): return torch.sin, torch.ones(2)
def kwargs_are_a_list(): return torch.sin, (torch.ones(2),), []
def takes(argument): return torch.sin, (torch.ones(2),)
number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text("HALF = 0.5\n")
    (tmp_path / "broken.py").write_text("import torch\nx = (1,\n")
    (tmp_path / "raising.py").write_text("import os\nraise KeyError('gone')  # here\n")
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(3)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "beside", raising=False)
    return tmp_path


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def data(capsys: pytest.CaptureFixture[str]) -> Any:
    """The JSON that was printed: all of stdout."""
    return json.loads(capsys.readouterr().out)


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is printed when it refuses: all of it on stderr."""
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "  do    " in said.err
    return said.err


def outside(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-m", "foretrace", *words]
    return subprocess.run(command, capture_output=True, text=True, env=env, check=False)


# ------------------------------------------------------------------------------------------- show


def test_show_prints_the_graph_and_a_summary(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", ATTENTION]) == 0
    said = capsys.readouterr().out
    assert 'q: "f32[64, 16]"' in said
    assert said.count("torch.ops.aten.scaled_dot_product_attention.default(q, k, v)") == 1
    assert f"export cut of {ATTENTION} on cpu: 6 nodes, 3 inputs, 1 output\n" in said
    assert "captured in " in said
    assert "\x1b" not in said
    assert all(line == line.rstrip() for line in said.splitlines())


def test_show_passes_prints_what_each_pass_changed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", ATTENTION, "--passes", "--cut", "joint"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:3] == [
        " 1 check gradients  nothing",
        " 2 check hooks      nothing",
        " 3 differentiate    8 added: 9 ops",
    ]
    assert said[3].startswith("   Append the derivative of the tree; ")
    assert "   + output %mul_3   gradient of q" in said
    assert " 4 flatten          12 added, 1 removed, 7 replaced: 22 ops" in said
    assert "   - Attention()" in said
    assert "   ... and 5 more lines" in said
    assert said[-2].startswith("joint cut of ")
    assert not any("torch.ops.aten" in line for line in said)


@pytest.mark.parametrize(
    ("cut", "last"),
    [("export", "decompose"), ("aten", "decompose"), ("step", "recompute"), ("joint", "decompose"),
     ("forward", "partition"), ("backward", "partition")],
)  # fmt: skip
def test_show_passes_for_programs(cut: str, last: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", ATTENTION, "--cut", cut, "--json"]) == 0
    plain = data(capsys)
    assert "passes" not in plain
    assert main(["show", ATTENTION, "--cut", cut, "--passes", "--json"]) == 0
    found = data(capsys)
    *_, final = passes = found["passes"]
    assert final["name"] == last
    calls = [node for node in found["nodes"] if node["op"] == "call_function"]
    items = [node for node in calls if node["what"].startswith("getitem")]
    assert final["ops"] == len(calls) - len(items)
    assert found["nodes"] == plain["nodes"]
    assert all(each["purpose"] for each in passes)
    counts = [each["ops"] - each["added"] + each["removed"] for each in passes]
    assert any(count != counts[0] for count in counts)


def test_show_passes_of_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foretrace.capture(torch.nn.Linear(2, 2), (torch.ones(1, 2),)).save("net.ft", "joint")
    assert main(["show", "net.ft", "--cut", "joint", "--passes"]) == 0
    assert " 3 differentiate " in capsys.readouterr().out


def test_show_joint_takes_output_0_as_the_loss(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", ATTENTION, "--cut", "joint", "--json"]) == 0
    found = data(capsys)
    assert (found["cut"], found["loss"], found["target"]) == ("joint", 0, "cpu")
    assert {"kind": "gradient", "name": "q"} in found["signature"]["outputs"]
    assert any(node["backward"] for node in found["nodes"])
    assert found["nodes"][0] | {"line": None} == {
        "name": "q", "op": "placeholder", "what": "an input", "type": "f32[64, 16]",
        "line": None, "backward": False,
    }  # fmt: skip
    assert "def forward" in found["text"]
    lines = [node["line"] for node in found["nodes"] if node["line"]]
    assert all(line["file"] == ATTENTION for line in lines)


def test_show_takes_tangents_where_there_is_no_loss(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", RMS_NORM, "--cut", "joint", "--json"]) == 0
    found = data(capsys)
    assert found["loss"] is None
    assert "tangent" in [role["kind"] for role in found["signature"]["inputs"]]


def test_show_loss_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", ATTENTION, "--cut", "joint", "--loss", "none", "--json"]) == 0
    assert data(capsys)["loss"] is None


def test_show_keep(capsys: pytest.CaptureFixture[str]) -> None:
    keep = ["--keep", "scaled_dot_product_attention"]
    assert main(["show", ATTENTION, "--cut", "joint", *keep, "--json"]) == 0
    names = [node["name"] for node in data(capsys)["nodes"]]
    assert "scaled_dot_product_attention" in names
    assert "scaled_dot_product_attention_backward" in names


def test_show_open(capsys: pytest.CaptureFixture[str]) -> None:
    opened = ["--open", "scaled_dot_product_attention"]
    assert main(["show", ATTENTION, *opened, "--json"]) == 0
    names = [node["name"] for node in data(capsys)["nodes"]]
    assert "scaled_dot_product_attention" not in names


def test_show_target_and_dynamic(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["show", f"{RMS_NORM}:total", "--cut", "joint", "--target", "cuda:sm90", "--dynamic"]
    assert main([*words, "--json"]) == 0
    found = data(capsys)
    assert found["target"] == "cuda:sm90"
    assert "_fused_rms_norm_backward.default" in found["text"]
    assert any("[s" in node["type"] for node in found["nodes"])


def test_show_forward_says_what_is_saved(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", ATTENTION, "--cut", "forward", "--policy", "save_all", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    held = [each for each in shown["saved"] if not each["free"]]
    roles = [role["name"] for role in shown["signature"]["outputs"] if role["kind"] == "saved"]
    assert [each["name"] for each in shown["saved"]] == roles
    assert all(int(each["bytes"]) and "attention.py:" in each["at"] for each in held)
    assert main(["show", ATTENTION, "--cut", "backward"]) == 0
    text = capsys.readouterr().out
    assert "saved: " in text
    assert "bytes held between forward and backward" in text


def test_explain_backward(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", ATTENTION, "_softmax_backward_data", "--cut", "backward"]) == 0
    assert "node _safe_softmax of forward" in capsys.readouterr().out


def test_show_eval(capsys: pytest.CaptureFixture[str]) -> None:
    dropped = f"{ATTENTION}:dropped"
    texts = []
    for words in ([], ["--eval"]):
        assert main(["show", dropped, "--json", *words]) == 0
        texts.append(data(capsys)["text"])
    assert texts[0] != texts[1]


# ---------------------------------------------------------------------------------------- explain


def test_explain_prints_the_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", ATTENTION, "mm_2"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("mm_2: f32[64, 16] = aten.mm.default(t, expand)\n")
    assert "rule     MmBackward0" in said
    assert "written  aten.scaled_dot_product_attention.default" in said
    assert "MISSING" not in said
    assert "\x1b" not in said


def test_explain_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", ATTENTION, "mm", "--cut", "aten", "--json"]) == 0
    found = data(capsys)
    assert (found["cut"], found["node"], found["missing"]) == ("aten", "mm", [])
    assert found["links"][0]["kind"] == "line"


def test_explain_refuses_an_unknown_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert "near it is mm\n" in refusal(["explain", ATTENTION, "mmm"], capsys)
    said = refusal(["explain", ATTENTION, "zzz"], capsys)
    assert "none is near it; the first are q, k, v, mul and transpose" in said
    assert "foretrace show have the names of all 26" in said


# ------------------------------------------------------------------------------------------ check


def test_check_counts_what_is_equal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "mine.py"]) == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == "mine.py"
    rows = [" ".join(line.split()) for line in lines]
    assert rows[1] == "mode cut gradients outputs buffers random state"
    assert rows[2] == "train export 5/5 1/1 3/3 1/1"
    assert rows[6] == "train compiled 5/5 1/1 3/3 1/1"
    assert rows[10] == "eval pair 5/5 1/1 - 1/1"
    assert lines[12] == "all 5 gradients, 1 output, 3 buffers bitwise equal"
    assert "a word to stdout" in said.err
    assert "UserWarning: a word of warning" in said.err
    assert said.err.count("UserWarning") == 1


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_check_one_mode(folder: Path, capsys: pytest.CaptureFixture[str], mode: str) -> None:
    assert main(["check", "mine.py", f"--{mode}", "--json"]) == 0
    (found,) = data(capsys)["checks"]
    assert (found["program"], found["mode"], found["equal"]) == ("mine.py", mode, True)
    whats = {item["what"] for item in found["items"]}
    assert whats == {"gradient", "output", "random state"} | (
        {"buffer"} if mode == "train" else set()
    )


def test_check_finds_a_difference(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "mine.py:different"]) == 1
    said = capsys.readouterr().out
    assert "differs: as is, export, output 0" in said
    assert said.rstrip().splitlines()[-1].startswith("different from eager: ")
    assert main(["check", "mine.py:different", "--json"]) == 1
    assert data(capsys)["equal"] is False


def test_check_several_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "mine.py", "mine.py:with_kwargs", "--eval", "--json"]) == 0
    assert [found["program"] for found in data(capsys)["checks"]] == [
        "mine.py",
        "mine.py:with_kwargs",
    ]


def test_show_lists_what_was_asked_of_values(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "mine.py:asks"]) == 0
    said = capsys.readouterr().out
    assert "guard: is_nonzero of what follows from x is True" in said
    assert "mine.py:" in said


def test_check_goes_on_after_a_refusal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["check", "mine.py:branches", "mine.py:with_kwargs", "--eval"]
    assert main(words) == 2
    said = capsys.readouterr()
    assert "asks for a number that depends on the inputs" in said.err
    assert "\n1 output bitwise equal" in said.out
    assert main([*words, "--json"]) == 2
    first, second = data(capsys)["checks"]
    assert first["refusal"]["kind"] == "data-dependent"
    assert second["equal"]


# --------------------------------------------------------------------------- where a program stands


@pytest.mark.parametrize(
    "spec", ["mine.py", "mine.py:program", "mine:program", "./mine.py:", "mine:with_kwargs"]
)
def test_a_program_is_found(folder: Path, capsys: pytest.CaptureFixture[str], spec: str) -> None:
    before, path = set(sys.modules), sys.path.copy()
    assert main(["show", spec, "--json"]) == 0
    assert data(capsys)["program"] == spec
    assert sys.path == path
    if ".py" in spec:
        assert "mine" not in set(sys.modules) - before
    sys.modules.pop("mine", None)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nowhere.py", "there is no file nowhere.py"),
        ("mime.py", "near it is mine.py"),
        ("nowhere", "there is no module nowhere"),
        ("no.where:program", "there is no module no.where"),
        ("mine.py:progam", "near it is program"),
        ("mine.py:zzz", "it has program, with_kwargs, raises"),
        ("mine.py:number", "has number, which is no function"),
        ("mine.py:takes", "takes takes arguments: argument"),
        ("mine.py:alone", "returns a builtin_function_or_method"),
        ("mine.py:three_of_four", "returns 4 things"),
        ("mine.py:not_callable", "returns a str first, which cannot be called"),
        ("mine.py:args_are_a_tensor", "returns args that are a Tensor"),
        ("mine.py:kwargs_are_a_list", "returns kwargs that are a list"),
        ("broken.py", "broken.py raised SyntaxError: '(' was never closed"),
        ("broken.py", "broken.py:2 in <module>:   x = (1,"),
        ("raising.py", "raising.py raised KeyError: 'gone'"),
        ("raising.py", "raising.py:2 in <module>:   raise KeyError('gone')  # here"),
        ("leaving.py", "leaving.py raised SystemExit: 3"),
        ("mine.py:raises", "raises raised ZeroDivisionError: division by zero"),
        ("mine.py:raises", "in raises:   return 1 / 0  # here"),
        ("mine.py:branches", "in branches.<locals>.<lambda>:"),
    ],
)
def test_a_program_that_is_none_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], spec: str, said: str
) -> None:
    assert said in refusal(["show", spec], capsys)
    assert main(["check", spec, "--json"]) == 2
    assert data(capsys)["refusal"]["do"]


# ---------------------------------------------------------------------------------------- wrong use


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["shw"], "invalid choice: 'shw'"),
        (["show"], "the following arguments are required: PROGRAM"),
        (["explain", ATTENTION], "the following arguments are required: NODE"),
        (["show", ATTENTION, "--cut", "backwards"], "invalid choice: 'backwards'"),
        (["show", ATTENTION, "--loss", "x"], "'x' is neither an index nor `none`"),
        (["show", ATTENTION, "--cut", "joint", "--loss", "7"], "loss=7"),
        (["show", ATTENTION, "--keep", "scaled_dot"], "no op of the program is scaled_dot"),
        (["show", ATTENTION, "--target", "tpu"], "unknown target: tpu"),
        (["check", ATTENTION, "--train", "--eval"], "not allowed with argument"),
        (["show", ATTENTION, "--frobnicate"], "unrecognized arguments: --frobnicate"),
    ],
    ids=lambda item: " ".join(item[-2:]).rpartition("/")[2] if isinstance(item, list) else "",
)
def test_wrong_use_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refusal(words, capsys)
    assert main([*words, "--json"]) == 2
    assert said in data(capsys)["refusal"]["what"]


def test_help_lists_the_commands_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(command in said for command in COMMANDS)
    assert main(["show", "--help"]) == 0
    assert "export,aten,step,joint" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    said = capsys.readouterr().out
    ours, python = foretrace.__version__, platform.python_version()
    assert said == f"foretrace {ours}, torch {version('torch')}, Python {python}\n"


def test_a_check_in_pieces_is_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """On stdout, although what the program itself prints goes elsewhere."""
    assert main(["check", "--partial", ATTENTION]) == 0
    said = capsys.readouterr()
    assert "bitwise equal" in said.out
    assert not said.err


# --------------------------------------------------------------------- in a process of its own


def test_the_module_runs() -> None:
    done = outside("show", ATTENTION, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["cut"] == "export"
    assert outside("show", "nowhere.py").returncode == 2


def test_colour_is_for_terminals(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(**environment: str) -> str:
        with monkeypatch.context() as changed:
            for name, value in environment.items():
                changed.setenv(name, value)
            assert main(["explain", ATTENTION, "mm"]) == 0
        return capsys.readouterr().out

    assert "\x1b" not in said()
    colour = said(FORCE_COLOR="1", COLUMNS="80")
    assert "\x1b[36m" in colour
    assert all(len(line) < 160 for line in colour.splitlines())
    assert "\x1b[36m" not in said(FORCE_COLOR="1", NO_COLOR="1")


@pytest.mark.slow
def test_a_reader_that_goes_away() -> None:
    command = f"{sys.executable} -m foretrace show {ATTENTION} | head -1"
    done = subprocess.run(
        ["bash", "-c", command],  # noqa: S607 - the user's own shell
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "class Export(torch.nn.Module):\n"
    assert done.stderr == ""


# --------------------------------------------------------------------- diff


def test_diff_names_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    left_right = ["--left", "joint", "--right", "joint@cuda:sm90"]
    assert main(["diff", f"{RMS_NORM}:total", *left_right]) == 1
    said = capsys.readouterr().out
    assert "_fused_rms_norm has a kernel of its own on cuda:sm90, none on cpu" in said
    assert "decided at  foretrace/autograd/derivatives/target_semantics.py:" in said
    assert "rms_norm > _fused_rms_norm" in said
    assert said.splitlines()[-1].endswith("2 differences, for 1 reason; 3 ops are the same")


def test_diff_of_equal_cuts_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", ATTENTION, "--cut", "joint"]) == 0
    said = capsys.readouterr().out
    assert said == "joint@cpu (22 ops) and joint@cpu (22 ops): no difference; 22 ops are the same\n"


def test_diff_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", ATTENTION, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["programs"] == [ATTENTION, ATTENTION]
    assert [said[side]["cut"] for side in ("left", "right")] == ["export@cpu", "joint@cpu"]
    level, cut = said["groups"]
    assert level["reason"]["kind"] == "level"
    (((difference,),),) = [level["folds"]]
    assert difference["kind"] == "opened"
    assert difference["what"] == "scaled_dot_product_attention"
    assert difference["at"]["line"] == 27
    assert cut["reason"]["kind"] == "cut"
    assert said["measured"] is None


def test_diff_of_two_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", f"{ATTENTION}:four_d", f"{ATTENTION}:causal"]) == 1
    said = capsys.readouterr().out
    assert "Attention.is_causal is False on the left, True on the right" in said
    assert "q, k and v have sizes [1, 1, 64, 16] on the left, [2, 4, 64, 16] on the right" in said


def test_diff_takes_modes_dtypes_and_policies(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = ["--left", "export,train", "--right", "export,eval"]
    assert main(["diff", "mine.py", *sides]) == 1
    assert "in training mode on the left, in eval mode on the right" in capsys.readouterr().out
    assert main(["diff", "mine.py", "--left", "joint", "--right", "joint,f64"]) == 1
    assert "are f32 on the left, f64 on the right" in capsys.readouterr().out
    halves = ["--left", "backward", "--right", "backward,policy=recompute_all"]
    assert main(["diff", "mine.py", *halves]) == 1
    assert "the backward runs it again" in capsys.readouterr().out
    assert main(["diff", "mine.py", "--left", "joint", "--right", "joint,keep=linear"]) == 1
    assert "keep= names linear in the right cut" in capsys.readouterr().out
    assert main(["diff", "mine.py", "--left", "export", "--right", "export,dynamic"]) == 1
    assert "open on the right only" in capsys.readouterr().out


def test_diff_runs_both(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sides = ["--left", "joint", "--right", "joint,bf16", "--run"]
    assert main(["diff", "mine.py", *sides]) == 1
    said = capsys.readouterr().out
    assert "run on the same input: " in said
    assert "  first       " in said
    same = ["--left", "aten", "--right", "aten", "--run", "--json"]
    assert main(["diff", "mine.py", *same]) == 0
    measured = json.loads(capsys.readouterr().out)["measured"]
    assert measured["first"] is None
    assert measured["equal"] == len(measured["steps"]) > 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--left", "jont"], "there is no cut 'jont': did you mean joint?"),
        (["--left", "joint@cuda:sm9"], "unknown target: cuda:sm9"),
        (["--left", "joint,fast"], "there is no option 'fast': use train, eval, dynamic"),
        (["--node", "mmm"], "neither cut has a node 'mmm'"),
        (["--left", "joint", "--right", "joint@cuda", "--run"], "cannot run here"),
        ([f"{ROOT}/examples/resnet.py"], "the two cuts have nothing in common"),
        (["--right", "joint,keep=rms_norm"], "no op of the program is rms_norm"),
    ],
)
def test_diff_refuses(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", ATTENTION, *arguments]) == 2
    answer = capsys.readouterr()
    assert said in answer.err
    assert "  do    " in answer.err
    assert not answer.out


def test_diff_of_one_node(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", ATTENTION, "--node", "_safe_softmax"]) == 1
    assert "opened      scaled_dot_product_attention" in capsys.readouterr().out
    assert main(["diff", ATTENTION, "--node", "sum_1"]) == 0
