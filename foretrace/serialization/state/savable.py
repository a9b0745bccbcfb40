"""Refuses programs with Python state that no file can have, or that differ in a second call."""

from collections.abc import Iterator
from typing import Any

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.call_requirements import FIRST_CALL
from foretrace.ir.program.effects import FindObject, ReturnArgument
from foretrace.ir.program.interface import Input
from foretrace.ir.program.recording import Recording
from foretrace.ir.pydata.location import Entry, OnData
from foretrace.ir.pydata.object_containers import LIVE
from foretrace.ir.pydata.plain_data import plain, same
from foretrace.ir.pydata.read_facts import AttributeNames, ReadLocation
from foretrace.ir.pydata.state import OPEN, FoundObject, State, StateRead
from foretrace.ir.values.value import Value

RETURNED = "take it as an argument and return it, or register it as a buffer"


def outside(what: str, at: Any) -> Refusal:
    """The refusal of state that no file can have."""
    return Refusal(
        f"{what}, which lives outside of the program, and no file holds that",
        kind="not saved",
        at=at,
        do=(RETURNED, FIRST_CALL),
    )


def one_call(what: str, at: Any) -> Refusal:
    """The refusal of a program whose second call differs from its first."""
    return Refusal(
        f"{what}, and a file of that answers one call",
        kind="not saved",
        at=at,
        do=(RETURNED, FIRST_CALL),
    )


def check_python(recorded: Recording) -> None:
    """Refuse a program that calls or returns what lives outside of it.

    Raises:
        Refusal: with the line.
    """
    requires = recorded.requires
    _check_again(recorded)
    filled = {id(state.place.holder) for state in recorded.states if state.on is None}
    returned = [each.argument.itself for each in recorded.effects_of(ReturnArgument)]
    places = [each.place for each in recorded.effects_of(FindObject)]
    found = [each.of_call(()) for each in recorded.effects_of(FindObject) if each.place]
    if any(each is not None for each in returned) or not filled.isdisjoint(map(id, found)):
        raise outside("the program returns an object that lives outside of it", None)
    _check_arguments(recorded)
    _check_unhooked(recorded)
    for state in (each for each in recorded.states if each.on is None):
        kept = [each for each in state.kept.values() if isinstance(each, FoundObject)]
        if any(places[each.number] is not None for each in kept):
            raise outside("the program leaves an object that lives outside of it", state.at)
        if isinstance(state.place, OnData):
            raise Refusal(
                f"the program sets {state.place.name}, and a file leaves the memory of what it has",
                kind="not saved",
                at=state.at,
                do="write to it under no_grad: copy_(new)",
            )
    for name, item in requires.constants.items():
        if isinstance(item, LIVE):
            raise Refusal(
                f"{name} is {type(item).__name__}, an object with state, among the arguments",
                kind="not saved",
                at=requires.defined,
                do=f"capture a function that has {name} from outside, as in lambda x: step({name},"
                " x)",
            )


def _check_arguments(recorded: Recording) -> None:
    """Refuse a program with one of its own tensors as an argument: a file has a copy of it.

    Raises:
        Refusal: there is one.
    """
    requires = recorded.requires
    own = {*map(id, requires.shared.whole_arguments)}
    names = [name for name, item in requires.constants.items() if id(item) in own]
    names += [requires.of_place(place) for place, _ in requires.shared.merged]
    for name in (*names, *(recorded.inputs[index].role.name for index in requires.shared.own)):
        raise Refusal(
            f"the argument {name} is an object that the program has, and a file has its own",
            kind="not saved",
            at=requires.defined,
            do=(
                "let the program take it from where it has it",
                "or capture with another tensor, such as a clone",
            ),
        )


def _check_unhooked(recorded: Recording) -> None:
    """Refuse a program with what hooks of all modules did, or with hooks on its parameters.

    Raises:
        Refusal: it was captured while there were such, of which no call can ask; or they are there.
    """
    for item in recorded.hooked_tensors():
        raise Refusal(
            f"the {item.role} has a hook on its gradient, and no file holds that",
            kind="not saved",
            at=recorded.requires.defined,
            do="remove the hook, save, and register it on what is loaded, too",
        )
    hooks = torch_api.BY_NAME["hooks of all modules"]
    for row, before in recorded.requires.python.ambient:
        if row is hooks and any(before):
            raise Refusal(
                f"the program was captured with {hooks.name}, and no file holds these",
                kind="not saved",
                at=recorded.requires.defined,
                do="remove the hooks, and capture again",
            )


def _check_again(recorded: Recording) -> None:
    """Refuse a program whose second call finds names or items that its capture did not.

    Raises:
        Refusal: with the line that leaves them.
    """
    requires = recorded.requires
    names = {
        id(each.holder): each for each in requires.python.reads if isinstance(each, AttributeNames)
    }
    reads = {
        (id(read.place.holder), read.place.key): (read, item) for read, item in _reads(recorded)
    }
    places = [(each.place, each.at) for each in recorded.states]
    places += [(each.place, each.at) for each in recorded.changes]
    for place, at in places:
        known = names.get(id(place.holder))
        if known and place.key in requires.python.mentioned - known.before:
            raise one_call(f"the program leaves {place.name} where there was none", at)
    entries = {id(c.place.holder): c for c in recorded.changes if isinstance(c.place, Entry)}
    for each in requires.python.reads:
        read = each.location if isinstance(each, ReadLocation) and plain(each.before) else None
        change = entries.get(id(read.now)) if read is not None else None
        if change is not None:
            raise one_call(f"the program leaves another {change.name}", change.at)
    for left in recorded.states:
        found = reads.get((id(left.place.holder), left.place.key))
        if found is not None and not _fits(left, *found, recorded):
            raise one_call(f"{left.place.name} holds other things after each call", left.at)


def _reads(recorded: Recording) -> Iterator[tuple[StateRead, Input | None]]:
    for read in (
        *recorded.requires.python.forms,
        *(read for read, _ in recorded.requires.python.tied),
    ):
        yield read, None
    for item in recorded.inputs:
        if item.read is not None:
            yield item.read, item


def _fits(left: State, read: StateRead, item: Input | None, recorded: Recording) -> bool:
    """Whether the next call accepts what a call leaves; sizes and data are guards."""
    if left.structure != read.structure:
        return False
    results = iter(recorded.outputs[left.first : left.first + left.count])
    for number, then in enumerate(read.leaves):
        now = OPEN if number in left.kept else next(results).value
        tensor = isinstance(then, torch.Tensor)
        if now is OPEN or then is OPEN:
            continue
        if tensor != isinstance(now, Value) or not (tensor or (plain(now) and same(now, then))):
            return False
        if isinstance(now, Value) and item is not None and read.number == number:
            one, other = now.type, item.value.type
            if one.dtype != other.dtype or len(one.shape) != len(other.shape):
                return False
    return True
