"""Merges two records of one program that answer a question differently."""

from dataclasses import dataclass, replace
from itertools import count

from foretrace.errors import Frame, Refusal, line_of
from foretrace.ir.program.effects import merged_effects
from foretrace.ir.program.equality import ProgramsDiffer
from foretrace.ir.program.interface import Input, Role
from foretrace.ir.program.recording import Recording
from foretrace.ir.values.value import Value, values_in
from foretrace.session.both_branches.aliasing import Memory
from foretrace.session.both_branches.cond import Around, Side, Sides, both_lines
from foretrace.session.both_branches.gradient_order import (
    USED_TWICE,
    check_order,
    check_unused,
    uses_after,
)
from foretrace.session.both_branches.join_point import (
    Levels,
    Met,
    in_common,
    levels_of,
    mark_of,
    meet,
)
from foretrace.session.both_branches.merge_outputs import Leavings
from foretrace.session.both_branches.merge_requirements import (
    assume,
    check_python,
    required_of_both,
)
from foretrace.session.both_branches.op_equality import TwoRuns, key_of
from foretrace.tracer.data_dependence.answer_path import KIND, ONE

LET_BOTH = "let both sides give tensors of their own, of equal dtypes, sizes and strides"
RETURN_CLONE = "return a clone of what a side uses more than once"
OUTSIDE_SIDES = "do it before the question, or after both sides"


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """What a program does where it gets an answer; the questions after it are conds."""

    recorded: Recording
    answer: bool
    levels: Levels


def merged(one: Recording, other: Recording, number: int, answer: bool) -> Recording:
    """One record of two, of which the first has answered a question so, and the second not so.

    Raises:
        Refusal: the sides do not meet, or do what a cond cannot do.
    """
    said = ((one, answer), (other, not answer))
    return _Merging(*(Run(each, so, levels_of(each.ops, number)) for each, so in said)).merged()


class _Merging:
    """Two runs while they are merged."""

    def __init__(self, one: Run, other: Run) -> None:
        self.one, self.other = one, other
        self.mark = mark_of(one.levels)

    def merged(self) -> Recording:
        """The record of both."""
        one, other, known = self.one.recorded, self.other.recorded, self._inputs()
        try:
            in_common(self.one.levels, self.other.levels, known)
        except ProgramsDiffer as differ:
            what = f"before a question of data the program does something else each time {differ}"
            raise self._refused(what, None, "let it do the same at each call") from None
        try:
            check_python(one, other, self._all_inputs(known)[1])
        except ProgramsDiffer as differ:
            raise self._refused(differ.what, line_of(differ.at), OUTSIDE_SIDES) from None
        try:
            return meet(self.one.levels, self.other.levels, known, self._one)
        except ProgramsDiffer as differ:
            what = f"the sides of a question of data do not give the same: {differ.what}"
            do = RETURN_CLONE if differ.what == USED_TWICE else LET_BOTH
            raise self._refused(what, None, do) from None

    def _one(self, met: Met) -> Recording:
        """The record of both, if they meet there."""
        one, other, joining = self.one.recorded, self.other.recorded, met.joining
        if one.hooks or other.hooks:
            raise ProgramsDiffer("a hook on a gradient is of one run alone")
        inputs, places = self._all_inputs(joining.known)
        leavings = Leavings(one, other, joining, inputs, places)
        outputs, mutations = leavings.outputs(), leavings.mutations()
        overwritten = leavings.overwritten()
        ends = values_in([*(o.value for o in outputs), *(m.value for m in mutations)])
        counts = uses_after([op for each in met.joined for op in each], ends)
        check_order(joining.pairs.values(), joining.known, counts)
        sides = self._sides(met)
        sides.check()
        assume(one, other, joining.numbers)
        written = {inputs[m.index].value for m in mutations if not m.rebound}
        ops = met.rebuilt(self.one.levels, sides.ops(self._around(met, written, ends)))
        leavings.check_memory(ops, [*outputs, *mutations])
        return replace(
            one, ops=ops, inputs=inputs, outputs=outputs, mutations=mutations,
            overwritten=overwritten, requires=required_of_both(one, other, places),
            effects=merged_effects(one.effects, other.effects, places),
        )  # fmt: skip

    def _around(self, met: Met, written: set[Value], ends: list[Value]) -> Around:
        memory = Memory(op for level in self.one.levels for op in level.before)
        module = met.module(self.one.levels)
        return Around(
            self.one.recorded.symbols,
            module,
            lambda value: memory.owner(value) in written,
            lambda value: check_unused(met, value, ends),
        )

    def _sides(self, met: Met) -> Sides:
        pairs = list(met.joining.pairs.values())
        both = [Side(run.answer, tuple(met.side(run.levels))) for run in (self.one, self.other)]
        return Sides(self.mark, both, pairs, met.joining.known)

    def _refused(self, what: str, at: Frame | None, do: str) -> Refusal:
        lines = [(run.answer, _next_line(run.levels)) for run in (self.one, self.other)]
        near = both_lines(self.mark, lines)
        return Refusal(what, kind=KIND, at=at or self.mark.origin.frame, near=near, do=(do, ONE))

    # ---- inputs ---------------------------------------------------------------------------------

    def _inputs(self) -> TwoRuns:
        """The inputs that both runs have, and the constants that may turn out to be one."""
        known, ones, others = TwoRuns(), self.one.recorded.inputs, self.other.recorded.inputs
        keys = {key_of(item): item for item in ones}
        for item in others:
            key = key_of(item)
            if key is not None:
                known.unify(keys[key].value if key in keys else item.value, item.value)
        for item in ones:
            if item.value not in known.there and item.role.kind != "constant":
                known.unify(item.value, item.value)
        constants = (item for item in (*ones, *others) if item.role.kind == "constant")
        known.constants.update((item.value, item) for item in constants)
        return known

    def _all_inputs(self, known: TwoRuns) -> tuple[list[Input], dict[int, int]]:
        """The inputs of both, and where each of the other run is among them."""
        inputs, places = list(self.one.recorded.inputs), dict[int, int]()
        index = {item.value: place for place, item in enumerate(inputs)}
        for place, item in enumerate(self.other.recorded.inputs):
            value = known.back.get(item.value, item.value)
            if value not in index:
                index[value] = len(inputs)
                inputs.append(self._added(item, inputs, known))
            places[place] = index[value]
        return inputs, places

    def _added(self, item: Input, inputs: list[Input], known: TwoRuns) -> Input:
        """An input of the other run alone, under a name of its own."""
        taken = {each.role.name for each in inputs}
        names = (f"{item.role.name}_{number}" for number in count(1))
        name = item.role.name
        while name in taken:
            name = next(names)
        of = item.gradient_of
        if of is not None:
            owner = known.back.get(of.value, of.value)
            of = next(each for each in inputs if each.value is owner)
        return replace(item, role=Role(item.role.kind, name), gradient_of=of)


def _next_line(levels: Levels) -> Frame | None:
    """The first line after a question."""
    return next((op.origin.frame for level in reversed(levels) for op in level.rest), None)
