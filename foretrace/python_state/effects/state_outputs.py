"""Tensors that a run leaves in Python state: outputs of the record, which each call puts there.

The place is bound at once to what was there before, so that the program is as it was. A tensor that
an earlier call has left there is an input, read at each call.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Set as AbstractSet
from dataclasses import replace
from types import CellType
from typing import Any, NamedTuple

import torch

from foretrace import torch_api
from foretrace.ir.program.call_requirements import CallRequirements
from foretrace.ir.program.interface import Input, Output, Role
from foretrace.ir.pydata.containers import flatten, named_leaves
from foretrace.ir.pydata.location import Contents, Entry, FormerContents, OnArgument, OnInput
from foretrace.ir.pydata.members import MISSING
from foretrace.ir.pydata.paths import reached
from foretrace.ir.pydata.plain_data import plain, same, snapshot
from foretrace.ir.pydata.read_facts import How, ReadFact, ReadLocation
from foretrace.ir.pydata.returned import ResultParts
from foretrace.ir.pydata.state import (
    NUMBERS,
    BuiltObject,
    Change,
    FoundObject,
    ItemBefore,
    Kept,
    SameItem,
    State,
)
from foretrace.ir.source.state_change_lines import Lines
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.python_state.access.monitor import AccessMonitor
from foretrace.python_state.effects.counters import is_open
from foretrace.python_state.effects.found_objects import (
    FoundObjects,
    bound_equal,
    former_contents,
    in_several,
    shares,
)
from foretrace.python_state.effects.leaks import HOLDERS, carried_in, check_numbers, holds_numbers
from foretrace.python_state.effects.module_state import SwappedModuleTensors, located
from foretrace.python_state.effects.state_inputs import (
    CONTAINERS,
    ON_THE_CALL,
    Run,
    role_of,
)
from foretrace.python_state.snapshot.changes import Called
from foretrace.python_state.snapshot.heap import HeapSnapshot
from foretrace.python_state.snapshot.objects import ATOMS
from foretrace.tracer.subclasses.dispatch import of_the_run


def collect_state_outputs(
    before: HeapSnapshot,
    loan: SwappedModuleTensors,
    run: Run,
    result: ResultParts,
    requires: CallRequirements,
    lines: Callable[[], Lines],
) -> tuple[list[Change], list[Change]]:
    """The places that the run has bound to tensors or numbers of its own, and what it has filled.

    Also those of plain data in a container that it returns, too, or that has an older one in it.
    Each gets its former content back. `requires` takes names that are bound to what was there.

    Returns:
        Those that a call can bind again; and those that hold what no call has, with their lines.
    """
    found, others = dict[tuple[int, Any], Change](), dict[tuple[int, Any], Change]()
    real = run.inputs.stood_for()
    for row in [*_rows(before, loan, run, result, requires.notes.changed)]:
        change, left = row.change, row.left
        same = not row.shared and _as_before(change, real)
        if change.itself or row.again:  # a new container may hold what the old one had
            requires.notes.changed.append(change)
        elif isinstance(change.place, Contents) and not left:  # for `leaks.py`, as it is
            others.setdefault(change.place.identity, located(change, lines))
            continue
        elif not (row.created and change.rebound and same):
            if row.created and not left:
                check_numbers(located(change, lines))
                continue
            if not (row.holds or left) or same:
                continue
            kind, one = (found, change) if left else (others, located(change, lines))
            kind.setdefault(change.place.identity, one)
        change.undo()
    notes = requires.notes
    notes.changed = [e for e in notes.changed if e.place.identity not in found]
    return [*found.values()], [*others.values()]


class _Row(NamedTuple):
    """A change, and what a call can do about it."""

    change: Change
    left: bool
    """whether it can be left as state"""
    created: bool
    """whether it holds what the run has created"""
    holds: bool
    """whether it holds any tensor"""
    shared: bool
    """as `shares` has it"""
    again: bool
    """whether it is plain data, bound as it is in the place of an equal or a filled container"""


def _rows(
    before: HeapSnapshot,
    loan: SwappedModuleTensors,
    run: Run,
    result: ResultParts,
    bound: list[Change],
) -> Iterator[_Row]:
    known, equal = before.met.union(map(id, run.inputs.real)), [*bound_equal(before)]
    as_they_are = set(map(id, equal))
    every = [*_everywhere(before, loan, run.outside, run), *equal]
    every = [*former_contents(every, bound, before)]
    elsewhere = in_several(every).union(result.items, result.arguments)
    rows = [(change, *_sorted(change, known)) for change in every]
    filled = {id(change.place.holder) for change, left, _, _ in rows if left}
    for change, left, created, holds in rows:
        data, shared = plain(change.after), shares(change, elsewhere, before)
        new = change.place.before is MISSING and id(change.place.holder) in filled
        again = change.rebound and id(change.place.before) in filled and data
        again = (again or id(change) in as_they_are) and not shared
        can_be_left = left or ((new or shared) and data)
        yield _Row(change, can_be_left, created, holds, shared, again)


def _everywhere(
    before: HeapSnapshot, loan: SwappedModuleTensors, outside: AccessMonitor | None, run: Run
) -> Iterator[Change]:
    """All that the run has bound or filled, as far as it lives on."""
    globals = outside.changes() if outside is not None else []
    # the content of a container is compared by `before`, which knows the very items
    globals = [change for change in globals if not before.keeps(change.place)]
    for group in (globals, loan.bound(), before.bound(), _set_on(run, before.met)):
        for change in group:
            yield before.itself(with_name(change, outside))


def _sorted(change: Change, known: AbstractSet[int]) -> tuple[bool, bool, bool]:
    """Whether a call can leave it; whether it holds what the run has created; or any tensor.

    `known`: what was there before the run, so that a tensor among it is no other thread's.
    """
    after, content = change.after, isinstance(change.place, Contents)
    atom = type(after) in ATOMS and type(after) not in (*HOLDERS, torch.Size)
    inside = [] if atom else [*carried_in([after]), *flatten(after)[0]]
    created = any(isinstance(each, Abstract) or is_open(each) for each in inside)
    holds = created or any(isinstance(each, torch.Tensor) for each in inside)
    left = holds or content or isinstance(change.place, OnInput)
    shown = replace(change, after=_by_place(change)) if content else change
    return change.rebound and left and all_known(shown, known), created, holds


def with_name(change: Change, outside: AccessMonitor | None) -> Change:
    """The change; of what a global or a cell holds, by the name of that."""
    place = change.place
    if outside is None or not isinstance(place, (Contents, Entry)):
        return change
    name = outside.places.names().get(id(place.holder))
    return change if name is None else replace(change, place=place.named(name))


def themselves(run: Run, met: AbstractSet[int]) -> set[int]:
    """Inputs without stand-ins: tensors that the program met, and that are no arguments.

    `met`: what is kept of Python's state, by id; their attributes are, too.
    """
    return {
        index
        for index, (item, tensor) in enumerate(run.inputs.with_real())
        if id(tensor) in met and item.argument is None and item.gradient_of is None
    }


def _set_on(run: Run, met: AbstractSet[int]) -> Iterator[Change]:
    """The attributes that the run has set on what stands for its inputs."""
    own = themselves(run, met)
    for index, (tensor, placeholder) in enumerate(run.inputs.pairs()):
        if index in own:
            continue
        if isinstance(placeholder, Abstract) and not torch_api.is_fake(tensor):
            before, now = vars(tensor), vars(placeholder)
            for name in [name for name in now if now[name] is not before.get(name, MISSING)]:
                place = OnInput(name, now, before.get(name, MISSING), index)
                yield Change(place, now[name], rebound=True)


def all_known(change: Change, known: AbstractSet[int]) -> bool:
    """Whether all in a place is what the run has created, plain data, and what is `known`."""
    leaves = flatten(change.after)[0]
    return all(
        isinstance(x, ItemBefore) or of_the_run(x) or is_open(x) or id(x) in known
        or (plain(x) and not holds_numbers(x))
        for x in leaves
    )  # fmt: skip


def _by_place(change: Change) -> Any:
    """The content that the run has left; the items that were there before by their places."""
    if not isinstance(change.place, Contents):
        return change.after
    before, after = change.place.before, change.after
    if isinstance(after, set):
        return after
    pairs = isinstance(change.place.holder, dict)
    old = dict[int, ItemBefore]()
    for place, item in enumerate(before):
        for part, each in enumerate(item if pairs else (item,)):
            if type(each) not in NUMBERS:
                old.setdefault(id(each), ItemBefore(place, part) if pairs else ItemBefore(place))
    if pairs:
        return [tuple([old.get(id(each), each) for each in pair]) for pair in after]
    return [old.get(id(item), item) for item in after]


def _as_before(change: Change, real: dict[int, Any]) -> bool:
    """Whether it still holds its inputs, as an LSTM its list of weights."""
    (then, structure), (now, other) = map(named_leaves, (change.place.before, change.after))
    pairs = zip(then, now, strict=False)
    return structure == other and all(
        old is real.get(id(new), new) or (plain(old) and plain(new) and same(old, new))
        for (_, old), (_, new) in pairs
    )


def states_of(
    left: Iterable[Change],
    new_output: Callable[[Role, Any], Output],
    first: int,
    lines: Callable[[], Lines],
    found: FoundObjects,
) -> tuple[list[State], list[Output]]:
    """The states, and their outputs.

    Args:
        left: what the run has left.
        new_output: makes an output.
        first: the number of the first.
        lines: of the program.
        found: the objects in it that a call finds.
    """
    states, outputs, contents = list[State](), list[Output](), list[Any]()
    known: dict[int, Kept] = {key: FoundObject(n) for key, n in found.numbers.items()}
    for change in left:
        content = _by_place(change)
        leaves, structure = named_leaves(content, whole=known.keys())
        structure = structure.with_repeats(content, known)
        begin, kept = first + len(outputs), dict[int, Kept]()
        former = isinstance(change.place, FormerContents)
        for place, (path, leaf) in enumerate(leaves):
            if (item := _kept(leaf, known, former=former)) is not None:
                kept[place] = item
            else:
                outputs.append(new_output(role_of(change, path), leaf))
        for path_in, item in [*reached(content, known)]:
            known.setdefault(id(item), BuiltObject(len(states), path_in))
        contents.append(content)  # alive, as are their ids
        at, count = change.at or located(change, lines).at, len(leaves) - len(kept)
        on = found.numbers[id(change.place.holder)] if former else None
        states.append(State(change.place, structure, begin, count, at, kept, on))
    return states, outputs


def _kept(leaf: Any, known: Mapping[int, Kept], *, former: bool) -> Kept | None:
    """What a call takes for a leaf that is no output; `former`: a file has no such constants."""
    if isinstance(leaf, ItemBefore):
        return leaf
    if id(leaf) in known:
        return known[id(leaf)]
    return SameItem(leaf) if former and not (of_the_run(leaf) or is_open(leaf)) else None


def content_of_states(left: Iterable[Change]) -> list[Any]:
    """What each state is to hold, by its number; nothing of one among the arguments.

    What is filled is there before the call and after it: of that, the items that are new.
    """
    return [*map(_content, left)]


def _content(change: Change) -> Any:
    if isinstance(change.place, Contents):
        content = _by_place(change)
        return None if isinstance(content, set) else tuple(content)
    return None if isinstance(change.place, OnArgument) else change.after


def bound_before(change: Change) -> ReadLocation:
    """What was there, as read, where the run has bound a name."""
    place = change.place
    entry = isinstance(place, Entry) and plain(place.key)
    name = f"{place.name}[{place.key!r}]" if entry else place.name
    if isinstance(place.name, Called):
        name = place.name.of(place.key if entry else "the optimizer's state")
    how: How = "cell" if isinstance(place.holder, CellType) else "attribute"
    if isinstance(place.holder, dict):
        how = "item"
    then = snapshot(place.before) if plain(place.before) else place.before  # with its own content
    return ReadLocation(name, how, place.holder, place.key, then)


def bound_to_data(
    kept: Iterable[Change], inputs: Iterable[Input], lines: Callable[[], Lines]
) -> Iterator[ReadLocation]:
    """Reads of plain data, or nothing, in places where the run has bound a tensor."""
    read = {id(item.read.place) for item in inputs if item.read is not None}
    places = (
        change
        for change in kept
        if not isinstance(change.place, (*ON_THE_CALL, Contents)) and id(change.place) not in read
    )
    kept = (change for change in places if _without_tensors(change.place.before))
    return (
        replace(bound_before(change), left=True, at=located(change, lines).at) for change in kept
    )


def of_filled(
    reads: Iterable[ReadFact], kept: Iterable[Change], lines: Callable[[], Lines]
) -> Iterator[ReadFact]:
    """The reads; those of containers of plain data that the program fills say that it does.

    The next call finds more there than the capture did: a cache that the first call fills.
    """
    every = (c for c in kept if not isinstance(c.place, FormerContents))
    filled = {id(c.place.holder): c for c in every if isinstance(c.place.holder, CONTAINERS)}
    for each in reads:
        place = each.location if isinstance(each, ReadLocation) and filled else None
        change = None if place is None else filled.get(id(place.now))
        if change is None or not isinstance(each, ReadLocation) or not plain(each.before):
            yield each
        else:
            yield replace(each, filled=True, at=located(change, lines).at)


def _without_tensors(item: Any) -> bool:
    return item is MISSING or plain(item)
