"""The runner runs here, on the CPU; what is planted in its way is reported; nothing is lost."""

import ast
import json
from pathlib import Path

import pytest

from tests.gpu import children, probe
from tests.gpu.__main__ import main
from tests.gpu.jobs import ALL, EXAMPLES, MODELS, Job, jobs
from tests.gpu.rows import Row, table
from tests.models import MODELS as ARCHITECTURES

ROOT = Path(__file__).parents[2]
SMALL = ["--device", "cpu", "--jobs", "1", "--program", "rms_norm:total", "--dtype", "float32"]


def ran(folder: Path, *options: str) -> tuple[int, dict[tuple[str, str], dict]]:
    """The exit code, and the rows by part and what."""
    code = main([*SMALL, "--out", str(folder), *options])
    _, *lines = (folder / "results.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert (folder / "table.txt").read_text()
    return code, {(row["part"], row["what"]): row for row in rows}


def test_a_small_slice_is_the_same_as_eager(tmp_path):
    code, rows = ran(tmp_path, "--part", "cuts", "--part", "named", "--part", "kernels")
    assert code == 0
    assert {part for part, _ in rows} == {"cuts", "named", "kernels"}
    assert {row["status"] for row in rows.values()} == {"same"}


def test_what_is_planted_is_a_difference(tmp_path):
    code, rows = ran(tmp_path, "--part", "cuts", "--plant", "cuts")
    assert code == 1
    assert {row["status"] for row in rows.values()} == {"DIFFERS"}
    detail = rows["cuts", "joint"]["detail"]
    assert "output: 1 of 1 elements differ" in detail["said"]
    assert any("rsqrt" in line for line in detail["eager"])
    assert any("rsqrt" in line for line in detail["ours"])


def test_without_the_device_everything_is_skipped_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "no CUDA device" in probe.facts("cuda")["missing"]
    rows = [row for job in jobs([], [], []) for row in children.skipped(job, "no device")]
    assert {row.part for row in rows} == {part for job in jobs([], [], []) for part in job.parts}
    assert not any(row.failed for row in rows)
    assert "no device: bench of" in table(rows)


@pytest.mark.parametrize(
    ("program", "limit", "seconds", "status"),
    [
        ("an abort", 60, 60, "abort"),
        ("an endless loop", 3, 60, "timeout"),
        ("an endless loop", 60, 3, "skipped"),
    ],
)
def test_a_job_that_does_not_end_well_costs_itself(program, limit, seconds, status):
    bad = Job(("badly", "never"), program, ALL, limit)
    found = dict(children.run([bad], workers=1, seconds=seconds, options={"device": "cpu", "target": "cpu"}))
    first, second = found[bad]
    assert (first.part, first.status) == ("badly", status)
    assert (second.part, second.status) == ("never", "skipped")


def test_torch_is_asked_for_in_the_range_of_the_project():
    assert probe.fits("2.11.0+cu130", ">=2.11,<2.14")
    assert probe.fits("2.13.0", ">=2.11,<2.14")
    assert not probe.fits("2.14.0a0", ">=2.11,<2.14")


def test_every_example_and_ten_architectures_are_there():
    files = {path.stem for path in (ROOT / "examples").glob("*.py")} - {"demo"}
    assert {name.partition(":")[0] for name in EXAMPLES} == files
    for file in files:
        tree = ast.parse((ROOT / "examples" / f"{file}.py").read_text())
        made = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert {name.partition(":")[2] for name in EXAMPLES if name.startswith(f"{file}:")} <= made
    assert len(MODELS) == 10
    assert set(MODELS) <= ARCHITECTURES.keys()


def test_a_failure_is_told_in_the_table():
    row = Row("cuts", "llama", "float32", "joint", "DIFFERS", {"said": "the last bit"})
    assert "DIFFERS: cuts llama float32 joint: the last bit" in table([row])
