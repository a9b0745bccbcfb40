"""Merge what two runs require of later calls, and refuse runs that change Python differently."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import sympy

from foretrace.errors import Frame, LazyFrame
from foretrace.ir.program.call_requirements import CallRequirements, ReadLocation
from foretrace.ir.program.recording import Recording
from foretrace.ir.pydata.containers import same_keys
from foretrace.ir.pydata.places import Change
from foretrace.ir.pydata.plain_data import plain, same
from foretrace.ir.symbols.symbols import Guard

Numbered: TypeAlias = dict[sympy.Symbol, sympy.Symbol]
"""What a run calls symbols of another"""


class Otherwise(Exception):
    """The runs differ in what no graph has, at a line of the user's."""

    def __init__(self, what: str, at: Frame | LazyFrame | None) -> None:
        super().__init__(what)
        self.what, self.at = what, at


def check_python(one: Recording, other: Recording) -> None:
    """Hold what two runs have done to Python's state, and assumed of sizes, against each other.

    Raises:
        Otherwise: they differ.
    """
    ones, others = one.requires.changed, other.requires.changed
    for mine, theirs in ((ones, others), (others, ones)):
        for change in mine:
            if not any(_same_change(change, each) for each in theirs):
                raise Otherwise(
                    f"{change.place.name} is bound on one side of a question of data, or otherwise"
                    " on the other",
                    change.at,
                )
    for run in (one, other):
        for state in run.requires.states:
            raise Otherwise(
                f"{state.place.name} is bound to a tensor beside a question of data", state.at
            )
    if one.requires.cleared != other.requires.cleared:
        raise Otherwise("one side of a question of data sets .grad to None", None)
    if one.requires.reshaped != other.requires.reshaped:
        raise Otherwise("one side of a question of data gives an input another shape", None)
    told = [[(each.about, each.answer) for each in run.answered] for run in (one, other)]
    if told[0] != told[1]:
        extra = [*one.answered, *other.answered][-1]
        raise Otherwise(f"one side of a question of data asks {extra.about}, too", extra.frame)


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


Places: TypeAlias = Mapping[int, int]
"""Where the inputs of the other run are among those of both"""
Merge: TypeAlias = Callable[[Any, Any, Places], Any]
"""What both runs require, given what each requires and the places of inputs"""


def required_of_both(one: Recording, other: Recording, places: Places) -> CallRequirements:
    """Merge the requirements of two runs, field by field.

    Raises:
        Otherwise: the runs differ in what a call does, and no graph chooses that.
    """
    return CallRequirements(**{
        name: merge(getattr(one.requires, name), getattr(other.requires, name), places)
        for name, merge in MERGES.items()
    })  # fmt: skip


def _name(held: Any) -> Any:
    key = (held.how, repr(held.key)) if isinstance(held, ReadLocation) else None
    return type(held), held.name, id(held.holder), key


def of_the_call(mine: Any, theirs: Any, places: Places) -> Any:
    """Both runs are of one call, in one state of torch: what the first has, the other has too."""
    return mine


def checked(mine: Any, theirs: Any, places: Places) -> Any:
    """`check_python` has refused runs that differ here."""
    return mine


def any_of(mine: Any, theirs: Any, places: Places) -> Any:
    """A truth that holds of both where it holds of one; the union of sets."""
    return mine | theirs


def each_of(mine: Sequence[Any], theirs: Sequence[Any], places: Places) -> list[Any]:
    """All items of both; an object of both is one item."""
    return list({id(item): item for item in (*mine, *theirs)}.values())


def by_input(mine: dict[int, Any], theirs: dict[int, Any], places: Places) -> dict[int, Any]:
    """A table by input; the first run's entry stands where both have one."""
    return {places[index]: item for index, item in theirs.items()} | mine


def by_input_of_inputs(mine: Any, theirs: Any, places: Places) -> dict[int, Any]:
    """A table by input whose entries are inputs, lists of them, or None."""

    def moved(item: Any) -> Any:
        return [*map(moved, item)] if isinstance(item, list) else places.get(item)

    return {places[index]: moved(item) for index, item in theirs.items()} | mine


def reads_of_inputs(mine: Any, theirs: Any, places: Places) -> list[Any]:
    """Pairs of a read and the input that it finds."""
    return [*mine, *((read, places[index]) for read, index in theirs)]


def _held(mine: Any, theirs: Any, places: Places) -> list[Any]:
    return list({_name(each): each for each in (*theirs, *mine)}.values())


def _met(mine: Any, theirs: Any, places: Places) -> list[Any]:
    return list({id(state.module): state for state in (*theirs, *mine)}.values())


def _set_on(mine: Any, theirs: Any, places: Places) -> list[Any]:
    every = [*mine, *((places[index], name, item) for index, name, item in theirs)]
    return list({item[:2]: item for item in every}.values())


def _rebound(mine: Sequence[int], theirs: Sequence[int], places: Places) -> list[int]:
    return list(dict.fromkeys([*mine, *(places[index] for index in theirs)]))


def _idle(mine: frozenset[int], theirs: frozenset[int], places: Places) -> frozenset[int]:
    """Inputs of the first run that neither run reads."""
    return mine.difference(places.values()) | mine.intersection(places[each] for each in theirs)


def _flags(mine: dict[int, bool], theirs: dict[int, bool], places: Places) -> dict[int, bool]:
    if mine != by_input({}, theirs, places):
        raise Otherwise("one side of a question of data sets requires_grad of an input", None)
    return mine


def _handed(mine: Any, theirs: Any, places: Places) -> Any:
    facts = [[(each.place, each.given) for each in side] for side in (mine, theirs)]
    objects = [[id(each.itself) for each in side] for side in (mine, theirs)]
    if objects[0] != objects[1] or not same_keys(*facts):
        raise Otherwise(
            "one side of a question of data returns a container or an object of the caller's, and"
            " the other one of its own",
            None,
        )
    return mine


MERGES: Final[Mapping[str, Merge]] = MappingProxyType({
    "in_structure": of_the_call,
    "names": of_the_call,
    "defined": of_the_call,
    "grad_mode": of_the_call,
    "autocast": of_the_call,
    "default_dtype": of_the_call,
    "constants": of_the_call,
    "repeated": of_the_call,
    "modules": of_the_call,
    "met": _met,
    "held": _held,
    "of_hooks": _held,
    "mentioned": any_of,
    "asks_strides": any_of,
    "asks_mode": any_of,
    "set_on": _set_on,
    "gradients": by_input_of_inputs,
    "begins": by_input,
    "viewed": by_input,
    "together": by_input_of_inputs,
    "idle": _idle,
    "whole": by_input,
    "rooms": by_input,
    "hooked": by_input,
    "flags": _flags,
    "reshaped": checked,
    "cleared": checked,
    "changed": checked,
    "states": checked,
    "counted": each_of,
    "forms": each_of,
    "filled": each_of,
    "tied": reads_of_inputs,
    "rebound": _rebound,
    "handed": _handed,
    "stored": each_of,
})  # fmt: skip
"""How each field of CallRequirements is merged; a new field needs a row"""
