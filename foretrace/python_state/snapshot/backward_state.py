"""Python's state while backwards of the program's own run: as it leaves that, and left so."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from foretrace.errors import Frame, Refusal
from foretrace.ir.program.call_requirements import check_repeatable
from foretrace.ir.program.recording import Recording
from foretrace.ir.pydata.state import Change
from foretrace.python_state.snapshot.heap import HeapSnapshot


@contextmanager
def as_left(changes: Sequence[Change]) -> Iterator[None]:
    """Inside, Python's state is as the program leaves it.

    Raises:
        Refusal: no call can repeat a change.
    """
    for change in changes:
        check_repeatable(change)
    now = [change.place.refreshed for change in changes]  # the user may have set it since the run
    for change in changes:
        change.redo()
    try:
        yield
    finally:
        for place in reversed(now):
            place.restore()


class BackwardState:
    """The state of one walk back; nothing is done where no Python of the user's runs.

    Args:
        recorded: the program.
    """

    def __init__(self, recorded: Recording) -> None:
        self.recorded = recorded
        self._stack = ExitStack()
        self._roots = set[int]()
        self._before = list[HeapSnapshot]()
        self.at = recorded.requires.defined
        """the line that has called the last of them"""

    def begin(self, at: Frame | None, roots: Iterable[Any] = ()) -> None:
        """Python of the user's is about to run.

        Args:
            at: the line that has called what it is the backward of.
            roots: what it can reach the rest from.
        """
        self.at = at or self.at
        if not self._roots:
            self._roots.add(id(self))
            self._stack.enter_context(as_left(self.recorded.changes))
        new = {id(root): root for root in roots if id(root) not in self._roots}
        if new:
            self._roots |= new.keys()
            self._before.append(HeapSnapshot(new.values()))

    def undone(self) -> list[Change]:
        """Put all back; gives what that Python has changed."""
        with self._stack:
            found = [change for before in self._before for change in before.bound()]
            for before in reversed(self._before):
                before.put_back()
        return found


def check_unchanged(changes: Iterable[Change], at: Frame | None) -> None:
    """Refuse a backward that changes Python's state, which a graph would not do.

    Raises:
        Refusal: there is a change.
    """
    for change in changes:
        raise Refusal(
            f"a backward of the program's own changes {change.name}, where no graph does",
            kind="hook",
            at=at,
            do=(
                "return from the program what the backward is to keep",
                "or train by foretrace.compile, with its own backend",
            ),
        )
