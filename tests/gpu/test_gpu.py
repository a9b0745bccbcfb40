"""The runner runs here, on the CPU; what is planted in its way is reported; nothing is lost."""

import ast
import json
from pathlib import Path

import pytest
import torch

from tests.gpu import children, cuts, memory, probe
from tests.gpu.__main__ import main
from tests.gpu.attention import grid
from tests.gpu.jobs import ALL, CALLS, EXAMPLES, MODELS, Job, jobs
from tests.gpu.programs import program
from tests.gpu.rows import Row, table
from tests.support.models import MODELS as ARCHITECTURES

ROOT = Path(__file__).parents[2]
SMALL = ["--device", "cpu", "--jobs", "1", "--program", "rms_norm:total", "--dtype", "float32"]


def options(name: str, values) -> list[str]:
    return [each for value in values for each in (name, value)]


def ran(folder: Path, *given: str) -> tuple[int, dict[tuple[str, str], dict]]:
    """The exit code, and the rows by part and what."""
    code = main([*SMALL, "--out", str(folder), *given])
    _, *lines = (folder / "results.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert (folder / "table.txt").read_text()
    return code, {(row["part"], row["what"]): row for row in rows}


PARTS = ("named", "cuts", "kernels")


@pytest.mark.slow
def test_a_small_slice_is_the_same_as_eager(tmp_path):
    code, rows = ran(tmp_path, *options("--part", PARTS))
    assert code == 0
    assert {part for part, _ in rows} == set(PARTS)
    assert rows.pop(("named", "untouched"))["status"] == "skipped"
    assert {row["status"] for row in rows.values()} == {"same"}


@pytest.mark.slow
def test_what_is_planted_is_a_difference(tmp_path):
    """And the record has what is needed to mend it elsewhere: both lists, where they part, why."""
    code, rows = ran(tmp_path, *options("--part", PARTS), *options("--plant", PARTS))
    assert code == 1
    rows.pop(("named", "untouched"))
    assert {row["status"] for row in rows.values()} == {"DIFFERS"}
    cut, graph, kernels = (
        rows[key]["detail"]
        for key in (("cuts", "joint"), ("named", "aten"), ("kernels", "eager's"))
    )
    assert "output: 1 of 1 elements differ" in cut["said"]
    for side in (cut["eager"], cut["ours"], kernels["eager"], kernels["ours"]):
        assert any("rsqrt" in line and "f32[4,1][1,1]" in line for line in side)
    assert "(cpu on the device, meta by name)" in graph["said"]
    assert "cpu" in graph["on_the_device"][0]
    assert "meta" in graph["by_name"][0]
    assert all("placeholder" in why or "input" in why for why in graph["why"])


@pytest.mark.slow
@pytest.mark.parametrize("part", ["profile", "choices", "composites", "inductor"])
def test_a_difference_is_found_by_every_part(tmp_path, part):
    names = {"composites": "rms_norm", "inductor": "rms_norm:total", "profile": "the device"}
    chosen = ["--program", names.get(part, "attention, float16"), "--part", part]
    assert ran(tmp_path, *chosen)[0] == 0
    code, rows = ran(tmp_path, *chosen, "--plant", part)
    assert code == 1
    assert "DIFFERS" in {row["status"] for row in rows.values()}


def test_peaks_are_told_beside_eagers():
    """Without a device that counts them: what counts is what is given."""
    with program("rms_norm:total", "float32") as subject:
        found = list(memory.measured(cuts.Bench(subject, "cpu"), lambda step: step() and 2_000_000))
    assert [what for what, _, _ in found] == ["eager", "joint", "pair", "compile eager"]
    assert found[1][2]["said"] == "2.00 MB, 1.000 of eager's"


def test_without_the_device_everything_is_skipped_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert "no CUDA device" in probe.facts("cuda")["missing"]
    rows = [row for job in jobs([], [], []) for row in children.skipped(job, "no device")]
    assert {row.part for row in rows} == {part for job in jobs([], [], []) for part in job.parts}
    assert not any(row.failed for row in rows)
    assert "no device: bench of" in table(rows)


@pytest.mark.parametrize(
    ("name", "limit", "seconds", "status"),
    [
        ("an abort", 60, 60, "abort"),
        ("an endless loop", 1, 60, "timeout"),
        ("an endless loop", 60, 1, "skipped"),
    ],
)
def test_a_job_that_does_not_end_well_costs_itself(name, limit, seconds, status):
    bad = Job(("badly", "never"), name, ALL, limit)
    found = dict(
        children.run([bad], workers=1, seconds=seconds, options={"device": "cpu", "target": "cpu"})
    )
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


@pytest.mark.cuda
@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_the_device(tmp_path):
    assert main(["--out", str(tmp_path)]) == 0, (tmp_path / "table.txt").read_text()


def test_every_call_of_attention_has_a_job():
    assert tuple(grid()) == CALLS
