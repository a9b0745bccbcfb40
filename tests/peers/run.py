"""Runs a file of torch's tests in one mode, each once.

A test that ends the process costs itself alone: the others run in another one.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CRASHES = 20
"""After so many, a file is left"""
VALUES = re.compile(r"not close|not equal|not true|mismatch")


@dataclass(frozen=True)
class Ran:
    """What became of one test."""

    test: str
    """`Class::name`"""
    outcome: str
    """pytest's: passed, failed, skipped; or crashed"""
    error: str = ""

    @property
    def fails(self) -> bool:
        """Whether it neither passes nor is skipped."""
        return self.outcome in ("failed", "crashed")

    @property
    def kind(self) -> str:
        """Passed, skipped, crashed, refused, differs (values), raises."""
        if self.outcome != "failed":
            return self.outcome
        if "Refusal" in self.error:
            return "refused"
        return "differs" if VALUES.search(self.said) else "raises"

    @property
    def said(self) -> str:
        """The line of the error."""
        lines = self.error.splitlines()
        return next((line[4:].strip() for line in lines if line.startswith("E  ")), "")


@dataclass(frozen=True)
class File:
    """One of torch's test files, and how it is run."""

    tests: Path
    """the folder with all of them"""
    name: str
    select: str = ""
    """pytest's -k"""

    @property
    def base(self) -> str:
        """The mode whose passed tests count."""
        by_torch = self.name.startswith(("export/", "functorch/"))
        return "torch" if by_torch else "plain"

    def run(self, mode: str, out: Path, only: Sequence[str] | None = None) -> list[Ran]:
        """Run its tests, or some of them. `out`: a folder for logs and records."""
        where = out / f"{mode}.{self.name.replace('/', '_')}"
        records, now = (where.with_suffix(f".py.{kind}") for kind in ("jsonl", "now"))
        records.unlink(missing_ok=True)
        for _ in range(CRASHES):
            left = self._left(only, {ran.test for ran in _read(records)})
            if left is None:
                break
            if self._once(mode, left, records, now) in (0, 1, 5) or not now.exists():
                break
            line = {"test": now.read_text(), "outcome": "crashed", "error": ""}
            with records.open("a") as file:
                file.write(json.dumps(line) + "\n")
        return list(_read(records))

    def _left(self, only: Sequence[str] | None, done: set[str]) -> list[str] | None:
        path = Path(self.name).name
        if only is None:
            chosen = ["-k", self.select] if self.select else []
            return [path, *(f"--deselect={path}::{test}" for test in sorted(done)), *chosen]
        left = [f"{path}::{test}" for test in only if test not in done]
        return left or None

    def _once(self, mode: str, what: Sequence[str], records: Path, now: Path) -> int:
        folder = self.tests / Path(self.name).parent
        listed = records.with_suffix(".args")
        listed.write_text("\n".join(what))
        path = os.pathsep.join(map(str, (ROOT, self.tests, folder)))
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        command = [
            sys.executable, "-W", "ignore", "-m", "pytest", "-q", "--timeout=60", "--tb=short",
            "-p", "tests.peers.stand_in", "-p", "no:cacheprovider", "--import-mode=importlib",
            f"--stand-in={mode}", f"--stand-in-records={records}", f"--stand-in-now={now}",
            f"@{listed}",
        ]  # fmt: skip
        with records.with_suffix(".log").open("a") as log:
            ended = subprocess.run(
                command, cwd=folder, env=env, stdout=log, stderr=subprocess.STDOUT, check=False
            )
        return ended.returncode


def _read(records: Path) -> Iterator[Ran]:
    for line in records.read_text().splitlines() if records.exists() else ():
        row = json.loads(line)
        yield Ran(row["test"].partition("::")[2], row["outcome"], row["error"])
