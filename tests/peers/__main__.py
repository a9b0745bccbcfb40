"""`python -m tests.peers TESTS`: torch's own test files with foretrace in torch's place.

TESTS is the folder that fetch.sh made. The exit code says whether a test did what expected.toml
does not say of it.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.peers.expected import changes, read
from tests.peers.run import File, Ran

AOT = "not WithDynamo and not Cache and not OpInfo and not Module"
EXPORT = ("export", "unflatten", "passes", "swap", "lift_unlift", "tools",
          "functionalized_assertions", "sparse")  # fmt: skip
DYNAMO = (
    "functions", "modules", "misc", "repros", "higher_order_ops", "hooks", "ctx_manager",
    "model_output", "python_autograd", "subclasses", "unspec", "aot_autograd", "modes",
)  # fmt: skip
BY_COMPILERS = frozenset({"functions", "modules", "misc", "hooks", "ctx_manager"})
BOTH = "compile", "compilers"
PLAN: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("functorch/test_aotdispatch.py", BOTH, AOT),
    ("functorch/test_control_flow.py", BOTH, ""),
    *((f"export/test_{name}.py", ("compile",), "") for name in EXPORT),
    *(
        (f"dynamo/test_{name}.py", BOTH if name in BY_COMPILERS else BOTH[:1], "")
        for name in DYNAMO
    ),
)
"""Files, the modes that they are run in, and which of their tests"""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=__doc__)
    parser.add_argument("tests", type=Path, help="the folder that fetch.sh made")
    parser.add_argument("--only", default="", help="files whose name has this")
    parser.add_argument("-k", dest="select", default="", help="as pytest's")
    parser.add_argument("--mode", action="append", help="may be repeated")
    parser.add_argument("--out", type=Path, default=Path("out/peers-records"))
    return parser.parse_args()


def _ran(file: File, mode: str, good: list[str], out: Path, console: Console) -> list[Ran]:
    """Run a file in a mode, and print what fails."""
    ran = file.run(mode, out, good) if good else []
    kinds = Counter(each.kind for each in ran)
    said = f"{file.name} ({mode}): {kinds['passed']} of {len(good)} pass; {dict(kinds)}"
    console.print(said, markup=False, soft_wrap=True)
    for each in ran:
        if each.fails:
            line = f"  {each.kind:8} {each.test}: {each.said[:160]}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    return ran


def main() -> int:
    """Run them, and say what the list does not."""
    given, console, known, found = _arguments(), Console(), read(), []
    empty: list[str] = []
    out = given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    plan = [row for row in PLAN if given.only in row[0]]
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        task = progress.add_task("", total=len(plan))
        for name, modes, chosen in plan:
            progress.update(task, description=name)
            file = File((given.tests / "test").resolve(), name, given.select or chosen)
            good = [ran.test for ran in file.run(file.base, out) if ran.outcome == "passed"]
            empty += [] if good or given.select else [name]
            for mode in given.mode or modes:
                ran = _ran(file, mode, good, out, console)
                passed = [each.test for each in ran if each.outcome == "passed"]
                failed = [each.test for each in ran if each.fails]
                found += changes(name, mode, passed, failed, known)
            progress.advance(task)
    for change in found:
        console.print(str(change), style="red", markup=False, soft_wrap=True)
    for name in empty:
        console.print(f"{name}: no test ran that counts; see {out}", style="red", markup=False)
    return bool(found or empty)


if __name__ == "__main__":
    sys.exit(main())
