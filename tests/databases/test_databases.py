"""The databases as tests: what is not bitwise is what is stated, and no fault is."""

import faulthandler
import json
import os
from collections.abc import Iterator
from functools import partial

import pytest
import torch

from tests.databases.__main__ import main
from tests.databases.attempts import records, warm
from tests.databases.children import Ended, Job, Record, run
from tests.databases.databases import DATABASES, cases
from tests.databases.on_targets import records as records_there, results_of, target_in
from tests.databases.routes import OURS
from tests.databases.stated import facts, fault, group, samples_stated, stated
from tests.databases.table import Line, lines_of
from tests.support.turns import one_way_each

# How many tests a database is cut into.
SHARDS = {
    **{f"opinfo.{name}": 32 for name in ("float32", "float64", "bfloat16", "complex64")},
    "opinfo.inplace": 16,
    "opinfo.out": 32,
    "opinfo.dynamic": 32,
    "module.train": 16,
    "module.eval": 16,
    "export_db": 8,
    "autograd_function": 2,
    "custom_op": 2,
    "hop": 4,
    "optim.inside": 2,
    "optim.outside": 4,
}
# What the fast lane runs, and by which routes: the others are much the same work once more.
FAST = {
    "opinfo.float32": ("export", "aten", "joint", "pair", "compile"),
    "opinfo.inplace": ("export", "joint", "compile"),
    "opinfo.out": ("export", "compile"),
    "opinfo.dynamic": ("joint",),
    "autograd_function": OURS,
    "custom_op": OURS,
    "hop": OURS,
    "module.train": OURS,
    "module.eval": ("export", "joint", "compile"),
    "export_db": OURS,
    "optim.inside": ("export", "compile"),
    "optim.outside": OURS,
}
LIMIT = 1200  # seconds for one operator, on a busy machine


def shards(names):
    return [(name, i) for name in names for i in range(SHARDS.get(name, 1))]


def lines(database: str, shard: int, routes, samples: int | None) -> list[Line]:
    chosen = cases([database])[shard :: SHARDS.get(database, 1)]
    jobs = {f"{c.database} {c.name}": partial(records, c, routes, samples) for c in chosen}
    warm()
    return [line for ended in ended_jobs(jobs) for line in lines_of(ended)]


def ended_jobs(jobs: dict[str, Job]) -> list[Ended]:
    """Of all of them in one child; of each in its own where that does not end well."""
    (whole,) = run([("all", partial(one_after_another, jobs))], limit=LIMIT, workers=1)
    if whole.end != "ok":
        return list(run(jobs.items(), limit=LIMIT, workers=1))
    found = [(record.pop("case"), record) for record in whole.records]
    return [Ended(name, "ok", [r for n, r in found if n == name], 0.0) for name in jobs]


def one_after_another(jobs: dict[str, Job]) -> Iterator[Record]:
    for name, job in jobs.items():
        for record in job():
            yield {"case": name, **record}


def hold(found: list[Line]) -> None:
    """Fail on what is neither bitwise nor stated."""
    new = facts(found) - stated()
    wrong = [line for line in found if facts([line]) & new]
    assert not new, f"`make reliability` states what is to be so: {wrong}"


def test_a_job_that_aborts_costs_itself_alone() -> None:
    """And writes no stack to the terminal, past all that pytest captures."""

    def job(status: str) -> Iterator[Record]:
        yield {"route": "export", "status": status, "loud": faulthandler.is_enabled()}
        if status == "last":
            os.abort()

    names = ("first", "last", "after")
    ended = ended_jobs({name: partial(job, name) for name in names})
    assert [(each.name, each.end) for each in ended] == [
        ("first", "ok"), ("last", "abort"), ("after", "ok")
    ]  # fmt: skip
    assert [each.records for each in ended] == [
        [{"route": "export", "status": name, "loud": False}] for name in names
    ]
    assert "SIGABRT" in ended[1].said


def test_no_fault_is_stated():
    assert not [fact for fact in stated() if fault(fact)]


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on(tmp_path, monkeypatch):
    out = tmp_path / "records.jsonl"
    chosen = ["--database", "custom_op", "--only", "^Numpy(Cube|Mul|Sort)", "--route", "export"]
    monkeypatch.setattr("sys.argv", ["", *chosen, "--resume", "--out", str(out)])
    assert main() == 0
    first, *_ = whole = out.read_text().splitlines(keepends=True)
    out.write_text(first + whole[1][:20])
    assert main() == 0
    again = out.read_text().splitlines(keepends=True)
    assert len(again) == len(whole)
    assert again[0] == first
    assert [json.loads(line)["records"] for line in again] == [
        json.loads(line)["records"] for line in whole
    ]


@pytest.mark.slow
def test_records_of_several_runs_make_one_page(tmp_path, monkeypatch):
    """Which says of how many samples each of them is, as the file does that tests hold against."""
    files = [tmp_path / f"{name}.jsonl" for name in ("first", "second")]
    runs = [("custom_op", "^Numpy(Cube|NMS)", "all"), ("opinfo.int64", "^(kron|sin)$", "2")]
    for file, (database, only, most) in zip(files, runs, strict=True):
        chosen = ["--database", database, "--only", only, "--samples", most, "--route", "export"]
        monkeypatch.setattr("sys.argv", ["", *chosen, "--out", str(file)])
        assert main() == 0
    monkeypatch.setattr("tests.databases.stated.FILE", tmp_path / "stated.txt")
    page, tables = tmp_path / "page.md", tmp_path / "tables.md"
    read = ["--read", *map(str, files), "--write", str(page), "--tables", str(tables)]
    monkeypatch.setattr("sys.argv", ["", *read])
    assert main() == 0
    assert "\nfirst, second.\n" in page.read_text()
    assert "(tables.md)" in page.read_text()
    rows = [line for line in page.read_text().splitlines() if line.startswith("| custom_op")]
    assert rows == ["| custom_op | 2 (all) | export | 1 of 2 | 0 | 1 | 0 | not run |"]
    rows = [line for line in tables.read_text().splitlines() if line.startswith("| custom_op")]
    assert rows == ["| custom_op | export | 2 (all) | 1 | 1 |"]
    assert (samples_stated("custom_op"), samples_stated("opinfo.int64")) == (None, 2)
    assert stated() == {("custom_op", "NumpyNMSCustomOp", "refused (data-dependent)", "export")}


EACH = [
    [pytest.param(name, i, id=f"{name}-{i}") for name, i in shards([database])] for database in FAST
]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("database", "shard"), one_way_each(EACH))
def test_one_sample(database, shard):
    hold(lines(database, shard, FAST[database], 1))


@pytest.mark.slow
@pytest.mark.parametrize(("database", "shard"), shards(DATABASES))
def test_what_is_stated(database, shard):
    """Not more, and not less, of as many samples as the file is of."""
    found = lines(database, shard, OURS, samples_stated(database))
    hold(found)
    names = {line.name for line in found}
    mine = {f for f in stated() if f[0] == group(database) == database and f[1] in names}
    gone = mine - facts(found)
    assert not gone, f"no more so; `make reliability` updates it: {sorted(gone)}"


@pytest.mark.skipif(torch.version.cuda is not None, reason="autograd's threads end in a fork")
@pytest.mark.parametrize("name", ["cuda:sm90", "npu"])
def test_operators_for_a_device_that_is_not_here(name, tmp_path):
    target = target_in(tmp_path, name)
    chosen = cases(["opinfo.float32"], "^(addmm|cumsum|histogram|nn.functional.conv2d|view)$")
    warm()
    jobs = [(case.name, partial(records_there, case, target, 2)) for case in chosen]
    ended = list(run(jobs, limit=LIMIT, workers=1))
    found = [result for each in ended for result in results_of(each)]
    for operator, record in found:
        expected = "disguised" if operator == "histogram" else "same"  # CUDA has no kernel of it
        assert record["status"] == expected, (operator, record)
    assert {record["cut"] for _, record in found} == {"aten", "joint", "capture"}
    assert len(found) > len(chosen)
