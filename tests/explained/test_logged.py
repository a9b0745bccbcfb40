"""TORCH_LOGS and TORCH_TRACE show foretrace's graphs, where they are asked for."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SHOW = """
import sys
from foretrace.frontends.cli import main
for cut in sys.argv[1:]:
    main(["show", "examples/rms_norm.py:total", "--cut", cut])
"""


def show(*cuts: str, **env: str) -> str:
    """What a process writes as errors that shows the cuts, one after another."""
    given = {k: v for k, v in os.environ.items() if k not in ("TORCH_LOGS", "TORCH_TRACE")}
    done = subprocess.run(
        [sys.executable, "-c", SHOW, *cuts], cwd=ROOT, env=given | {"PYTHONPATH": str(ROOT)} | env,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stderr


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of the structured log, and what was said, of one process that is asked for all."""
    folder = tmp_path_factory.mktemp("trace")
    asked = {"TORCH_LOGS": "aot_joint_graph,aot_graphs", "TORCH_TRACE": str(folder)}
    return folder, show("joint", "backward", "export", **asked)


def test_torch_logs(trace: tuple[Path, str]) -> None:
    shown(trace[1], "joint", "backward", "export")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("artifact", "cuts"),
    [("aot_joint_graph", ("joint",)), ("aot_graphs", ("backward", "export"))],
)
def test_torch_logs_of_one_kind(artifact: str, cuts: tuple[str, ...]) -> None:
    shown(show(*cuts, TORCH_LOGS=artifact), *cuts)


def shown(said: str, *cuts: str) -> None:
    for cut in cuts:
        _, found, graph = said.partition(f"foretrace, {cut} cut")
        assert found
        assert "torch.ops.aten" in graph


@pytest.mark.slow
def test_no_logs_where_none_are_asked_for() -> None:
    assert "foretrace, " not in show("joint", "backward", "export")


def rows(folder: Path) -> list[dict[str, Any]]:
    """What the structured log has, but for the table of strings."""
    (log,) = folder.iterdir()
    lines = [line.partition("] ")[2] for line in log.read_text().splitlines() if "] {" in line]
    return [row for row in map(json.loads, lines) if "str" not in row]


def test_torch_trace(trace: tuple[Path, str]) -> None:
    assert any("aot_joint_graph" in row for row in rows(trace[0]))
    (log,) = trace[0].iterdir()
    assert "torch.ops.aten.rsqrt" in log.read_text()


CAPTURES = """
import torch, foretrace

def first(x):
    return x.sin().sum()

def second(x):
    return x.cos().sum()

x = torch.ones(3, requires_grad=True)
for fn in (first, second):
    program = foretrace.capture(fn, (x,))
    for cut in (program.cut("export"), program.cut("joint", loss=0), *program.pair(loss=0)):
        cut.graph_module
torch.compile(second, backend="aot_eager")(x)
"""
GRAPHS = {"aot_inference_graph", "aot_joint_graph", "aot_forward_graph", "aot_backward_graph"}


def test_each_capture_has_a_number_in_the_trace(tmp_path: Path) -> None:
    """That tlparse groups by: all graphs of a capture have one, Dynamo's next compile another."""
    program, folder = tmp_path / "captures.py", tmp_path / "trace"
    program.write_text(CAPTURES)
    folder.mkdir()
    env = {k: v for k, v in os.environ.items() if k != "TORCH_LOGS"}
    subprocess.run(
        [sys.executable, str(program)], cwd=ROOT, check=True,
        env=env | {"PYTHONPATH": str(ROOT), "TORCH_TRACE": str(folder)},
    )  # fmt: skip
    of: dict[int, list[dict[str, Any]]] = {}
    for row in rows(folder):
        if row.keys() & {"dynamo_start", "compilation_metrics", *GRAPHS}:
            assert row["frame_compile_id"] == row["attempt"] == 0
            of.setdefault(row["frame_id"], []).append(row)
    assert [*of] == [0, 1, 2]
    lines = CAPTURES.splitlines()
    for number, name in enumerate(("first", "second")):
        start, metrics, *graphs = of[number]
        (frame,) = start["dynamo_start"]["stack"]
        line = lines.index(f"def {name}(x):") + 2
        assert (frame["name"], frame["line"]) == (name, line)
        assert metrics["compilation_metrics"] == {
            "compile_id": f"{number}/0", "co_name": name, "co_filename": str(program),
            "co_firstlineno": line,
        }  # fmt: skip
        assert {key for row in graphs for key in row if key in GRAPHS} == GRAPHS
    assert of[2][0]["dynamo_start"]["stack"][-1]["name"] == "second"
