"""What a later call has to be like for both sides, and what both change of Python's state."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import sympy

from foretrace.ir.program.call_requirements import CallRequirements, ReadLocation
from foretrace.ir.program.equality import ProgramsDiffer
from foretrace.ir.program.recording import Recording
from foretrace.ir.pydata.plain_data import plain, same
from foretrace.ir.pydata.state import Change
from foretrace.ir.symbols.symbols import Guard

Numbered: TypeAlias = dict[sympy.Symbol, sympy.Symbol]
"""What a run calls symbols of another"""


def check_python(one: Recording, other: Recording) -> None:
    """Hold what two runs have done to Python's state, and assumed of sizes, against each other.

    Raises:
        ProgramsDiffer: they differ.
    """
    ones, others = one.requires.changed, other.requires.changed
    for mine, theirs in ((ones, others), (others, ones)):
        for change in mine:
            if not any(_same_change(change, each) for each in theirs):
                raise ProgramsDiffer(
                    f"{change.place.name} is bound on one side of a question of data, or otherwise"
                    " on the other",
                    change.at,
                )
    for run in (one, other):
        for state in run.requires.states:
            raise ProgramsDiffer(
                f"{state.place.name} is bound to a tensor beside a question of data", state.at
            )
    if one.requires.cleared != other.requires.cleared:
        raise ProgramsDiffer("one side of a question of data sets .grad to None")
    if one.requires.reshaped != other.requires.reshaped:
        raise ProgramsDiffer("one side of a question of data gives an input another shape")
    said = [[(each.about, each.answer) for each in run.answered] for run in (one, other)]
    if said[0] != said[1]:
        extra = [*one.answered, *other.answered][-1]
        raise ProgramsDiffer(f"one side of a question of data asks {extra.about}, too", extra.frame)


def _same_change(one: Change, other: Change) -> bool:
    places = [
        (c.place.name, id(c.place.holder), repr(c.place.key), c.rebound) for c in (one, other)
    ]
    after = one.after, other.after
    equal = after[0] is after[1] or (all(map(plain, after)) and same(*after))
    return places[0] == places[1] and equal


def assume(one: Recording, other: Recording, numbers: Numbered) -> None:
    """Let the sizes of the one run be as the other has assumed, too.

    Args:
        one: the run whose words are kept.
        other: the other; what it has made in its side has names of its own.
        numbers: what the one run calls numbers that data decides in both.
    """
    one.symbols.adopt(other.symbols, other.symbols.data - numbers.keys())
    known = {guard.condition for guard in (*one.symbols.guards(), *one.symbols.assertions())}
    for guard in (*other.symbols.guards(), *other.symbols.assertions()):
        condition: Any = guard.condition.xreplace(numbers)
        if condition not in known:
            one.symbols.assume([Guard(condition, guard.frame)])


def required_of_both(one: Recording, other: Recording, places: dict[int, int]) -> CallRequirements:
    """What both need; `places`: where the inputs of the other are among those of both."""
    mine, theirs = one.requires, other.requires
    held = {_name(each): each for each in (*theirs.held, *mine.held)}
    met = {id(state.module): state for state in (*theirs.met, *mine.met)}
    return replace(
        mine,
        held=list(held.values()),
        met=list(met.values()),
        mentioned=mine.mentioned | theirs.mentioned,
        asks_mode=mine.asks_mode or theirs.asks_mode,
        asks_strides=mine.asks_strides or theirs.asks_strides,
        set_on=_once([*mine.set_on, *((places[i], n, x) for i, n, x in theirs.set_on)]),
        gradients=_moved(theirs.gradients, places, inner=True) | mine.gradients,
        begins=_moved(theirs.begins, places) | mine.begins,
        viewed=_moved(theirs.viewed, places) | mine.viewed,
        whole=_moved(theirs.whole, places) | mine.whole,
        stored=[*mine.stored, *theirs.stored],
    )


def _name(held: Any) -> Any:
    key = (held.how, repr(held.key)) if isinstance(held, ReadLocation) else None
    return type(held), held.name, id(held.holder), key


def _moved(found: dict[int, Any], places: dict[int, int], *, inner: bool = False) -> dict[int, Any]:
    return {
        places[index]: places[item] if inner and item is not None else item
        for index, item in found.items()
    }


def _once(items: Sequence[tuple[int, str, object]]) -> list[tuple[int, str, object]]:
    return list({item[:2]: item for item in items}.values())
