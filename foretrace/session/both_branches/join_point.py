"""The join point of two runs that differ from a question on: the earliest place of equal ops.

The rest of both is compared op by op, from the innermost module call that asked outwards. Where
they differ, all up to there belongs to the sides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from foretrace.ir.program.equality import ProgramsDiffer
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import ModuleCall
from foretrace.session.both_branches.join import Joining, tail
from foretrace.session.both_branches.op_equality import TwoRuns
from foretrace.tracer.data_dependence.answer_path import BranchMarker


@dataclass(frozen=True, slots=True)
class Level:
    """A list of ops in which a question was asked, directly or in a module call."""

    ops: Sequence[Op]
    index: int
    """of the mark, or of that call"""

    @property
    def before(self) -> Sequence[Op]:
        """The ops before it."""
        return self.ops[: self.index]

    @property
    def rest(self) -> Sequence[Op]:
        """The ops after it."""
        return self.ops[self.index + 1 :]


T = TypeVar("T")
Levels: TypeAlias = list[Level]
"""From the outermost list to that with the mark"""


def levels_of(ops: Sequence[Op], number: int) -> Levels:
    """Where a question was asked."""
    for index, op in enumerate(ops):
        here = isinstance(op.target, BranchMarker) and op.target.number == number
        if here:
            return [Level(ops, index)]
        inner = levels_of(op.own or (), number) if isinstance(op.target, ModuleCall) else []
        if inner:
            return [Level(ops, index), *inner]
    return []


def mark_of(levels: Levels) -> Op:
    """The mark itself."""
    return levels[-1].ops[levels[-1].index]


@dataclass(frozen=True, slots=True)
class Met:
    """Where two runs meet: in the list at `level`, `count` ops before its end."""

    level: int
    count: int
    joining: Joining
    joined: list[list[Op]]
    """what both do from there on: at that level, then at each further out"""

    def head(self, levels: Levels) -> list[Op]:
        """The ops of that list before the question; module calls that have ended are opened."""
        return [op for level in levels[self.level :] for op in level.before]

    def side(self, levels: Levels) -> list[Op]:
        """The ops from the question to the join point."""
        inner = [op for level in levels[: self.level : -1] for op in level.rest]
        rest = levels[self.level].rest
        return [*inner, *rest[: len(rest) - self.count]]

    def rebuilt(self, levels: Levels, here: list[Op]) -> list[Op]:
        """The whole tree with other ops between those before and those that are joined."""
        tree = [*self.head(levels), *here, *self.joined[0]]
        for depth, after in zip(range(self.level - 1, -1, -1), self.joined[1:], strict=True):
            level = levels[depth]
            tree = [*level.before, level.ops[level.index].but(below=tree), *after]
        return tree

    def module(self, levels: Levels) -> ModuleCall | None:
        """The call of which the list is the body."""
        if not self.level:
            return None
        around = levels[self.level - 1]
        target: ModuleCall = around.ops[around.index].target
        return target


def in_common(ones: Levels, others: Levels, known: TwoRuns) -> None:
    """Unify what both runs did before the question.

    Raises:
        ProgramsDiffer: they did not do the same.
    """
    if len(ones) != len(others):
        raise ProgramsDiffer
    for one, other in zip(ones, others, strict=True):
        known.ops(one.before, other.before)
    known.ops(*([mark_of(levels)] for levels in (ones, others)))


def meet(ones: Levels, others: Levels, known: TwoRuns, end: Callable[[Met], T]) -> T:
    """Join two runs at the earliest place from which both do the same.

    Args:
        ones: where the question is in the one run.
        others: where it is in the other.
        known: what they have in common before.
        end: makes one program of them, with what they leave.

    Raises:
        ProgramsDiffer: what they leave is not one, wherever they meet.
    """
    level = len(ones) - 1
    count = tail(ones[level].rest, others[level].rest)
    while True:
        joining = Joining(known)
        try:
            joined = _walked(joining, ones, others, level, count)
            return end(Met(level, count, joining, joined))
        except ProgramsDiffer as differ:
            if differ.place is None:
                raise
            level, count = _behind(ones, others, differ.place, (level, count))


def _walked(
    joining: Joining, ones: Levels, others: Levels, level: int, count: int
) -> list[list[Op]]:
    joined = []
    for depth in range(level, -1, -1):
        one, other = ones[depth].rest, others[depth].rest
        if depth == level:
            one, other = one[len(one) - count :], other[len(other) - count :]
        elif len(one) != len(other):
            raise ProgramsDiffer(place=(depth, -1))
        joined.append(joining.walk(one, other, depth))
    return joined


def _behind(
    ones: Levels, others: Levels, place: tuple[int, int], begun: tuple[int, int]
) -> tuple[int, int]:
    """Where to begin so that a place is in the sides."""
    depth, index = place
    whole = min(len(ones[depth].rest), len(others[depth].rest))
    return depth, (begun[1] if depth == begun[0] else whole) - index - 1
