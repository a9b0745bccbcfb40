"""What a call does beside returning its results: one class for each kind of effect.

Those on tensors are in `tensor_effects.py`.

A kind is whole when it says how a call does it (`run`), how generated code does it (`lines`), and
how two runs of one program merge it (`merge`). What a higher wing decides is in a table by class
there: `EFFECTS` of serialization/schema/effect_schema.py (files) and `IN_OTHER_GRAPHS` of
frontends/program/other_graphs.py (graphs that torch's own tools call).
tests/unit/ir/program/test_effects.py fails where a kind lacks a side.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, ClassVar, Final, Self, TypeVar

from foretrace.ir.program.effect import Call, Code, Effect, Phase
from foretrace.ir.program.equality import ProgramsDiffer
from foretrace.ir.program.tensor_effects import (
    ClearGrad,
    CountWrite,
    MarkOutput,
    Reshape,
    SetRequiresGrad,
)
from foretrace.ir.pydata.containers import same_keys
from foretrace.ir.pydata.location import Location
from foretrace.ir.pydata.memo import MemoCall
from foretrace.ir.pydata.paths import Path, at_path
from foretrace.ir.pydata.plain_data import plain, same
from foretrace.ir.pydata.returned import ReturnedArgument, restore_identity
from foretrace.ir.pydata.state import Change, State, put_all


@dataclass(frozen=True, slots=True)
class FindObject(Effect):
    """The program returns, or leaves, an object that was there: each call takes the present one."""

    place: Location | None
    """None: it is in the arguments"""
    path: Path = ()
    """where in what the place has, or in the arguments"""

    def of_call(self, arguments: Any) -> Any:
        """The object that a call has; MISSING if what is there is nested otherwise."""
        return at_path(arguments if self.place is None else self.place.now, self.path)

    @classmethod
    def run(cls, effects: Sequence[Self], call: Call) -> None:
        """Find them."""
        call.found = [each.of_call(call.arguments) for each in effects]

    @classmethod
    def lines(cls, effects: Sequence[Self], code: Code) -> Iterable[str]:
        """Find them in generated code."""
        code.found = code.name("found")
        places = [code.bind(each, "place") for each in effects]
        found = ", ".join(f"{place}.of_call((args, kwargs))" for place in places)
        yield f"{code.found} = [{found}]"

    @classmethod
    def merge(
        cls, ones: Sequence[Self], others: Sequence[Self], places: Mapping[int, int]
    ) -> Sequence[Self]:
        """Both runs find the same objects at the same places."""
        sides = [
            [(x.place and x.place.identity, x.path) for x in effects] for effects in (ones, others)
        ]
        if not same_keys(*sides):
            raise ProgramsDiffer(
                "one side of a question of data returns, or leaves, an object that was there"
                " before, and the other another one"
            )
        return ones


@dataclass(frozen=True, slots=True)
class ChangePlace(Effect):
    """The program binds a place of Python's state to plain data, or to an object that was there."""

    change: Change

    @classmethod
    def run(cls, effects: Sequence[Self], call: Call) -> None:
        """Bind them again."""
        for each in effects:
            each.change.redo()

    @classmethod
    def lines(cls, effects: Sequence[Self], code: Code) -> Iterable[str]:
        """Bind them in generated code."""
        for each in effects:
            yield f"{code.bind(each.change.redo, f'set_{each.change.place.name}')}()"

    @classmethod
    def merge(
        cls, ones: Sequence[Self], others: Sequence[Self], places: Mapping[int, int]
    ) -> Sequence[Self]:
        """Both runs bind the same places to the same."""
        for mine, theirs in ((ones, others), (others, ones)):
            for each in mine:
                if not any(_same_change(each.change, other.change) for other in theirs):
                    raise ProgramsDiffer(
                        f"{each.change.place.name} is bound on one side of a question of data, or"
                        " otherwise on the other",
                        each.change.at,
                    )
        return ones


def _same_change(one: Change, other: Change) -> bool:
    places = [
        (c.place.name, id(c.place.holder), repr(c.place.key), c.rebound) for c in (one, other)
    ]
    after = one.after, other.after
    equal = after[0] is after[1] or (all(map(plain, after)) and same(*after))
    return places[0] == places[1] and equal


@dataclass(frozen=True, slots=True)
class CallMemo(Effect):
    """The program calls a memoized function, which counts its calls."""

    call: MemoCall

    @classmethod
    def run(cls, effects: Sequence[Self], call: Call) -> None:
        """Call them again."""
        for each in effects:
            each.call()

    @classmethod
    def lines(cls, effects: Sequence[Self], code: Code) -> Iterable[str]:
        """Call them in generated code."""
        return (f"{code.bind(each.call, 'memo')}()" for each in effects)

    @classmethod
    def merge(
        cls, ones: Sequence[Self], others: Sequence[Self], places: Mapping[int, int]
    ) -> Sequence[Self]:
        """Both runs make the same calls."""
        sides = [[(id(x.call.memo), repr(x.call.key)) for x in side] for side in (ones, others)]
        if sides[0] != sides[1]:
            raise ProgramsDiffer("one side of a question of data calls a memoized function")
        return ones


@dataclass(frozen=True, slots=True)
class LeaveState(Effect):
    """The program leaves tensors or numbers that it computes in a place of Python's state."""

    state: State

    @classmethod
    def run(cls, effects: Sequence[Self], call: Call) -> None:
        """Bind the places to outputs of the graph."""
        states = [each.state for each in effects]
        call.built = put_all(states, call.outputs, call.inputs, call.arguments, call.found)

    @classmethod
    def lines(cls, effects: Sequence[Self], code: Code) -> Iterable[str]:
        """Bind all in one call."""
        put = code.bind(partial(put_all, [each.state for each in effects]), "put")
        outs, inputs = ("".join(f"{n}, " for n in names) for names in (code.outputs, code.inputs))
        code.built = code.name("built")
        yield f"{code.built} = {put}(({outs}), ({inputs}), (args, kwargs), {code.found})"

    @classmethod
    def merge(
        cls, ones: Sequence[Self], others: Sequence[Self], places: Mapping[int, int]
    ) -> Sequence[Self]:
        """No run may leave any: outputs that are state are not merged."""
        for each in (*ones, *others):
            raise ProgramsDiffer(
                f"{each.state.place.name} is bound to a tensor beside a question of data",
                each.state.at,
            )
        return ()


@dataclass(frozen=True, slots=True)
class ReturnArgument(Effect):
    """The program returns a container or an object that others hold, too, and no copy of it."""

    argument: ReturnedArgument
    phase: ClassVar[Phase] = "result"

    @classmethod
    def run(cls, effects: Sequence[Self], call: Call) -> None:
        """Put these objects into the result."""
        arguments = [each.argument for each in effects]
        sources = call.arguments, call.built, call.found
        call.result = restore_identity(arguments, call.result, *sources)

    @classmethod
    def lines(cls, effects: Sequence[Self], code: Code) -> Iterable[str]:
        """Put them there in generated code."""
        arguments = [each.argument for each in effects]
        back = code.bind(partial(restore_identity, arguments), "restore_identity")
        code.result = f"{back}({code.result}, (args, kwargs), {code.built}, {code.found})"
        return ()

    @classmethod
    def merge(
        cls, ones: Sequence[Self], others: Sequence[Self], places: Mapping[int, int]
    ) -> Sequence[Self]:
        """Both runs return the same objects at the same places."""
        sides = [[each.argument for each in effects] for effects in (ones, others)]
        paths = [[(x.place, x.source, x.state, x.found, type(x)) for x in side] for side in sides]
        objects = [[id(each.itself) for each in side] for side in sides]
        if objects[0] != objects[1] or not same_keys(*paths):
            raise ProgramsDiffer(
                "one side of a question of data returns a container or an object of the caller's,"
                " and the other one of its own"
            )
        return ones


KINDS: Final[tuple[type[Effect], ...]] = (
    Reshape, CountWrite, FindObject, CallMemo, ChangePlace, MarkOutput, LeaveState, ClearGrad,
    SetRequiresGrad, ReturnArgument,
)  # fmt: skip
"""In the order in which a call does them"""
E = TypeVar("E", bound=Effect)


def ordered(effects: Iterable[Effect]) -> list[Effect]:
    """The effects in the order in which a call does them."""
    return sorted(effects, key=lambda each: KINDS.index(type(each)))


def by_kind(effects: Sequence[Effect], phase: Phase) -> Iterator[tuple[type[Effect], list[Any]]]:
    """The effects of a phase, a list for each kind; `effects` are ordered."""
    key: Callable[[Effect], type[Effect]] = type
    for kind, found in groupby(effects, key):
        if kind.phase == phase:
            yield kind, [*found]


def of_kind(effects: Iterable[Effect], kind: type[E]) -> list[E]:
    """The effects of one kind."""
    return [each for each in effects if isinstance(each, kind)]


def merged_effects(
    ones: Sequence[Effect], others: Sequence[Effect], places: Mapping[int, int]
) -> list[Effect]:
    """The effects of a record of both runs.

    Raises:
        ProgramsDiffer: no graph chooses between them.
    """
    both = ((kind, of_kind(ones, kind), of_kind(others, kind)) for kind in KINDS)
    return [each for kind, mine, theirs in both for each in kind.merge(mine, theirs, places)]
