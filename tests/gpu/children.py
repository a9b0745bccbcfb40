"""Jobs in processes of their own: an abort or an endless loop costs one job, and not the run.

Each is a new interpreter, not a fork: a process that has initialised CUDA has no working copy.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.gpu.jobs import Job
from tests.gpu.rows import Row

ROOT: Final = Path(__file__).parents[2]
TAIL: Final = 3000  # characters of what a child that failed wrote last
PAUSE: Final = 0.05  # seconds between two looks at the children
OVER: Final = "not finished when the run's time was over"


@dataclass
class Child:
    """A job that runs; it writes a row a line to a file, and all else to another."""

    job: Job
    folder: tempfile.TemporaryDirectory[str]
    process: subprocess.Popen[bytes]
    begin: float = field(default_factory=time.monotonic)

    @classmethod
    def start(cls, job: Job, options: dict[str, Any]) -> "Child":
        """Begin the job in a session of its own, so that what it starts ends with it."""
        folder = tempfile.TemporaryDirectory()
        given = json.dumps({"job": job.to_dict(), **options})
        command = [sys.executable, "-m", "tests.gpu.child", given, f"{folder.name}/rows"]
        with Path(folder.name, "said").open("wb") as said:
            process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                env=environment(folder.name), start_new_session=True,
            )  # fmt: skip
        return cls(job, folder, process)

    def kill(self) -> None:
        """End it, and what it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def rows(self, end: str) -> Iterator[Row]:
        """What it found; and a row for each part that did not end well."""
        file = Path(self.folder.name, "rows")
        text = file.read_text() if file.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # a child that was killed may stop in a line
        records = [json.loads(line) for line in whole.splitlines()]
        yield from (Row(**record["row"]) for record in records if "row" in record)
        done = {record["done"] for record in records if "done" in record}
        if end == "ok" and len(done) == len(self.job.parts):
            return
        left = [part for part in self.job.parts if part not in done]
        for place, part in enumerate(left):
            yield self._lost(part, end if place == 0 else "skipped", left[0])

    def _lost(self, part: str, end: str, first: str) -> Row:
        job = self.job
        if end == "skipped":
            said = OVER if part == first else f"the {first} part before it did not end"
            return Row(part, job.program, job.dtype, "the whole part", end, said)
        end = "abort" if end == "ok" else end  # it has left without a word
        return Row(part, job.program, job.dtype, "the whole part", end, {"said": self.said()})

    def said(self) -> str:
        """How it ended, and what it wrote last."""
        code = self.process.returncode
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        tail = Path(self.folder.name, "said").read_text(errors="replace")[-TAIL:]
        return f"{name} after {time.monotonic() - self.begin:.0f} s: {tail}"


def environment(folder: str) -> dict[str, str]:
    """This process's, with the checkout and the packages carried in it importable."""
    paths = [str(ROOT), str(ROOT / "out" / "site"), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # cuBLAS repeats its bits with it
    }


def run(
    jobs: Iterable[Job], *, workers: int, seconds: float, options: dict[str, Any]
) -> Iterator[tuple[Job, list[Row]]]:
    """Every job with its rows, as it ends; what is not done in `seconds` is skipped by name."""
    waiting, running = list(jobs), list[Child]()
    deadline = time.monotonic() + seconds
    try:
        while waiting or running:
            over = time.monotonic() >= deadline
            while waiting and not over and _room(waiting[0], running, workers):
                running.append(Child.start(waiting.pop(0), options))
            if over:
                yield from ((job, list(skipped(job, OVER))) for job in waiting)
                waiting = []
            for child, end in [(child, _end(child, over=over)) for child in running]:
                if end is not None:
                    running.remove(child)
                    child.kill()
                    yield child.job, list(child.rows(end))
                    child.folder.cleanup()
            time.sleep(PAUSE)
    finally:
        for child in running:
            child.kill()
            child.folder.cleanup()


def _room(job: Job, running: list[Child], workers: int) -> bool:
    if job.alone or any(child.job.alone for child in running):
        return not running
    return len(running) < workers


def _end(child: Child, *, over: bool) -> str | None:
    """How a child has ended, or must end now; None while it may go on."""
    code = child.process.poll()
    if code is not None:
        return "ok" if code == 0 else "abort"
    if time.monotonic() - child.begin >= child.job.limit:
        return "timeout"
    return "skipped" if over else None


def skipped(job: Job, reason: str) -> Iterator[Row]:
    """A row for each part of a job that does not run."""
    for part in job.parts:
        yield Row(part, job.program, job.dtype, "the whole part", "skipped", reason)
