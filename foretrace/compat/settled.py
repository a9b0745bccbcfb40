"""Programs whose graph goes to another tool: what they change of Python's state may not matter.

Such a graph has no guards on Python values, and none of the changes that the program makes. A
counter that nothing depends on may stay behind; one that the results depend on may not.
"""

from collections.abc import Callable
from contextlib import suppress

from foretrace.errors import Refusal
from foretrace.ir.alike import alike
from foretrace.ir.program import Recorded
from foretrace.python_state.changes import FIRST_CALL, Change


def check_settled(recorded: Recorded, again: Callable[[], Recorded]) -> None:
    """Refuse a program that computes something else once it has run.

    `again` records it again; it is asked only if the run has changed Python's state.

    Raises:
        Refusal: with the line that changes it.
    """
    bound = [change for change in recorded.requires.changed if change.repeatable]
    if bound and not _same_again(recorded, again, bound):
        names = ", ".join(dict.fromkeys(change.place.name for change in bound))
        raise Refusal(
            f"the program binds {names}, and computes something else at its next call",
            kind="side effect", at=bound[0].at,
            do=("keep it in a buffer of the module, and write to that", FIRST_CALL),
        )  # fmt: skip


def _same_again(recorded: Recorded, again: Callable[[], Recorded], bound: list[Change]) -> bool:
    for change in bound:
        change.redo()
    try:
        with suppress(Refusal):
            return alike(recorded, again())
    finally:
        for change in bound:
            change.undo()
    return False
