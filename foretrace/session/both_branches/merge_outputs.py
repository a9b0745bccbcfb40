"""Outputs, mutations and overwritten values of two runs, merged."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import Any

from torch import nn

from foretrace.ir.program.equality import ProgramsDiffer
from foretrace.ir.program.interface import Input, Mutation, Output
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Overwritten, Recording
from foretrace.ir.values.value import Value
from foretrace.session.both_branches.aliasing import Memory
from foretrace.session.both_branches.join import Joining
from foretrace.session.both_branches.op_equality import described


class Leavings:
    """The ends of two runs, while they are joined.

    Args:
        one: the run whose names are kept.
        other: the other.
        joining: what both have done.
        inputs: those of both; the first are those of the first run.
        places: where each input of the other run is among them.
    """

    def __init__(
        self,
        one: Recording,
        other: Recording,
        joining: Joining,
        inputs: list[Input],
        places: dict[int, int],
    ) -> None:
        self.one, self.other, self.joining = one, other, joining
        self.inputs, self.places = inputs, places
        self._theirs = {there: here for here, there in places.items()}

    # ---- outputs --------------------------------------------------------------------------------

    def outputs(self) -> list[Output]:
        """What the program returns.

        Raises:
            ProgramsDiffer: one run returns what the other does not.
        """
        ones, others = self.one.outputs, self.other.outputs
        if self.one.out_structure != self.other.out_structure or len(ones) != len(others):
            raise ProgramsDiffer("what the program returns is nested otherwise on each")
        return [self._output(a, b) for a, b in zip(ones, others, strict=True)]

    def _output(self, one: Output, other: Output) -> Output:
        name = f"the output {one.role.name}".rstrip()
        handed = [(o.same_as, o.view_of) for o in (one, self._here(other))]
        if handed[0] != handed[1]:
            raise ProgramsDiffer(f"{name} is an input, or a view of one, on one of them alone")
        facts = [(o.view_type, o.separate, o.through is None, o.step is None) for o in (one, other)]
        value = self._value(name, one.value, other.value)
        if facts[0] != facts[1]:
            raise ProgramsDiffer(f"{name} is a view of a written input in two ways")
        through = one.through and other.through and self._output(one.through, other.through)
        step = one.step and other.step and self.joining.copied_step(one.step, other.step)
        return replace(one, value=value, through=through, step=step)

    def _here(self, output: Output) -> Output:
        """An output of the other run, with places among the inputs of both."""
        place: Any = self.places.get
        return replace(output, same_as=place(output.same_as), view_of=place(output.view_of))

    def _value(self, name: str, one: Any, other: Any) -> Any:
        try:
            return self.joining.copied_tree(one, other)
        except ProgramsDiffer as differ:
            what = f"{name} is {described(one)} on the one, {described(other)} on the other"
            raise ProgramsDiffer(what, place=differ.place) from None

    def check_memory(self, ops: list[Op], ends: list[Output | Mutation]) -> None:
        """Refuse what would share other memory in eager.

        Raises:
            ProgramsDiffer: of an output, or a buffer that was rebound.
        """
        here = {item.value: index for index, item in enumerate(self.inputs)}
        found = Memory(ops).shared(ends, here)
        for run, place in ((self.one, {}), (self.other, self.places)):
            inputs = {item.value: place.get(i, i) for i, item in enumerate(run.inputs)}
            eager = Memory(run.ops).shared([*run.outputs, *self._ordered(run, place)], inputs)
            for end, one, other in zip(ends, found, eager, strict=True):
                if one != other:
                    raise ProgramsDiffer(
                        f"{self._name(end)} shares memory with what is outside of it"
                    )

    def _ordered(self, run: Recording, place: dict[int, int]) -> list[Mutation]:
        """The mutations of a run in the order of the inputs of both; written to in none: itself."""
        own = {_what(m): m for m in _placed(run, place)}
        every = {*map(_what, self.one.mutations), *map(_what, _placed(self.other, self.places))}
        ordered = sorted(every, key=itemgetter(0))
        return [own.get(what) or Mutation(what[0], self.inputs[what[0]].value) for what in ordered]

    def _name(self, end: Output | Mutation) -> str:
        role = end.role if isinstance(end, Output) else self.inputs[end.index].role
        return f"the {role}".rstrip()

    # ---- new contents ---------------------------------------------------------------------------

    def mutations(self) -> list[Mutation]:
        """The new contents of inputs.

        Raises:
            ProgramsDiffer: a write of one run alone cannot be a write of both.
        """
        ones = {_what(m): m for m in self.one.mutations}
        others = {_what(m): m for m in _placed(self.other, self.places)}
        every = sorted(ones | others, key=itemgetter(0))
        return [self._mutation(what[0], ones.get(what), others.get(what)) for what in every]

    def _mutation(self, index: int, one: Mutation | None, other: Mutation | None) -> Mutation:
        name = str(self.inputs[index].role)
        some = one or other
        ends = [m for m in (one, other) if m is not None]
        facts = {(m.hidden, m.rebound, m.kept, m.unwritten, m.owner, m.same_as) for m in ends}
        longest = max(ends, key=lambda m: len(m.counts))
        if some is None or len(facts) > 1:
            raise ProgramsDiffer(f"the {name} is written to in two ways")
        old = self.inputs[index].value
        theirs = self.joining.known.there.get(old, old)
        value = self._value(
            f"the new value of {name}", one.value if one else old, other.value if other else theirs
        )
        of_sides = any(pair.value is value for pair in self.joining.pairs.values())
        if of_sides and (some.rebound and not (one and other)):
            raise ProgramsDiffer(f"the {name} is bound to another tensor on one of them alone")
        if of_sides and value.type.requires_grad:
            raise ProgramsDiffer(f"the {name}, which requires grad, is written to")
        return replace(longest, value=value)

    # ---- written over ---------------------------------------------------------------------------

    def overwritten(self) -> dict[Value, Overwritten]:
        """What became of values that were written over; those of a side go by its own names."""
        ones, others = self.one.overwritten, self.other.overwritten
        found = {
            now: self._over((one, ones.get(one)), (other, others.get(other)))
            for one, other, now in self._shared()
            if one in ones or other in others
        }
        for value, over in (*ones.items(), *others.items()):
            seen = over.now not in self.joining.back and over.now not in self.joining.there
            found.setdefault(value, over if seen else replace(over, now=None))
        return found

    def _shared(self) -> list[tuple[Value, Value, Value]]:
        """The values that both runs know, as each has them and as they are now."""
        joining = self.joining
        known = [(one, other, one) for one, other in joining.known.there.items()]
        joined = [(one, other, joining.now[one]) for one, other in joining.there.items()]
        pairs = [(pair.one, pair.other, pair.value) for pair in joining.pairs.values()]
        return [*known, *joined, *pairs]

    def _over(
        self, mine: tuple[Value, Overwritten | None], theirs: tuple[Value, Overwritten | None]
    ) -> Overwritten:
        """What became of a value of both: a write that autograd sees in one run is seen in both."""
        both = [over for _, over in (mine, theirs) if over is not None]
        some, now = both[0], None
        if all(over.now is not None for over in both):
            last = [over.now if over and over.now else value for value, over in (mine, theirs)]
            now = self.joining.joined(*last)
        form, before = (self._op(each) for each in (some.form, some.before))
        return replace(some, now=now, form=form, before=before)

    def _op(self, op: Op | None) -> Op | None:
        return None if op is None else self.joining.ops_of.get(op, op)


def _placed(run: Recording, place: Mapping[int, int]) -> Iterator[Mutation]:
    """The mutations of a run, with places among the inputs of both."""
    at: Any = place.get
    for each in run.mutations:
        index, same_as = (at(place, place) for place in (each.index, each.same_as))
        counted = each.counted and tuple(at(place, place) for place in each.counted)
        yield replace(each, index=index, same_as=same_as, counted=counted)


def _what(mutation: Mutation) -> tuple[int, tuple[nn.Module, str] | None]:
    """What a mutation is of: an input, or where a buffer is bound."""
    return mutation.index, mutation.owner
