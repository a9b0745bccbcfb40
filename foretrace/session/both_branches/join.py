"""What two runs do alike, in words of one program: the prefix is matched, what follows is joined.

A value that only one of the runs has, and that both need in the same place, is a pair: a result of
the two sides.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import sympy

from foretrace.ir.program.op import Op, Subgraph, Tree, Value, ViewStep, Write, values_in
from foretrace.ir.program.recording import Input
from foretrace.ir.program.walk import binds
from foretrace.session.both_branches.op_equality import (
    same_constant,
    same_leaf,
    same_numbers,
    same_op,
    same_type,
    told,
)
from foretrace.tracer.recorder.function_target import FunctionCall

Place: TypeAlias = tuple[int, int]
"""Where an op is that both runs have: how deep in module calls, and which in its list"""


class Apart(Exception):
    """The runs are not one here: at a place, or in what the program leaves (None)."""

    def __init__(self, place: Place | None, what: str = "") -> None:
        super().__init__(what)
        self.place, self.what = place, what


@dataclass(eq=False)
class Same:
    """The values that two runs have in common, by what the first calls them."""

    there: dict[Value, Value] = field(default_factory=dict)
    back: dict[Value, Value] = field(default_factory=dict)
    constants: dict[Value, Input] = field(default_factory=dict)
    """the constants of both that have not met yet"""

    def bind(self, one: Value, other: Value) -> None:
        """Let two values be one."""
        met = self.there.setdefault(one, other), self.back.setdefault(other, one)
        if met != (other, one):
            raise Apart(None)

    def same(self, one: Value, other: Value) -> bool:
        """Whether they are one; a constant is met when it is used."""
        if self.there.get(one) is other:
            return True
        if one not in self.constants or other not in self.constants:
            return False
        if one in self.there or other in self.back:
            return False
        equal = same_constant(self.constants[one].tensor, self.constants[other].tensor)
        if equal:
            self.bind(one, other)
        return equal

    def match(self, ones: Sequence[Op], others: Sequence[Op]) -> None:
        """Let what ops make be one, of two runs that have had the same answers.

        Raises:
            Apart: they have not done the same.
        """
        if len(ones) != len(others):
            raise Apart(None)
        for one, other in zip(ones, others, strict=True):
            operands = zip(one.operands, other.operands, strict=False)
            like = same_op(one, other) and same_numbers(one, other)
            if not like or not all(self.same(a, b) for a, b in operands):
                raise Apart(None, f"{one.origin.frame} and {other.origin.frame}")
            self.match(one.own or (), other.own or ())
            for mine, theirs in zip(one.outs, other.outs, strict=True):
                self.bind(mine, theirs)

    def copy(self) -> "Same":
        """The same, to be tried out."""
        return Same(dict(self.there), dict(self.back), self.constants)


@dataclass(eq=False)
class Pair:
    """A result of the sides: what each gives for it, and the value that goes on."""

    one: Value
    other: Value
    value: Value
    place: Place | None
    """where it is needed first"""


class Joining:
    """Writes down once what two runs do from some place on.

    Args:
        known: what they have in common before.
        closed: nothing is paired: both have to read the same.
    """

    def __init__(
        self,
        known: Same,
        *,
        closed: bool = False,
        numbers: dict[sympy.Symbol, sympy.Symbol] | None = None,
    ) -> None:
        self.known, self.closed = known.copy(), closed
        self.numbers = {} if numbers is None else numbers
        """of the other run's numbers that data decides after the meeting: what the first has"""
        self.made: dict[Value, tuple[Value, Value]] = {}
        """what the first run makes from there on: what the other calls it, and what it is now"""
        self.back: dict[Value, Value] = {}
        self.pairs: dict[tuple[Value, Value], Pair] = {}
        self.ops_of: dict[Op, Op] = {}
        """each op, as either run had it, and what it is now"""
        self.place: Place | None = None
        self._placed: dict[Value, Place | None] = {}

    def walk(self, ones: Sequence[Op], others: Sequence[Op], level: int) -> list[Op]:
        """The ops of two lists at one depth; each is a place.

        Raises:
            Apart: at the place where they are not one.
        """
        joined = list[Op]()
        for index, (one, other) in enumerate(zip(ones, others, strict=True)):
            self.place = level, index
            joined.append(self.op(one, other))
        self.place = None
        return joined

    # ---- values ---------------------------------------------------------------------------------

    def word(self, one: Value, other: Value) -> Value:
        """The value in the place of two."""
        if one in self.made or other in self.back:
            if one in self.made and self.made[one][0] is other:
                return self.made[one][1]
            raise Apart(self._where(one, other), "")
        if self.known.same(one, other):
            return one
        if self.closed:
            raise Apart(self.place)
        pair = self.pairs.get((one, other))
        if pair is None:
            pair = self.pairs[one, other] = Pair(one, other, self._paired(one, other), self.place)
        return pair.value

    def _where(self, one: Value, other: Value) -> Place | None:
        """The place to begin behind: here, or where what only one needs is made."""
        places = (self.place, self._placed.get(one), self._placed.get(other))
        return next((place for place in places if place is not None), None)

    def _paired(self, one: Value, other: Value) -> Value:
        if not self._same_type(one, other) or one.type.sparse:
            raise Apart(self.place, f"{told(one)} on the one side, {told(other)} on the other")
        followed = one.type.requires_grad or other.type.requires_grad
        return Value(one.type.with_grad(followed), one.hint or other.hint)

    def bind(self, one: Value, other: Value, model: Value) -> Value:
        """The value in the place of two that an op makes."""
        if one in self.made or other in self.back:
            return self.word(one, other)
        if not self._same_type(one, other):
            raise Apart(self.place)
        value = Value(model.type, model.hint)
        self.made[one], self.back[other] = (other, value), one
        self._placed[one] = self._placed[other] = self.place
        return value

    # ---- ops ------------------------------------------------------------------------------------

    def op(self, one: Op, other: Op) -> Op:
        """The op in the place of two.

        Raises:
            Apart: they are not the same call.
        """
        if not same_op(one, other) or isinstance(one.target, FunctionCall):
            raise Apart(self.place)  # what a Function saved are the tensors of its own run
        target = self._target(one.target, other.target)
        args, kwargs = self.tree(one.args, other.args), self.tree(one.kwargs, other.kwargs)
        model = self._model(one, other, values_in((args, kwargs)))
        below: Any = model.definition
        if one.own is not None and other.own is not None:
            below = self.ops(one.own, other.own)
        self._meet_numbers(one, other)
        named = zip(one.outs, other.outs, model.outs, strict=True)
        outs = tuple(self.bind(a, b, like) for a, b, like in named)
        joined = Op(
            target, args, kwargs, self.tree(one.result, other.result), outs,
            origin=one.origin, below=below, choice=model.choice, writes=one.writes,
            alike=model.alike,
        )  # fmt: skip
        self.ops_of[one] = self.ops_of[other] = joined
        return joined

    def ops(self, ones: Sequence[Op], others: Sequence[Op]) -> list[Op]:
        """The ops of two bodies."""
        if len(ones) != len(others):
            raise Apart(self.place)
        return [self.op(one, other) for one, other in zip(ones, others, strict=True)]

    def _model(self, one: Op, other: Op, values: list[Value]) -> Op:
        """The one of them whose operands are as those now: as many, and as many followed."""
        flags = [value.type.requires_grad for value in dict.fromkeys(values)]
        for op in (one, other) if not self._renamed(other) else (one,):
            if [value.type.requires_grad for value in op.operands] == flags:
                return op
        raise Apart(self.place)

    def _target(self, one: Any, other: Any) -> Any:
        if not isinstance(one, Write):
            return one
        steps = zip(one.steps, other.steps, strict=True)
        return replace(one, steps=tuple(self.step(a, b) for a, b in steps))

    def step(self, one: ViewStep, other: ViewStep) -> ViewStep:
        """The view in the place of two."""
        facts = [
            (s.func, s.position, s.grad_mode, s.followed, s.several, s.own) for s in (one, other)
        ]
        if facts[0] != facts[1]:
            raise Apart(self.place)
        return replace(
            one,
            base=self.word(one.base, other.base),
            args=self.tree(one.args, other.args),
            kwargs=self.tree(one.kwargs, other.kwargs),
        )

    # ---- arguments ------------------------------------------------------------------------------

    def tree(self, one: Tree, other: Tree) -> Any:
        """The structure in the place of two."""
        if type(one) is not type(other):
            raise Apart(self.place)
        if isinstance(one, (tuple, list)):
            if len(one) != len(other):
                raise Apart(self.place)
            items = [self.tree(a, b) for a, b in zip(one, other, strict=True)]
            return items if isinstance(one, list) else tuple(items)
        if isinstance(one, dict):
            if one.keys() != other.keys():
                raise Apart(self.place)
            return {key: self.tree(item, other[key]) for key, item in one.items()}
        return self._leaf(one, other)

    def _leaf(self, one: Any, other: Any) -> Any:
        if isinstance(one, Value):
            return self.word(one, other)
        if isinstance(one, Subgraph):
            return self._subgraph(one, other)
        if isinstance(one, slice):
            ends = zip(_ends(one), _ends(other), strict=True)
            return slice(*(self._leaf(a, b) for a, b in ends))
        if isinstance(other, sympy.Basic):
            other = other.xreplace(self.numbers)
        if not same_leaf(one, other):
            raise Apart(self.place)
        return one

    # ---- numbers that data decides --------------------------------------------------------------

    def _meet_numbers(self, one: Op, other: Op) -> None:
        """Let the numbers that an op makes in both runs be one."""
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
        """Whether an op of the other run speaks of numbers that the first calls otherwise."""
        values = (*op.outs, *op.operands) if self.numbers else ()
        return any(value.type.symbols & self.numbers.keys() for value in values)

    def _same_type(self, one: Value, other: Value) -> bool:
        type = other.type
        if type.symbols & self.numbers.keys():
            parts = {"shape": type.shape, "stride": type.stride}
            type = type.but(
                **{
                    name: tuple(self._number(size) for size in sizes)
                    for name, sizes in parts.items()
                }
            )
        return same_type(one.type, type)

    def _number(self, size: Any) -> Any:
        return size.xreplace(self.numbers) if isinstance(size, sympy.Basic) else size

    def _subgraph(self, one: Subgraph, other: Subgraph) -> Subgraph:
        """The program in the place of two: closed, so it knows nothing of what is around."""
        inside = Joining(Same(), closed=True, numbers=self.numbers)
        inside.place = self.place
        if len(one.params) != len(other.params):
            raise Apart(self.place)
        params = [self._param(inside, a, b) for a, b in zip(one.params, other.params, strict=True)]
        ops = inside.ops(one.ops, other.ops)
        result = inside.tree(one.result, other.result)
        self.ops_of |= inside.ops_of
        return Subgraph(one.name, tuple(params), tuple(ops), result)

    def _param(self, inside: "Joining", one: Any, other: Any) -> Any:
        if not isinstance(one, Value) or not isinstance(other, Value):
            return self._leaf(one, other)
        followed = one.type.requires_grad or other.type.requires_grad
        return inside.bind(one, other, Value(one.type.with_grad(followed), one.hint))


def _ends(each: slice) -> tuple[Any, Any, Any]:
    return each.start, each.stop, each.step


def tail(ones: Sequence[Op], others: Sequence[Op]) -> int:
    """How many ops at the end look like the same calls."""
    found = 0
    for one, other in zip(reversed(ones), reversed(others), strict=False):
        if not same_op(one, other):
            break
        found += 1
    return found
