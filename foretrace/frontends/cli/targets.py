"""`foretrace targets`: the devices to capture for, and by what each is verified."""

import torch
from rich.text import Text

from foretrace.frontends.cli.arguments import Options
from foretrace.frontends.cli.render import Screen
from foretrace.operators.targets.profile import VERIFIED_BY, target_of


def run(options: Options, screen: Screen) -> int:
    """Print one row for each target; see docs/targets.md."""
    rows = [_row(name, by) for name, by in VERIFIED_BY.items()]
    if screen.json:
        screen.data(rows)
        return 0
    for row in rows:
        screen.line(row["target"], "bold")
        for label in ("profile", "kernels", "by"):
            screen.indented(Text(f"  {label:<8}", "cyan"), Text(row[label]), 10)
    screen.line()
    screen.line("kernels: operators that the target keeps whole and the CPU takes apart")
    return 0


def _row(name: str, by: str) -> dict[str, str]:
    target = target_of(name, torch.device("cpu"))
    kernels = ", ".join(sorted(target.own_kernels))
    return {"target": name, "profile": str(target), "kernels": kernels, "by": by}
