"""The ops that two runs have in common from some place on, copied once.

A value that only one of the runs has, and that both need in the same place, is a pair: a result of
the two sides.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import sympy

from foretrace.ir.program.equality import ProgramsDiffer
from foretrace.ir.program.op import Op, SharedBody, Subgraph, Target, ViewStep, Write
from foretrace.ir.program.rewriter import Rewriter
from foretrace.ir.program.walk import binds
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value, values_in
from foretrace.session.both_branches.op_equality import TwoRuns, described
from foretrace.tracer.recorder.function_target import FunctionCall

Place: TypeAlias = tuple[int, int]
"""Where an op is that both runs have: how deep in module calls, and which in its list"""


@dataclass(eq=False)
class Pair:
    """A result of the sides: the value of each, and the joined value."""

    one: Value
    other: Value
    value: Value
    place: Place | None
    """where it is needed first"""


class Joining(TwoRuns):
    """Compares two runs from some place on, and copies their ops over joined values.

    `there` and `back` have what both make from there on.

    Args:
        known: what they have in common before.
        closed: nothing is paired: both have to read the same.
        numbers: by the other run's data-dependent numbers after the join point, the first run's.
    """

    def __init__(
        self,
        known: TwoRuns,
        *,
        closed: bool = False,
        numbers: dict[sympy.Symbol, sympy.Symbol] | None = None,
    ) -> None:
        super().__init__()
        self.known, self.closed = known.copy(), closed
        self.numbers = {} if numbers is None else numbers
        self.now: dict[Value, Value] = {}
        """by the values that the first run computes from there on, the joined ones"""
        self.pairs: dict[tuple[Value, Value], Pair] = {}
        self.ops_of: dict[Op, Op] = {}
        """each op, as either run had it, and its copy"""
        self.programs: dict[Subgraph, Subgraph] = {}
        """each program that an op of the first run holds, and its copy"""
        self.place: Place | None = None
        self._placed: dict[Value, Place | None] = {}
        self.read: list[Value] = []
        """the joined values of those that were compared, in order"""

    def walk(self, ones: Sequence[Op], others: Sequence[Op], level: int) -> list[Op]:
        """The ops of two lists at one depth; each is a place.

        Raises:
            ProgramsDiffer: at the place where they are not one.
        """
        for index, (one, other) in enumerate(zip(ones, others, strict=True)):
            self.place = level, index
            self.op(one, other)
        self.place = None
        return [self.ops_of[one] for one in ones]

    def differ(self, what: str, one: Op | None, other: Op | None = None) -> ProgramsDiffer:
        """Create the difference at the place that is compared."""
        return ProgramsDiffer(what, place=self.place)

    # ---- values ---------------------------------------------------------------------------------

    def value(self, one: Value, other: Value) -> bool:
        """Join two values that are read."""
        self.read.append(self.joined(one, other))
        return True

    def joined(self, one: Value, other: Value) -> Value:
        """The joined value of two.

        Raises:
            ProgramsDiffer: each has another partner, or they cannot be results of the sides.
        """
        if one in self.there or other in self.back:
            if self.there.get(one) is other:
                return self.now[one]
            raise ProgramsDiffer(place=self._where(one, other))
        if self.known.value(one, other):
            return one
        if self.closed:
            raise self.differ("", None)
        pair = self.pairs.get((one, other))
        if pair is None:
            pair = self.pairs[one, other] = Pair(one, other, self._paired(one, other), self.place)
        return pair.value

    def _where(self, one: Value, other: Value) -> Place | None:
        """The place after which to begin: here, or where what only one needs is computed."""
        places = (self.place, self._placed.get(one), self._placed.get(other))
        return next((place for place in places if place is not None), None)

    def _paired(self, one: Value, other: Value) -> Value:
        if not self.type(one.type, other.type) or one.type.sparse:
            what = f"{described(one)} on the one side, {described(other)} on the other"
            raise self.differ(what, None)
        return _followed_by_either(one, other)

    def bind(self, one: Value, other: Value) -> bool:
        """Join two values that both runs compute."""
        if not super().bind(one, other):
            return False
        self.now.setdefault(one, _followed_by_either(one, other))
        self._placed[one] = self._placed[other] = self.place
        return True

    # ---- ops ------------------------------------------------------------------------------------

    def op(self, one: Op, other: Op) -> None:
        """Compare two ops, and copy them once.

        Raises:
            ProgramsDiffer: they are not the same call.
        """
        if isinstance(one.target, FunctionCall):
            raise self.differ("what a Function saved are tensors of its own run", one, other)
        outer, self.read = self.read, []
        self.call(one, other)
        model = self._model(one, other)
        self.below(one, other)
        self._meet_numbers(one, other)
        for mine, theirs, like in zip(one.outs, other.outs, model.outs, strict=True):
            if mine in self.there or theirs in self.back:
                self.joined(mine, theirs)
            elif self.bind(mine, theirs):
                self.now[mine] = Value(like.type, like.hint)
            else:
                raise self.differ("", one, other)
        if not self.tree(one.result, other.result):
            raise self.differ("", one, other)
        copied = _Joined(self, self.read).op(one)
        copied.choice, copied.outcome = model.choice, model.outcome
        if one.own is None:
            copied.below = model.definition
        self.ops_of[one] = self.ops_of[other] = copied
        self.read = outer

    def _model(self, one: Op, other: Op) -> Op:
        """The op whose operands match the joined ones: in number, and in which are followed."""
        values = self.read[: len(values_in((one.args, one.kwargs)))]
        flags = [value.type.requires_grad for value in dict.fromkeys(values)]
        for op in (one, other) if not self._renamed(other) else (one,):
            if [value.type.requires_grad for value in op.operands] == flags:
                return op
        raise self.differ("", one, other)

    # ---- arguments ------------------------------------------------------------------------------

    def copied_tree(self, one: Tree, other: Tree) -> Any:
        """The joined structure of two.

        Raises:
            ProgramsDiffer: they are not one.
        """
        self.read = []
        if not self.tree(one, other):
            raise self.differ("", None)
        return _Joined(self, self.read).tree(one)

    def copied_step(self, one: ViewStep, other: ViewStep) -> ViewStep:
        """The joined view of two.

        Raises:
            ProgramsDiffer: they are not one.
        """
        self.read = []
        if not self.step(one, other):
            raise self.differ("", None)
        return _Joined(self, self.read).step(one)

    def subgraph(self, one: Subgraph, other: Subgraph) -> bool:
        """Whether two programs are equal; they are closed, so values around them play no part."""
        inside = Joining(TwoRuns(), closed=True, numbers=self.numbers)
        inside.place = self.place
        if not inside.program(one, other):
            return False
        self.ops_of |= inside.ops_of
        params = tuple(inside.now.get(param, param) for param in one.params)
        result = _Joined(inside, inside.read).tree(one.result)
        ops = tuple(inside.ops_of[op] for op in one.ops)
        self.programs[one] = Subgraph(one.name, params, ops, result)
        return True

    # ---- numbers that data decides --------------------------------------------------------------

    def _meet_numbers(self, one: Op, other: Op) -> None:
        """Unify the data-dependent numbers that an op binds in both runs."""
        mine, theirs = binds(one), binds(other)
        if not (mine or theirs):
            return
        met = [(one.result, other.result)]
        for a, b in zip(one.outs, other.outs, strict=True):
            met += zip(a.type.shape, b.type.shape, strict=False)
        self.numbers |= {
            b: a for a, b in met if isinstance(b, sympy.Symbol) and b in theirs and a in mine
        }

    def _renamed(self, op: Op) -> bool:
        """Whether an op of the other run uses numbers that have another symbol in the first."""
        values = (*op.outs, *op.operands) if self.numbers else ()
        return any(value.type.symbols & self.numbers.keys() for value in values)

    def type(self, one: TensorType, other: TensorType) -> bool:
        """Whether two types are one, in the numbers of the first run."""
        if other.symbols & self.numbers.keys():
            shape, stride = (tuple(map(self._number, n)) for n in (other.shape, other.stride))
            other = other.but(shape=shape, stride=stride)
        return super().type(one, other)

    def leaf(self, one: Any, other: Any) -> bool:
        """Whether two constants are one, in the numbers of the first run."""
        return super().leaf(one, self._number(other))

    def _number(self, size: Any) -> Any:
        return size.xreplace(self.numbers) if isinstance(size, sympy.Basic) else size


def _followed_by_either(one: Value, other: Value) -> Value:
    followed = one.type.requires_grad or other.type.requires_grad
    return Value(one.type.with_grad(followed), one.hint or other.hint)


class _Joined(Rewriter):
    """Copies ops of the first run over the joined values, in the order of their reads."""

    def __init__(self, joining: Joining, read: Iterable[Value]) -> None:
        super().__init__(joining.now)
        self.joining, self.read = joining, iter(read)

    def value(self, value: Value) -> Value:
        """The next that was read."""
        return next(self.read)

    def target(self, target: Target) -> Target:
        """What is called; a write has its views."""
        if not isinstance(target, Write):
            return target
        return replace(target, steps=tuple(map(self.step, target.steps)))

    def subgraph(self, subgraph: Subgraph) -> Subgraph:
        """Its copy."""
        return self.joining.programs[subgraph]

    def below(self, op: Op) -> list[Op] | SharedBody | None:
        """The copies of the ops that it has for itself."""
        return op.definition if op.own is None else [self.joining.ops_of[each] for each in op.own]


def tail(ones: Sequence[Op], others: Sequence[Op]) -> int:
    """How many ops at the end look like the same calls."""
    found, similar = 0, TwoRuns().similar
    for one, other in zip(reversed(ones), reversed(others), strict=False):
        if not similar(one, other):
            break
        found += 1
    return found
