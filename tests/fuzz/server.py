"""Work in children, one for each piece, with a time limit.

They are forked from a fresh process, which has run no backward (`warm.py`): where torch is built
for CUDA, a child of a process that has run one may not run its own.
"""

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

import torch

from tests.support import verified

Say = Callable[[str], None]
Work = Callable[[Any, Say], Any]

FRESH = multiprocessing.get_context("forkserver")
FRESH.set_forkserver_preload(
    ["networkx", "tests.fuzz.campaign", "tests.fuzz.numeric", "tests.fuzz.warm"]
)


@dataclass
class Result:
    """What a child did."""

    item: Any
    value: Any = None
    """what the work gave"""
    last: str = ""
    """what it said last"""
    ended: str = ""
    """"" if it gave its value, else "timeout", the signal that ended it, or a traceback"""


@dataclass
class Child:
    """A child at work."""

    process: Any
    pipe: Any
    result: Result
    begun: float = field(default_factory=time.monotonic)

    def heard(self) -> bool:
        """Take what the child says next; whether there may be more."""
        try:
            name, word = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            name, word = "ended", signal.Signals(-code).name if code < 0 else f"exit {code}"
        setattr(self.result, name, word)
        return name == "last"

    def stopped(self) -> Result:
        """What it did, and no more."""
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.join()
        self.pipe.close()
        return self.result


def forked(work: Work, items: Iterable[Any], jobs: int, limit: float) -> Iterator[Result]:
    """Do each piece of work in a child of its own; results come as they are ready.

    Args:
        work: a function of a module, or a `partial` of one: takes an item and a function to say
            what it is at; what it takes and gives can be pickled.
        items: what to work on.
        jobs: how many children at a time.
        limit: seconds for each.
    """
    waiting, at_work = iter(items), {}
    try:
        while True:
            while len(at_work) < jobs and (item := next(waiting, None)) is not None:
                child = _begun(work, item)
                at_work[child.pipe] = child
            if not at_work:
                return
            for pipe in wait(list(at_work), 0.2):
                if not at_work[pipe].heard():
                    yield at_work.pop(pipe).stopped()
            for child in list(at_work.values()):
                if time.monotonic() - child.begun > limit:
                    child.result.ended = "timeout"
                    yield at_work.pop(child.pipe).stopped()
    finally:
        for child in at_work.values():
            child.stopped()


def _begun(work: Work, item: Any) -> Child:
    read, write = FRESH.Pipe(duplex=False)
    given = work, item, torch.get_num_threads(), write
    process = FRESH.Process(target=_child, args=given, daemon=True)
    process.start()
    write.close()
    return Child(process, read, Result(item))


def _child(work: Work, item: Any, threads: int, pipe: Any) -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    warnings.simplefilter("ignore")
    torch.set_num_threads(threads)
    verified.everywhere()
    try:
        told = "value", work(item, lambda word: pipe.send(("last", word)))
    except BaseException:  # noqa: BLE001  told to who waits
        told = "ended", traceback.format_exc()
    pipe.send(told)
