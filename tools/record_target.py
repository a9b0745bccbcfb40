"""`python -m tools.record_target`: what eager does on the device at hand, for tests without it.

In a few minutes: the operators that eager calls for every sample of torch's OpInfo, with the
strides of what it gives; the attention kernel it takes over a grid of calls; the kernels that the
build has; the device's capability and cuDNN. tests/gpu/recorded.py says what the file holds.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import track

from tests.gpu.__main__ import probed
from tests.gpu.children import ROOT, environment, run
from tests.gpu.jobs import ALL, CALLS, Job
from tests.gpu.probe import RANGE
from tests.gpu.recorded import FOLDER, KERNELS, Recorded
from tests.gpu.rows import Row

CHUNK: Final = 16  # operators in one process
HARMLESS: Final = ("skipped", "ModuleNotFoundError")
"""Reasons that are the machine's: the time was over, or a package is not there."""
ATTENTION: Final = "record_attention"
SLACK: Final = 60  # seconds a process may take beside its operators
NUMBERS: Final = """\
import json, re, sys
from tests.gpu.recording import indices
print(json.dumps(indices(re.compile(sys.argv[1]).search)))
"""


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.record_target", description=__doc__)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--samples", default="all", help="at most so many of each operator and dtype"
    )
    parser.add_argument("--only", default="", help="a regular expression on an operator's name")
    parser.add_argument("--limit", type=float, default=10, help="seconds for one operator")
    parser.add_argument("--minutes", type=float, default=8, help="the rest is left out by name")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--out", type=Path, default=FOLDER, help="the folder for the file")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Record and write; 1 where something was lost by other than time or a missing package."""
    given, console = _arguments(argv), Console()
    facts = probed(given.device)
    reason = facts.pop("missing")
    if reason and not reason.startswith(RANGE):  # of torch, which a record does not ask of
        console.print(f"skipped: {reason}", markup=False)
        return 0
    made = Recorded({**facts, "samples": given.samples, "only": given.only})
    for row in _rows(given, made, console):
        _add(made, row)
    path = made.write(given.out)
    size = path.stat().st_size
    console.print(f"{path}: {len(made.ops)} operators, {size:,} bytes", markup=False)
    for name, why in made.lost.items():
        console.print(f"left out: {name}: {why:.300}", markup=False)
    return int(any(not why.startswith(HARMLESS) for why in made.lost.values()))


def _rows(given: argparse.Namespace, made: Recorded, console: Console) -> Iterator[Row]:
    """Attention and the operators, in chunks; those of a chunk that ended badly, one by one."""
    deadline = time.monotonic() + 60 * given.minutes
    numbers = _numbers(given.only, made)
    first = [Job((ATTENTION,), part, ALL, 300) for part in (KERNELS, *CALLS)]
    first += [_job(numbers[i::len(numbers) // CHUNK + 1], given.limit)
              for i in range(len(numbers) // CHUNK + 1) if numbers]  # fmt: skip
    done, again = 0, list[Job]()
    for job, rows in track(_run(first, given, deadline), "recording", len(first), console=console):
        yield from (row for row in rows if row.status == "measured")
        bad = [row for row in rows if row.status != "measured"]
        if bad and job.parts == (ATTENTION,):
            made.lost[f"attention, {job.program}"] = f"{bad[0].status}: {bad[0].said}"
        elif bad:
            done = sum(row.status == "measured" for row in rows)
            again += [_job([int(n)], given.limit) for n in job.program.split(",")[done:]]
    for job, rows in _run(again, given, deadline):
        yield from (row if row.status == "measured" else _lost(row, job) for row in rows)


def _numbers(only: str, made: Recorded) -> list[int]:
    """The operators' numbers in op_db, asked of a process of its own; none where it cannot tell."""
    done = subprocess.run(
        [sys.executable, "-c", NUMBERS, only], cwd=ROOT, env=environment(""), check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        made.lost["every operator"] = (done.stderr.strip().splitlines() or ["no word"])[-1]
        return []
    numbers: list[int] = json.loads(done.stdout.splitlines()[-1])
    return numbers


def _job(numbers: list[int], limit: float) -> Job:
    return Job(("recording",), ",".join(map(str, numbers)), ALL, SLACK + limit * len(numbers))


def _run(
    jobs: Iterable[Job], given: argparse.Namespace, deadline: float
) -> Iterator[tuple[Job, list[Row]]]:
    most = None if given.samples == "all" else int(given.samples)
    options = {"device": given.device, "target": given.device,
               "options": {"samples": most, "limit": given.limit}}  # fmt: skip
    return run(jobs, workers=given.jobs, seconds=deadline - time.monotonic(), options=options)


def _lost(row: Row, job: Job) -> Row:
    return Row(row.part, row.program, row.dtype, f"operator {job.program}", row.status, row.said)


def _add(made: Recorded, row: Row) -> None:
    """A row's data in its place."""
    detail: Any = row.detail
    if row.status != "measured":
        made.lost[row.what] = f"{row.status}: {detail}"
    elif row.part == "recording":
        made.ops[row.what] = {dtype: [tuple(s) for s in found] for dtype, found in detail.items()}
    elif row.what == KERNELS:
        made.kernels = detail
    else:
        made.attention[row.what] = detail


if __name__ == "__main__":
    raise SystemExit(main())
