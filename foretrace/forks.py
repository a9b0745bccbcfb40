"""What threads share, put right in a process that is forked.

A child of `os.fork` has the thread that forked alone. What another thread had locked or changed at
that moment stays so there for good: a lock is never released, Python's collector never begins
again. So a fork waits until no other thread captures (decision 065). A lock that is taken without
that is free in the child, and what is registered to be undone there is undone.
"""

import os
import threading
from collections.abc import Callable
from functools import cached_property as _cached_property
from threading import get_ident
from time import monotonic
from typing import Any, Final, TypeVar
from weakref import WeakSet

T = TypeVar("T")
LONGEST: Final = 30.0
"""Seconds that a fork waits: the capture may itself wait for what the forking thread holds"""


class Lock:
    """A reentrant lock, which is free in a forked child unless the thread that forked has it.

    Every lock of the package is one, also those that no thread takes twice.
    """

    __slots__ = ("__weakref__", "_by", "_depth", "_lock")

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._by, self._depth = 0, 0
        LOCKS.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()
        self._by = get_ident()
        self._depth += 1

    def __exit__(self, *error: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._by = 0
        self._lock.release()

    def after_in_child(self) -> None:
        """Release the locks of a thread that the child does not have."""
        if self._by != get_ident():
            self._lock, self._by, self._depth = threading.RLock(), 0, 0


class cached_property(_cached_property[T]):  # noqa: N801 - as the one that it stands for
    """Functools' own, which has a lock on Python 3.11, for all objects of a class."""

    def __init__(self, func: Callable[[Any], T]) -> None:
        super().__init__(func)
        self.lock = Lock()


class Shared:
    """Work that several threads may do at once, and that a fork by another thread waits for.

    A thread that forks in the middle of its own work waits for nobody, as others may wait for it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[int, int] = {}
        self.forking = set[int]()
        """the threads that are about to fork"""
        self.cut_off = False
        """whether this process was forked in the middle of another thread's work"""
        WORK.add(self)

    def begin(self) -> None:
        """The first thread begins."""

    def end(self) -> None:
        """The last thread has ended, or the child does not have it."""

    def __enter__(self) -> None:
        here, inside = get_ident(), self._inside
        with self._changed:
            while self.forking and here not in inside:
                self._changed.wait()
            if not inside:
                self.begin()
            inside[here] = inside.get(here, 0) + 1

    def __exit__(self, *error: object) -> None:
        here, inside = get_ident(), self._inside
        with self._changed:
            inside[here] -= 1
            if not inside[here]:
                del inside[here]
            if not inside:
                self.end()
            if self.forking:
                self._changed.notify_all()

    def before(self) -> None:
        """Wait until other threads have ended, at most LONGEST; none begins until the fork."""
        until = monotonic() + LONGEST
        with self._changed:
            self.forking.add(get_ident())
            while self._inside and get_ident() not in self._inside:
                left = until - monotonic()
                if left <= 0 or not self._changed.wait(left):
                    break

    def after_in_parent(self) -> None:
        """Let others begin."""
        with self._changed:
            self.forking.discard(get_ident())
            self._changed.notify_all()

    def after_in_child(self) -> None:
        """Forget the threads that the child does not have."""
        self._changed, self.forking = threading.Condition(), set()
        gone = [thread for thread in self._inside if thread != get_ident()]
        for thread in gone:
            del self._inside[thread]
        self.cut_off |= bool(gone)
        if gone and not self._inside:
            self.end()


LOCKS: Final[WeakSet[Lock]] = WeakSet()
WORK: Final[WeakSet[Shared]] = WeakSet()
UNDOING: Final[dict[object, tuple[int, Callable[[], object]]]] = {}
"""What has changed for all threads, by the thread that changed it, and how it is undone"""


def noted(undo: Callable[[], object]) -> object:
    """This thread has changed something for all threads: a child without it calls `undo`.

    Gives what `forgotten` takes, once the thread has put it back itself.
    """
    key = object()
    UNDOING[key] = get_ident(), undo
    return key


def forgotten(key: object) -> None:
    """Forget what to undo: the state is as it was."""
    UNDOING.pop(key, None)


class undone:  # noqa: N801 - used as a context manager
    """Call `undo` at the end, or in a child that is forked by another thread before."""

    __slots__ = ("_key", "_undo")

    def __init__(self, undo: Callable[[], object]) -> None:
        self._undo = undo

    def __enter__(self) -> None:
        self._key = noted(self._undo)

    def __exit__(self, *error: object) -> None:
        forgotten(self._key)
        self._undo()


def _before() -> None:
    waiting = tuple(WORK)
    while waiting:
        for work in waiting:
            work.before()
        # what others have imported meanwhile has some of its own
        waiting = tuple(work for work in tuple(WORK) if get_ident() not in work.forking)


def _after_in_parent() -> None:
    for work in tuple(WORK):
        work.after_in_parent()


def _after_in_child() -> None:
    for lock in tuple(LOCKS):
        lock.after_in_child()
    for work in tuple(WORK):
        work.after_in_child()
    for key, (thread, undo) in reversed(tuple(UNDOING.items())):  # as contexts end: the last first
        if thread != get_ident():
            forgotten(key)
            undo()


if hasattr(os, "register_at_fork"):  # not where there is no fork
    os.register_at_fork(
        before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child
    )
