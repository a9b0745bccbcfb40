"""A child that is forked while another thread captures is as any other process."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__)
ROOT = HERE.parents[3]


def check(*what: str | int, limit: float = 240) -> None:
    """Run functions of `forking.py` in one process, each as often as it is said."""
    command = [sys.executable, "-W", "ignore", str(HERE.with_name("forking.py"))]
    done = subprocess.run(
        [*command, *map(str, what)], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, timeout=limit,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not done.returncode, done.stderr


def test_children_capture() -> None:
    """None hangs, and what another thread has changed is as it was; a DataLoader's workers, too."""
    check("captures", 10, "loads", 1)


@pytest.mark.slow
def test_many_children_capture() -> None:
    check("captures", 50, "loads", 10)


def test_what_no_fork_waits_for() -> None:
    """A compiler at work, a lock that the forking thread has, a capture that takes too long."""
    check("compiles", 1, "holds", 1, "takes_long", 1)
