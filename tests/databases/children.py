"""Jobs in forked children: an abort or an endless loop costs one job, and not the run."""

import faulthandler
import gc
import json
import os
import selectors
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import torch

Record = dict[str, Any]
Job = Callable[[], Iterator[Record]]

TAIL: Final = 1500  # characters of what a child that failed wrote last


@dataclass(frozen=True)
class Ended:
    """One job's records, and how its child ended: "ok", "timeout", "abort" or "broken"."""

    name: str
    end: str
    records: list[Record]
    seconds: float
    said: str = ""
    most: str = "all"
    """of how many samples, at most"""


@dataclass
class _Child:
    name: str
    pid: int
    pipe: int
    begin: float
    said: Any
    data: bytearray = field(default_factory=bytearray)


def run(jobs: Iterable[tuple[str, Job]], *, limit: float, workers: int) -> Iterator[Ended]:
    """Every job in a child of its own, `workers` at a time; each as it ends."""
    waiting, running = iter(jobs), dict[int, _Child]()
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page that it looks at
    try:
        with selectors.DefaultSelector() as selector:
            while True:
                while len(running) < workers and (job := next(waiting, None)) is not None:
                    child = _start(*job)
                    running[child.pipe] = child
                    selector.register(child.pipe, selectors.EVENT_READ)
                if not running:
                    return
                for child in _ready(selector, running, limit):
                    selector.unregister(child.pipe)
                    del running[child.pipe]
                    yield _ended(child, limit)
    finally:
        for child in running.values():
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
        gc.unfreeze()


def _ready(
    selector: selectors.BaseSelector, running: dict[int, _Child], limit: float
) -> list[_Child]:
    """The children that have closed their pipe or have had their time."""
    left = min(child.begin for child in running.values()) + limit - time.monotonic()
    done = []
    for key, _ in selector.select(max(0.0, left)):
        child = running[key.fd]
        chunk = os.read(child.pipe, 1 << 16)
        child.data += chunk
        if not chunk:
            done.append(child)
    late = time.monotonic() - limit
    return done + [c for c in running.values() if c.begin <= late and c not in done]


def _start(name: str, job: Job) -> _Child:
    read, write = os.pipe()
    said = tempfile.TemporaryFile()  # noqa: SIM115 - closed where the child ends
    sys.stdout.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: the process has threads
        pid = os.fork()
    if pid == 0:
        _child(job, write, said.fileno())
    os.close(write)
    return _Child(name, pid, read, time.monotonic(), said)


def _child(job: Job, write: int, said: int) -> None:
    """Run the job and leave the process, whatever happens."""
    code = 1
    try:
        os.dup2(said, 1)
        os.dup2(said, 2)
        torch.set_num_threads(1)  # OpenMP's own threads are not there in a forked child: it waits
        faulthandler.disable()  # pytest's writes to the terminal; the signal is told as the end
        warnings.simplefilter("ignore")  # what torch warns of is not what is asked here
        with os.fdopen(write, "w") as pipe:
            for record in job():
                pipe.write(json.dumps(record) + "\n")
                pipe.flush()
        code = 0
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        raise
    finally:
        sys.__stderr__.flush()
        os._exit(code)


def _ended(child: _Child, limit: float) -> Ended:
    seconds = time.monotonic() - child.begin
    if late := seconds >= limit:
        os.kill(child.pid, signal.SIGKILL)
    _, status = os.waitpid(child.pid, 0)
    os.close(child.pipe)
    whole = child.data[: child.data.rfind(b"\n") + 1]  # a child that was killed may stop in a line
    records = [json.loads(line) for line in whole.splitlines()]
    if late:
        end = "timeout"
    elif os.WIFSIGNALED(status):
        end = "abort"
    else:
        end = "broken" if os.WEXITSTATUS(status) else "ok"
    child.said.seek(0)
    said = child.said.read().decode(errors="replace")[-TAIL:]
    child.said.close()
    if end == "abort":
        said = f"{signal.Signals(os.WTERMSIG(status)).name}\n{said}"
    return Ended(child.name, end, records, round(seconds, 2), "" if end == "ok" else said)
