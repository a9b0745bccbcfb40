"""TORCH_LOGS and TORCH_TRACE show foretrace's graphs, where they are asked for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOW = [sys.executable, "-m", "foretrace", "show", "examples/rms_norm.py:total", "--cut"]


def show(cut: str, **env: str) -> str:
    given = {k: v for k, v in os.environ.items() if k not in ("TORCH_LOGS", "TORCH_TRACE")}
    done = subprocess.run(
        [*SHOW, cut], cwd=ROOT, env=given | {"PYTHONPATH": str(ROOT)} | env,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stderr


@pytest.mark.parametrize(
    ("cut", "artifact"),
    [("joint", "aot_joint_graph"), ("backward", "aot_graphs"), ("export", "aot_graphs")],
)
def test_torch_logs(cut: str, artifact: str) -> None:
    said = show(cut, TORCH_LOGS=artifact)
    assert f"foretrace, {cut} cut" in said
    assert "torch.ops.aten" in said
    assert "foretrace, " not in show(cut)


def test_torch_trace(tmp_path: Path) -> None:
    show("joint", TORCH_TRACE=str(tmp_path))
    (log,) = tmp_path.iterdir()
    rows = [line.partition("] ")[2] for line in log.read_text().splitlines() if "] {" in line]
    assert any("aot_joint_graph" in json.loads(row) for row in rows)
    assert "torch.ops.aten.rsqrt" in log.read_text()
