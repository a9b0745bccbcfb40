"""The two sides of a question as programs, and the `torch.cond` that holds them.

A side is closed as a branch of `torch.cond` is, and its results are tensors of its own: a value
from outside, or a view of another result, is cloned. Where that is observable, it is refused.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import sympy
import torch

from foretrace.errors import Frame, Refusal
from foretrace.ir.program.equality import ProgramsDiffer
from foretrace.ir.program.op import Op, Subgraph
from foretrace.ir.program.origin import ModuleCall, Origin
from foretrace.ir.program.walk import binds, every_op, leaves_that_run, makes_leaf, read_outside
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.value import Value, values_in
from foretrace.operators.schemas.higher_order_schema import HIGHER_ORDER_SCHEMAS, SIDES
from foretrace.session.both_branches.aliasing import Memory
from foretrace.session.both_branches.gradient_order import used_twice
from foretrace.session.both_branches.join import Pair
from foretrace.session.both_branches.op_equality import TwoRuns, described
from foretrace.tracer.concrete.rng_draws import draws
from foretrace.tracer.data_dependence.answer_path import KIND, ONE

COND: Final = torch.ops.higher_order.cond
CLONE: Final = torch.ops.aten.clone.default
DETACH: Final = torch.ops.aten.detach.default
NAMES: Final = tuple(name for _, name in HIGHER_ORDER_SCHEMAS["cond"].subgraphs)


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """What one run does between the question and the join point."""

    answer: bool
    ops: tuple[Op, ...]
    results: tuple[Value, ...] = ()

    @property
    def frame(self) -> Frame | None:
        """Its first line."""
        return next((op.origin.frame for op in every_op(self.ops) if op.origin.frame), None)

    @property
    def binds(self) -> set[sympy.Symbol]:
        """The data-dependent numbers that it binds."""
        return {symbol for op in every_op(self.ops) for symbol in binds(op)}


def both_lines(mark: Op, lines: Iterable[tuple[bool, Frame | None]]) -> list[str]:
    """The question, and where each answer leads, for a refusal."""
    lead = [
        f"  {so!s:<5} at {frame or 'no line'}"
        for so, frame in sorted(lines, key=lambda line: not line[0])
    ]
    return [f"> asked at {mark.origin.frame}", *lead]


@dataclass(frozen=True, slots=True, eq=False)
class Around:
    """What is around a question."""

    symbols: Symbols
    module: ModuleCall | None
    """the call in which it was asked"""
    written: Callable[[Value], bool]
    """whether a value's memory is an input's that gets a new content in the end"""
    check_unused: Callable[[Value], None]
    """raises ProgramsDiffer of a value that is used after the join point"""


class Sides:
    """A question with both sides, while they become an op."""

    def __init__(
        self, mark: Op, both: Sequence[Side], pairs: Sequence[Pair], known: TwoRuns
    ) -> None:
        self.mark, self.both, self.pairs, self.known = mark, both, pairs, known

    def check(self) -> None:
        """Refuse what a branch of a cond does otherwise than the program does.

        Raises:
            Refusal: at the line that does it.
        """
        for side in self.both:
            for op in every_op(side.ops):
                what = _forbidden(op)
                if what:
                    raise self.refused(f"a side of a question of data {what}", op.origin.frame)
            checks = [op for op in leaves_that_run(side.ops) if _checks(op)]
            if checks and not self.pairs:
                raise self.refused(
                    "a side of a question of data checks something, and gives nothing",
                    checks[0].origin.frame,
                )

    def refused(self, what: str, at: Frame | None, do: str = "") -> Refusal:
        """A refusal that names the lines of both sides."""
        do = do or "do it before the question, or after both sides"
        near = both_lines(self.mark, [(side.answer, side.frame) for side in self.both])
        return Refusal(what, kind=KIND, at=at or self.mark.origin.frame, near=near, do=(do, ONE))

    # ---- the op ---------------------------------------------------------------------------------

    def ops(self, around: "Around") -> list[Op]:
        """The cond, and a `detach` of each result that has no history in eager.

        torch's own derivative of a cond fails where it returns integers too: these are results of a
        cond of their own, which autograd does not follow.

        Raises:
            ProgramsDiffer: a result cannot be a tensor of its own.
        """
        found = list[Op]()
        for group in self._groups():
            followed = any(pair.value.type.requires_grad for pair in group)
            origin = replace(self.mark.origin, grad_mode=followed, module=around.module)
            found += self._cond(group, origin, around)
        return found

    def _groups(self) -> list[list[Pair]]:
        """The results; those without gradients are a group of their own, where others have some."""
        if not any(pair.value.type.requires_grad for pair in self.pairs):
            return [list(self.pairs)] if self.pairs else []
        plain = [pair for pair in self.pairs if not pair.value.type.differentiable]
        rest = [pair for pair in self.pairs if pair.value.type.differentiable]
        return [rest, plain] if plain else [rest]

    def _cond(self, pairs: Sequence[Pair], origin: Origin, around: "Around") -> list[Op]:
        sides = [
            _OwnResults(side, place, pairs, origin).own() for place, side in enumerate(self.both)
        ]
        values = self._operands(sides)
        self._check_followed(values, origin)
        numbers = _numbers(sides, values, around.symbols)
        if around.symbols.floats.among(numbers):
            raise self.refused(
                "a side computes with a float that was read of data before, and torch.cond hands on"
                " tensors and integers alone",
                None,
                "read it on each side: t.item()",
            )
        params = [_as_known(self.known, values, place) for place in range(len(sides))]
        for side, names in zip(sides, params, strict=True):
            twice = used_twice(side.ops)
            for value, name in zip(values, names, strict=True):
                if name in twice and value.type.requires_grad:
                    around.check_unused(value)
        programs = [
            Subgraph(NAMES[not side.answer], (*own, *numbers), tuple(side.ops), side.results)
            for side, own in zip(sides, params, strict=True)
        ]
        programs.sort(key=lambda program: NAMES.index(program.name))
        operands, copies = _copied(values, origin, around.written)
        outs = tuple(_cond_result(pair, origin) for pair in pairs)
        args = (self.mark.args[0], *programs, (*operands, *numbers))
        cond = Op(COND, args, {}, list(outs), outs, origin=origin, choice=SIDES)
        return [*copies, cond, *_without_history(outs, pairs, origin)]

    def _check_followed(self, values: Iterable[Value], origin: Origin) -> None:
        """Refuse what requires grad by itself."""
        if origin.grad_mode and not any(value.type.requires_grad for value in values):
            raise self.refused(
                "a side of a question of data makes what requires grad of what does not",
                None,
                "let the other side do so, too, before the question",
            )

    def _operands(self, sides: Sequence[Side]) -> list[Value]:
        """What the sides read from outside, as values of the first run."""
        found = dict[Value, None]()
        for place, side in enumerate(sides):
            inside = {out for op in every_op(side.ops) for out in op.outs}
            outside = [value for value in side.results if value not in inside]
            for value in (*read_outside(side.ops), *outside):
                found[self.known.back.get(value, value) if place else value] = None
        return list(found)


@dataclass(frozen=True, slots=True, eq=False)
class _OwnResults:
    """A side that is to return some of the results."""

    side: Side
    place: int
    """which of the runs it is of"""
    pairs: Sequence[Pair]
    origin: Origin

    def own(self) -> Side:
        """The side with results that are tensors of its own, each with memory of its own.

        Raises:
            ProgramsDiffer: a clone would lie otherwise.
        """
        memory, owners = Memory(self.side.ops), set[Value]()
        ops, results = list(self.side.ops), list[Value]()
        for pair in self.pairs:
            value = pair.other if self.place else pair.one
            owner = memory.owner(value)
            if memory.makes(owner) and owner not in owners:
                owners.add(owner)
                results.append(value)
                continue
            ops.append(self._clone(pair, value))
            results.append(ops[-1].outs[0])
        return replace(self.side, ops=tuple(ops), results=tuple(results))

    def _clone(self, pair: Pair, value: Value) -> Op:
        if not value.type.dense or value.type.offset != 0 or value.type.lazy:
            raise ProgramsDiffer(
                f"{described(value)} is a view of what is outside", place=pair.place
            )
        return _clone(value, self.origin)


def _cond_result(pair: Pair, origin: Origin) -> Value:
    """A result of the cond: autograd has one node for all of them."""
    type = pair.value.type
    follows = origin.grad_mode and type.differentiable and not type.requires_grad
    return Value(type.with_grad(True)) if follows else pair.value


def _numbers(
    sides: Sequence[Side], values: Sequence[Value], symbols: Symbols
) -> list[sympy.Symbol]:
    """The symbols that the sides use and that are no size of their operands."""
    leaves = (leaf for side in sides for leaf in leaves_that_run(side.ops))
    named = {s for leaf in leaves for s in free_symbols((leaf.args, leaf.kwargs))}
    bound = {symbol for side in sides for symbol in side.binds}
    for guard in symbols.assertions() if bound else ():
        named |= guard.symbols if guard.symbols & bound else set()
    used = {s for symbol in named for s in symbols.simplify(symbol).free_symbols}
    there = {symbols.simplify(size) for value in values for size in value.type.shape}
    return sorted(used - there - bound, key=str)


def _copied(
    values: Sequence[Value], origin: Origin, written: Callable[[Value], bool]
) -> tuple[list[Value], list[Op]]:
    """The operands, each in memory of its own, and what clones them.

    autograd goes from the last clone to the first.
    """
    operands, copies = list(values), list[Op]()
    for place, value in reversed(list(enumerate(values))):
        if value in values[:place] or written(value):
            copies.append(_clone(value, origin))
            (operands[place],) = copies[-1].outs
    return operands, copies


def _clone(value: Value, origin: Origin) -> Op:
    type = value.type.without_gaps().but(offset=0)
    new = Value(type.with_grad(value.type.requires_grad and origin.grad_mode))
    return Op(CLONE, (value,), {}, new, (new,), origin=origin)


def _as_known(known: TwoRuns, values: Iterable[Value], place: int) -> list[Value]:
    """Values as one of the runs has them."""
    return [known.there.get(value, value) if place else value for value in values]


def _without_history(outs: Iterable[Value], pairs: Iterable[Pair], origin: Origin) -> Iterator[Op]:
    for out, pair in zip(outs, pairs, strict=True):
        if out is not pair.value:
            yield Op(DETACH, (out,), {}, pair.value, (pair.value,), origin=origin)


def _forbidden(op: Op) -> str:
    """What an op does that a branch of a cond must not do; empty if nothing."""
    if draws(op):
        return "draws random numbers, which the backward of a cond would draw again"
    return "makes a leaf of autograd" if makes_leaf(op) else ""


def _checks(op: Op) -> bool:
    return not values_in(op.outs) and not isinstance(op.target, ModuleCall)
