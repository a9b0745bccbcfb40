"""`python -m tests.databases`: the databases by every route, one table."""

import argparse
import json
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tests.databases.attempts import records, warm
from tests.databases.children import Ended, run
from tests.databases.databases import DATABASES, cases
from tests.databases.report import report
from tests.databases.routes import OURS, ROUTES, TORCHS
from tests.databases.stated import facts, state
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
    return parser.parse_args()


def main() -> int:
    """Run, show, and say by the exit code whether anything was wrong."""
    torch.set_num_threads(1)
    given, console = _arguments(), Console()
    done = list(_read(given.read or ([given.out] if given.resume else [])))
    ran = [] if given.read else _ran(given, console, {ended.name for ended in done})
    found: list[Line] = []
    with given.out.open("w") if given.out else nullcontext() as out:
        for ended in chain(done, ran):
            found += lines_of(ended)
            if out is not None:
                print(json.dumps(vars(ended)), file=out, flush=True)
    console.print(shown(found))
    if given.write:
        given.write.write_text(report(found, given.samples))
        state(facts(found), given.samples)
    return int(any(line.failed for line in found))


def _ran(given: argparse.Namespace, console: Console, done: set[str]) -> Iterator[Ended]:
    """What is asked for, without the operators that have been run already."""
    routes = [*(given.route or OURS), *(TORCHS if given.beside_torch else ())]
    most = None if given.samples == "all" else int(given.samples)
    chosen = cases(given.database or [""], given.only)
    jobs = [(f"{c.database} {c.name}", partial(records, c, routes, most)) for c in chosen]
    jobs = [job for job in jobs if job[0] not in done]
    warm(routes)
    yield from _watched(run(jobs, limit=given.limit, workers=given.jobs), len(jobs), console)


def _read(files: Iterable[Path]) -> Iterator[Ended]:
    for file in filter(Path.exists, files):
        text = file.read_text()
        whole = text[: text.rfind("\n") + 1]  # a run that was killed may stop in a line
        yield from (Ended(**json.loads(line)) for line in whole.splitlines())


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
