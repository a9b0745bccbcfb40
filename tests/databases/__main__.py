"""`python -m tests.databases`: the databases by every route, one table."""

import argparse
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.databases.attempts import records, warm
from tests.databases.children import Ended, run
from tests.databases.databases import DATABASES, cases
from tests.databases.raw_tables import raw_tables
from tests.databases.report import report
from tests.databases.routes import OURS, ROUTES, TORCHS
from tests.databases.stated import state
from tests.databases.table import Line, lines_of, shown


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.databases", description=__doc__)
    parser.add_argument(
        "--database",
        action="append",
        metavar="NAME",
        help=f"its beginning, may be repeated: {', '.join(DATABASES)}",
    )
    parser.add_argument("--only", default="", help="a regular expression on the operator's name")
    parser.add_argument("--samples", default="1", help="at most so many of each, or all")
    parser.add_argument("--route", action="append", choices=sorted(ROUTES), help="may be repeated")
    parser.add_argument("--beside-torch", action="store_true", help="torch's own routes as well")
    parser.add_argument("--jobs", type=int, default=2, help="children at a time")
    parser.add_argument("--limit", type=float, default=600, help="seconds for one operator")
    parser.add_argument("--out", type=Path, help="records, one operator a line")
    parser.add_argument("--resume", action="store_true", help="run what --out does not have yet")
    parser.add_argument("--read", type=Path, nargs="*", help="show what --out wrote; run nothing")
    parser.add_argument("--write", type=Path, help="the page that says how reliable it is")
    parser.add_argument("--tables", type=Path, help="with --write: every count behind that page")
    given = parser.parse_args()
    if (given.write is None) != (given.tables is None):
        parser.error("--write and --tables go together: the page names the file of its tables")
    return given


def main() -> int:
    """Run, show, and say by the exit code whether anything was wrong."""
    torch.set_num_threads(1)
    given, console = _arguments(), Console()
    if given.out:
        _begin(given.out, resume=given.resume)
    done = list(_read(given.read or ([given.out] if given.resume else [])))
    ran = [] if given.read else _ran(given, console, {ended.name for ended in done})
    found = [line for ended in done for line in lines_of(ended)]
    with given.out.open("a") if given.out else nullcontext() as out:
        for ended in ran:
            found += lines_of(ended)
            if out is not None:
                print(json.dumps(vars(ended)), file=out, flush=True)
    console.print(shown(found))
    if given.write:
        _write(given, found)
    return int(any(line.failed for line in found))


def _ran(given: argparse.Namespace, console: Console, done: set[str]) -> Iterator[Ended]:
    """What is asked for, without the operators that have been run already."""
    routes = [*(given.route or OURS), *(TORCHS if given.beside_torch else ())]
    most = None if given.samples == "all" else int(given.samples)
    chosen = cases(given.database or [""], given.only)
    jobs = [(f"{c.database} {c.name}", partial(records, c, routes, most)) for c in chosen]
    jobs = [job for job in jobs if job[0] not in done]
    warm(routes)
    running = run(jobs, limit=given.limit, workers=given.jobs)
    for ended in _watched(running, len(jobs), console):
        yield replace(ended, most=given.samples)


def _write(given: argparse.Namespace, found: list[Line]) -> None:
    """The page, the tables behind it, and the file that tests hold against."""
    page, tables = given.write, given.tables
    records = [file.stem for file in given.read or []]
    page.write_text(report(found, records, os.path.relpath(tables, page.parent)))
    tables.write_text(raw_tables(found, records, os.path.relpath(page, tables.parent)))
    state(found)


def _begin(file: Path, *, resume: bool) -> None:
    """Leave whole lines, or none: a run that was killed may have stopped in a line."""
    text = file.read_bytes() if resume and file.exists() else b""
    with file.open("ab") as out:
        out.truncate(text.rfind(b"\n") + 1)


def _read(files: Iterable[Path]) -> Iterator[Ended]:
    for file in filter(Path.exists, files):
        yield from (Ended(**json.loads(line)) for line in file.read_text().splitlines())


def _watched(running: Iterator[Ended], count: int, console: Console) -> Iterator[Ended]:
    """The same, with a bar: how many are done, how many failed, and how long it may take yet."""
    columns = (
        *("[progress.description]{task.description}", BarColumn(), MofNCompleteColumn()),
        *(TextColumn("[red]{task.fields[failed]} failed"), TimeRemainingColumn()),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("databases", total=count, failed=0)
        failed = 0
        for ended in running:
            bad = [line for line in lines_of(ended) if line.failed]
            failed += bool(bad)
            for line in bad[:1]:
                words = f"{line.name} by {line.route}: {line.said} {line.left or line.what}"
                progress.console.print(f"{line.database} {words:.300}", markup=False)
            progress.update(task, advance=1, failed=failed, description=ended.name[:50])
            yield ended


if __name__ == "__main__":
    raise SystemExit(main())
