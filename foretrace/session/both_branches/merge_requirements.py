"""Merge what two runs require of later calls, and refuse runs that change Python differently."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import sympy

from foretrace.ir.program.call_requirements import (
    CallRequirements,
    InputGuards,
    PythonGuards,
    RunNotes,
    SharedInputs,
)
from foretrace.ir.program.effects import merged_effects
from foretrace.ir.program.equality import ProgramsDiffer
from foretrace.ir.program.recording import Recording
from foretrace.ir.pydata.read_facts import ReadLocation
from foretrace.ir.symbols.symbols import Guard

Numbered: TypeAlias = dict[sympy.Symbol, sympy.Symbol]
"""By the symbols of one run, those of the other"""
Places: TypeAlias = Mapping[int, int]
"""Where the inputs of the other run are among those of both"""


def check_python(one: Recording, other: Recording, places: Places) -> None:
    """Compare what two runs do beside returning results, and what they asked of values.

    Raises:
        ProgramsDiffer: they differ.
    """
    merged_effects(one.effects, other.effects, places)
    own = [[*map(id, run.requires.shared.whole_arguments)] for run in (one, other)]
    if own[0] != own[1]:
        raise ProgramsDiffer("one side reads an object among the arguments by another way, too")
    asked = [[(each.about, each.answer) for each in run.answered] for run in (one, other)]
    if asked[0] != asked[1]:
        extra = [*one.answered, *other.answered][-1]
        raise ProgramsDiffer(f"one side of a question of data asks {extra.about}, too", extra.frame)


def assume(one: Recording, other: Recording, numbers: Numbered) -> None:
    """Let the sizes of the one run be as the other has assumed, too.

    Args:
        one: the run whose symbols are kept.
        other: the other; what its side computes has symbols of its own.
        numbers: by the other run's data-dependent numbers that both have, the first run's.
    """
    one.symbols.adopt(other.symbols, other.symbols.data - numbers.keys())
    known = {guard.condition for guard in (*one.symbols.guards(), *one.symbols.assertions())}
    for guard in (*other.symbols.guards(), *other.symbols.assertions()):
        condition: Any = guard.condition.xreplace(numbers)
        if condition not in known:
            one.symbols.assume([Guard(condition, guard.frame)])


Merge: TypeAlias = Callable[[Any, Any, Places], Any]
"""What both runs require, by what each requires and the places of inputs"""


def required_of_both(one: Recording, other: Recording, places: Places) -> CallRequirements:
    """Merge the requirements of two runs, field by field."""
    merged: CallRequirements = by_part(one.requires, other.requires, places)
    return merged


def _name(read: Any) -> Any:
    key = (read.how, repr(read.key)) if isinstance(read, ReadLocation) else None
    return type(read), read.name, id(read.holder), key


def of_the_call(mine: Any, theirs: Any, places: Places) -> Any:
    """Both runs are of one call, in one state of torch: what the first has, the other has too."""
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


def by_id(mine: dict[int, Any], theirs: dict[int, Any], places: Places) -> dict[int, Any]:
    """A table by the ids of objects."""
    return theirs | mine


def by_input_of_inputs(mine: Any, theirs: Any, places: Places) -> dict[int, Any]:
    """A table by input whose entries are inputs, lists of them, or None."""

    def moved(item: Any) -> Any:
        return [*map(moved, item)] if isinstance(item, list) else places.get(item)

    return {places[index]: moved(item) for index, item in theirs.items()} | mine


def reads_of_inputs(mine: Any, theirs: Any, places: Places) -> list[Any]:
    """Pairs of a read and the input that it finds."""
    return [*mine, *((read, places[index]) for read, index in theirs)]


def _reads(mine: Any, theirs: Any, places: Places) -> list[Any]:
    return list({_name(each): each for each in (*theirs, *mine)}.values())


def _met(mine: Any, theirs: Any, places: Places) -> list[Any]:
    return list({id(state.module): state for state in (*theirs, *mine)}.values())


def _ambient(mine: Any, theirs: Any, places: Places) -> list[Any]:
    return list({row.name: (row, before) for row, before in (*theirs, *mine)}.values())


def _set_on(mine: Any, theirs: Any, places: Places) -> list[Any]:
    every = [*mine, *((places[index], name, item) for index, name, item in theirs)]
    return list({item[:2]: item for item in every}.values())


def _rebound(mine: Sequence[int], theirs: Sequence[int], places: Places) -> list[int]:
    return list(dict.fromkeys([*mine, *(places[index] for index in theirs)]))


def _idle(mine: frozenset[int], theirs: frozenset[int], places: Places) -> frozenset[int]:
    """Inputs of the first run that neither run reads."""
    return mine.difference(places.values()) | mine.intersection(places[each] for each in theirs)


def by_part(mine: Any, theirs: Any, places: Places) -> Any:
    """Guards that are a class of their own, by its rules."""
    kind: Any = type(mine)
    return kind(
        **{
            name: merge(getattr(mine, name), getattr(theirs, name), places)
            for name, merge in MERGES[kind].items()
        }
    )


MERGES: Final[Mapping[type, Mapping[str, Merge]]] = MappingProxyType({
    CallRequirements: {
        "in_structure": of_the_call,
        "names": of_the_call,
        "defined": of_the_call,
        "grad_mode": of_the_call,
        "autocast": of_the_call,
        "default_dtype": of_the_call,
        "constants": of_the_call,
        "asks_strides": any_of,
        "asks_mode": any_of,
        "inputs": by_part,
        "shared": by_part,
        "python": by_part,
        "notes": by_part,
    },
    InputGuards: {
        "repeated": of_the_call,
        "set_on": _set_on,
        "gradients": by_input_of_inputs,
        "begins": by_input,
        "viewed": by_input,
        "together": by_input_of_inputs,
        "idle": _idle,
        "whole": by_input,
        "inferring": by_input,
        "rooms": by_input,
        "hooked": by_input,
    },
    SharedInputs: {
        "merged": of_the_call,
        "whole_arguments": of_the_call,
        "containers": by_id,
        "own": by_input,
    },
    PythonGuards: {
        "modules": of_the_call,
        "met": _met,
        "reads": _reads,
        "mentioned": any_of,
        "ambient": _ambient,
        "kernels": _ambient,
        "forms": each_of,
        "tied": reads_of_inputs,
        "rebound": _rebound,
    },
    RunNotes: {
        "changed": each_of,
        "effects": each_of,
        "counted": each_of,
        "filled": each_of,
        "stored": each_of,
        "copied": of_the_call,
    },
})  # fmt: skip
"""How each field is merged, by class; a new field needs a row"""
