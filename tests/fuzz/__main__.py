"""`python -m tests.fuzz --seeds 0:3000 --jobs 2`: programs never run before, by every route."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.table import Table

from tests.fuzz import campaign
from tests.fuzz.campaign import Outcome
from tests.fuzz.values import CLOSE


def main(arguments: list[str]) -> int:
    """Run the seeds; 1 if any of them failed."""
    given = _parsed(arguments)
    console, tally, failed = Console(), Tally(), []
    progress = Progress("seeds", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    task = progress.add_task("", total=len(given.seeds))
    out = given.out.open("w") if given.out else None
    runs = campaign.run(given.seeds, given.jobs, given.limit, kind=given.kind)
    with Live(console=console, refresh_per_second=2) as live:
        for outcome in runs:
            tally.add(outcome)
            if outcome.failed:
                failed.append(outcome)
            if out is not None:
                out.write(json.dumps(outcome.to_dict()) + "\n")
                out.flush()
            progress.advance(task)
            live.update(tally.table(progress))
    for outcome in _one_of_each(failed, given.show):
        console.rule(f"seed {outcome.seed}")
        console.print(campaign.told(outcome, given.limit), markup=False, highlight=False)
    return 1 if failed else 0


def _parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seeds", type=_seeds, default=range(100), help="FIRST:LAST, or one seed")
    parser.add_argument("--jobs", type=int, default=2, help="children at a time")
    parser.add_argument("--limit", type=float, default=60, help="seconds for a seed")
    parser.add_argument(
        "--kind", choices=campaign.KINDS, default="programs",
        help="stateful: their state changes between the calls; worlds: anything else does",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="results as JSON lines")
    parser.add_argument("--show", type=int, default=1, help="programs to minimise of each cause")
    return parser.parse_args(arguments)


def _seeds(text: str) -> range:
    first, colon, last = text.partition(":")
    return range(int(first), int(last) if colon else int(first) + 1)


def _one_of_each(failed: list[Outcome], show: int) -> Iterator[Outcome]:
    seen: Counter[tuple[str, str]] = Counter()
    for outcome in failed:
        seen[outcome.cause] += 1
        if seen[outcome.cause] <= show:
            yield outcome


class Tally:
    """What became of the seeds so far."""

    def __init__(self) -> None:
        self.seeds: Counter[str] = Counter()
        self.runs: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.causes: Counter[tuple[str, str]] = Counter()

    def add(self, outcome: Outcome) -> None:
        """Count a seed."""
        statuses = [verdict.status for verdict in outcome.verdicts]
        self.runs.update(statuses)
        self.refused.update(v.kind for v in outcome.verdicts if v.status == "refused")
        self.causes.update([outcome.cause] if outcome.failed else [])
        self.seeds[self._became(outcome)] += 1

    def _became(self, outcome: Outcome) -> str:
        """Of the program: a guard that turns a call away is no refusal of it."""
        refused = {v.kind for v in outcome.verdicts if v.status == "refused"}
        if outcome.failed:
            return CLOSE if {v.status for v in outcome.failures} == {CLOSE} else "failed"
        if refused:
            return "refused" if refused - {"guard broken"} else "guarded"
        return "nothing" if any(v.status == "nothing" for v in outcome.verdicts) else "same"

    def table(self, progress: Progress) -> Table:
        """All of it, to be looked at."""
        table = Table.grid(padding=(0, 2))
        table.add_row(progress)
        table.add_row(f"programs: {_shares(self.seeds)}")
        table.add_row(f"routes: {_shares(self.runs)}")
        table.add_row(f"refused: {_shares(self.refused, sum(self.runs.values()))}")
        for (status, kind), count in self.causes.most_common(12):
            table.add_row(f"{count:5} {status} {kind}", style="red")
        return table


def _shares(counts: Counter[str], total: int = 0) -> str:
    total = total or sum(counts.values()) or 1
    return ", ".join(f"{name} {n} ({n / total:.1%})" for name, n in counts.most_common())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
