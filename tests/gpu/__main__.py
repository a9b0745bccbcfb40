"""`python -m tests.gpu`: everything that is asked of a device, a row each, and one table."""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.gpu.children import ROOT, environment, run, skipped
from tests.gpu.jobs import DTYPES, PARTS, Job, jobs
from tests.gpu.rows import Row, table

MOST: Final = 12 << 20  # bytes of results.jsonl, above which lists are left out


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--part", action="append", default=[], choices=PARTS)
    parser.add_argument("--program", action="append", default=[], help="a program's whole name")
    parser.add_argument("--dtype", action="append", default=[], choices=DTYPES)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--minutes", type=float, default=7.5, help="the rest is skipped by name")
    parser.add_argument("--out", type=Path, default=Path("out/gpu"), help="results and table")
    parser.add_argument("--plant", action="append", default=[], choices=PARTS,
                        help="a part that is to report a difference, put in its way")  # fmt: skip
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run, show, and say by the exit code whether anything was wrong."""
    given, console = _arguments(argv), Console()
    given.out.mkdir(parents=True, exist_ok=True)
    begin, facts = time.monotonic(), probed(given.device)
    chosen = jobs(given.part, given.program, given.dtype)
    found: list[Row] = []
    with (given.out / "results.jsonl").open("w", buffering=1) as out:
        print(json.dumps({"facts": facts}), file=out)
        for _, rows in _watched(_ran(chosen, facts, given), len(chosen), console):
            found += rows
            for row in rows:
                print(written(row, full=out.tell() > MOST), file=out)
    text = f"{header(facts)}\n{table(found)}{len(found)} rows, {time.monotonic() - begin:.0f} s\n"
    (given.out / "table.txt").write_text(text)
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    return int(any(row.failed for row in found))


def written(row: Row, *, full: bool) -> str:
    """A row as a line; where the file is full, without the lists of a difference."""
    if full and isinstance(row.detail, dict):
        row = replace(row, detail={"said": row.said, "left out": "the file has become too large"})
    return json.dumps(vars(row))


def probed(device: str) -> dict[str, Any]:
    """What tests/gpu/probe.py says, or why it cannot."""
    command = [sys.executable, "-m", "tests.gpu.probe", device]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(""), capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {"device": device, "target": device, "missing": f"torch says: {last}"}
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts


def header(facts: dict[str, Any]) -> str:
    """The device in one line."""
    said = [f"{name} {facts[name]}" for name in ("name", "target", "torch", "cudnn", "python")
            if facts.get(name)]  # fmt: skip
    return ", ".join(said)


def _ran(
    chosen: list[Job], facts: dict[str, Any], given: argparse.Namespace
) -> Iterator[tuple[Job, list[Row]]]:
    if facts["missing"]:
        return ((job, list(skipped(job, facts["missing"]))) for job in chosen)
    options = {"device": given.device, "target": facts["target"], "plant": given.plant}
    return run(chosen, workers=given.jobs, seconds=given.minutes * 60, options=options)


def _watched(
    running: Iterator[tuple[Job, list[Row]]], count: int, console: Console
) -> Iterator[tuple[Job, list[Row]]]:
    """The same, with a bar: how many are done, and how many failed."""
    columns = (
        *("[progress.description]{task.description}", BarColumn(), MofNCompleteColumn()),
        *(TextColumn("[red]{task.fields[failed]} failed"), TimeElapsedColumn()),
    )
    with Progress(*columns, console=console) as progress:
        task, failed = progress.add_task("device", total=count, failed=0), 0
        for job, rows in running:
            bad = [row for row in rows if row.failed]
            failed += bool(bad)
            for row in bad[:2]:
                words = f"{row.part} {row.program} {row.dtype} {row.what}: {row.status} {row.said}"
                progress.console.print(f"{words:.300}", markup=False)
            label = f"{'+'.join(job.parts)} {job.program} {job.dtype}"
            progress.update(task, advance=1, failed=failed, description=f"{label:.50}")
            yield job, rows


if __name__ == "__main__":
    raise SystemExit(main())
