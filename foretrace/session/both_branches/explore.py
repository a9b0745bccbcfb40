"""All paths through a program that data-dependent branches open, each run once, in one record.

Only a run shows what Python does on a path.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from foretrace.autograd.derivatives.target_semantics import Captured
from foretrace.errors import Attempt, Refusal
from foretrace.session.both_branches.merge import merged
from foretrace.session.both_branches.raising_branch import asserted, said_by_program
from foretrace.session.run.setup import Branches
from foretrace.tracer.data_dependence.answer_path import AnswerPath


@dataclass(frozen=True, slots=True, eq=False)
class Raises:
    """What a program raises on one path."""

    refusal: Refusal


Found: TypeAlias = Captured | Raises


def explored(run: Callable[[AnswerPath | None], Captured], branches: Branches) -> Captured:
    """One record of a program.

    Args:
        run: records the program with these answers; None: with those that its example gives.
        branches: "both": each question that data answers becomes a cond.

    Raises:
        Refusal: a path is refused, there are too many, or two do not join.
    """
    if branches == "guard":
        return run(None)
    found = _from(run, ())
    if isinstance(found, Raises):
        raise found.refusal
    return found


def _from(run: Callable[[AnswerPath | None], Captured], prefix: tuple[bool, ...]) -> Found:
    """The record of all paths that begin with these answers."""
    path = AnswerPath(prefix)
    found = _tried(run, path)
    for number in reversed(range(len(prefix), len(path.answers))):
        before, answer = path.answers[:number], path.answers[number]
        other = _from(run, (*before, not answer))
        found = _both(found, other, number, answer)
    return found


def _tried(run: Callable[[AnswerPath | None], Captured], path: AnswerPath) -> Found:
    """A record; or what the program itself raises, as eager does there."""
    attempt = Attempt(Refusal)
    with attempt:
        return run(path)
    refusal = attempt.error
    if isinstance(refusal, Refusal) and path.answers and said_by_program(refusal):
        return Raises(refusal)
    raise refusal or AssertionError("a run gives a record, or is refused")


def _both(one: Found, other: Found, number: int, answer: bool) -> Found:
    """The record of two paths that part at a question; of one, where the other raises."""
    if isinstance(one, Captured) and isinstance(other, Captured):
        return Captured(merged(one.recorded, other.recorded, number, answer), one.semantics)
    if isinstance(one, Captured) and isinstance(other, Raises):
        return _holding(one, number, answer, other)
    if isinstance(one, Raises) and isinstance(other, Captured):
        return _holding(other, number, not answer, one)
    return one


def _holding(ran: Captured, number: int, answer: bool, raises: Raises) -> Captured:
    return Captured(asserted(ran.recorded, number, answer, raises.refusal), ran.semantics)
