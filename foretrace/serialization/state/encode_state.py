"""Encodes the Python state that a program reads and leaves: optimizers, counters, caches, as data.

What its graph has of it as constants becomes guards on that data, as they were on the objects.
"""

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from foretrace.errors import Attempt, Refusal, line_of
from foretrace.ir.program.effects import ChangePlace, LeaveState
from foretrace.ir.program.interface import Input
from foretrace.ir.program.recording import Recording
from foretrace.ir.pydata.containers import LEAF, named_leaves
from foretrace.ir.pydata.location import (
    Contents,
    Filling,
    FormerContents,
    Location,
    OnArgument,
    OnGradient,
    OnInput,
    content_of,
)
from foretrace.ir.pydata.members import MISSING
from foretrace.ir.pydata.plain_data import plain, same
from foretrace.ir.pydata.read_facts import ContainerLength, ReadLocation
from foretrace.ir.pydata.state import (
    OPEN,
    BuiltObject,
    Change,
    FoundObject,
    ItemBefore,
    Kept,
    State,
    StateRead,
)
from foretrace.serialization.schema.effect_schema import IN_STATE
from foretrace.serialization.schema.encode import Encoder
from foretrace.serialization.state.containers import KINDS, ContainerTable, Spot
from foretrace.serialization.state.savable import one_call, outside
from foretrace.serialization.state.state_objects import Trained

ON_THE_CALL: Mapping[type[Location], str] = MappingProxyType(
    {OnInput: "input", OnGradient: "gradient", OnArgument: "arguments"}
)
"""Places in the arguments of a call"""
ITEM, BUILT, HOLDER = "item", "built", "holder"
ENTRY, CONTENT, FILLING = "entry", "content", "filling"
WAS, FOUND, IS = "was", "found", "is"


class StateEncoder:
    """Encodes the Python state of one program.

    Args:
        recorded: the program.
        encoder: of the file.
        owned: ids of the tensors of modules.
        holders: the containers of the file.
    """

    def __init__(
        self, recorded: Recording, encoder: Encoder, owned: Iterable[int], holders: ContainerTable
    ) -> None:
        self.recorded, self.encoder, self.holders = recorded, encoder, holders
        self._owned = frozenset(owned)
        self.read = set[Spot]()
        """what the program reads at each call"""
        self._guards = list[tuple[Any, ...]]()

    def places(self) -> dict[str, Any]:
        """Reads, effects and gradients; not the guards.

        Raises:
            Refusal: no file can have them.
        """
        requires, inputs = self.recorded.requires, self.recorded.inputs
        reads = [(i, self._reading(each.read)) for i, each in enumerate(inputs) if each.read]
        tied = [(r, i) for r, i in requires.python.tied if not isinstance(r.place.holder, Trained)]
        found: dict[str, Any] = {
            # nobody else has its former containers, which are the last of the states
            IN_STATE[LeaveState]: [self._state(x) for x in self.recorded.states if x.on is None],
            "reads": reads,
            "hooked": [*requires.inputs.hooked],
            "forms": [self._reading(each) for each in requires.python.forms],
            "tied": [(self._reading(each), index) for each, index in tied],
            IN_STATE[ChangePlace]: [*map(self._change, self._changes())],
            "gradients": list(self._gradients(inputs)),
        }
        for mutation in self.recorded.mutations:
            tensor = inputs[mutation.index].tensor
            if tensor is not None and id(tensor) not in self._owned:
                self.holders.keep(tensor)
        self._guards = [
            each for each in map(self._guard, requires.python.reads) if each is not None
        ]
        return found

    def guards(self, fewer: Mapping[int, int]) -> list[tuple[Any, ...]]:
        """The guards; `fewer`: by number of a container, how many of its items were left out."""
        found = list[tuple[Any, ...]]()
        for what, name, number, key, value, *rest in self._guards:
            less = fewer.get(number, 0) if what == "length" else 0
            found.append((what, name, number, key, value - less if less else value, *rest))
        return found

    # ---- places ------------------------------------------------------------------------------

    def _place(self, place: Location) -> tuple[Any, ...]:
        kind = ON_THE_CALL.get(type(place))
        if kind is not None:
            path = place.key if isinstance(place, OnArgument) else None
            return kind, str(place.name), getattr(place, "index", 0), path
        number, key = self.holders.spot(place)
        if isinstance(place, Filling):
            return FILLING, str(place.name), number, tuple(place.ways)
        return CONTENT if isinstance(place, Contents) else ENTRY, str(place.name), number, key

    def _reading(self, read: StateRead) -> tuple[Any, ...]:
        place = self._place(read.place)
        self.read.add((place[2], place[3]))
        leaves = tuple(map(_leaf, read.leaves))
        return place, read.structure, leaves, read.number, read.kind

    def _state(self, state: State) -> tuple[Any, ...]:
        kept = tuple([(i, *_kept(each)) for i, each in state.kept.items()])
        at = line_of(state.at)
        return self._place(state.place), state.structure, state.first, state.count, at, kept

    def _changes(self) -> Iterator[Change]:
        """The places that a call of the file binds; not to what equals a former container."""
        former = [each.place for each in self.recorded.states]
        emptied = {each.at.identity: each for each in former if isinstance(each, FormerContents)}
        for each in self.recorded.changes:
            place, new = emptied.get(each.place.identity), each.after
            fits = place is not None and type(new) is type(place.holder) and plain(new)
            if not (fits and place is not None and same(content_of(new), place.before)):
                yield each

    def _change(self, change: Change) -> tuple[Any, ...]:
        """A name that each call binds to the same data.

        Raises:
            Refusal: the program changes more.
        """
        if change.itself or not change.repeatable:
            raise outside(f"the program changes {change.name}", change.at)
        return self._place(change.place), self._value(change.after), line_of(change.at), change.path

    # ---- what is there -----------------------------------------------------------------------

    def _guard(self, guard: Any) -> tuple[Any, ...] | None:
        """A guard on state of the file; None where the file lacks it, or each call reads it.

        Raises:
            Refusal: later calls find what the first call has left.
        """
        if isinstance(guard, ReadLocation) and guard.left:
            there = "where there was none" * (guard.before is MISSING)
            raise one_call(f"the program leaves another {guard.name} {there}".rstrip(), guard.at)
        spot = (
            self.holders.guarded(guard)
            if isinstance(guard, (ReadLocation, ContainerLength))
            else None
        )
        if spot is None or spot in self.read:
            return None
        if isinstance(guard, ContainerLength):
            return "length", str(guard.name), *spot, guard.before, None, False
        value = self._value(guard.before, itself=guard.itself or not plain(guard.before))
        if not self._encodes((spot[1], value)):
            return None
        now = (
            dict.get(guard.holder, guard.key, MISSING)
            if isinstance(guard.holder, dict)
            else MISSING
        )
        self.holders.note(spot, now)
        return "held", str(guard.name), *spot, value, line_of(guard.at), guard.itself

    def _encodes(self, item: Any) -> bool:
        """Whether an item has a form in a file."""
        attempt = Attempt(Refusal)
        with attempt:
            self.encoder.item(item)
        return attempt.error is None

    def _value(self, item: Any, *, itself: bool = False) -> tuple[Any, ...]:
        """The content of a place: a container, or data; `itself`: a guard compares its identity."""
        number = self.holders.numbers.get(id(item))
        if number is not None:
            return HOLDER, number
        pairs, form = named_leaves(item)
        if form == LEAF:
            return ITEM, item
        leaves = tuple([leaf for _, leaf in pairs])
        lasting = itself or any(isinstance(x, torch.Tensor) for x in leaves)
        if type(item) in KINDS.values() and lasting and self._encodes(leaves):
            return HOLDER, self.holders.add(item)
        return BUILT, form, leaves

    def holder(self, number: int, read: Collection[Spot], fewer: dict[int, int]) -> tuple[Any, ...]:
        """A container with its items; of a dict, those that have a form in a file.

        Args:
            number: of the container.
            read: what calls read: an item without a form there is refused.
            fewer: receives how many items were left out.
        """
        kind, item = self.holders.kinds[number], self.holders.items[number]
        longest = item.maxlen if isinstance(item, deque) else None
        if issubclass(KINDS[kind], dict):
            pairs = ((key, each) for key, each in dict.items(item) if each is not MISSING)
            items = [(key, self._value(each)) for key, each in pairs]
            known = [
                (key, each)
                for key, each in items
                if (number, key) in read or self._encodes((key, each))
            ]
            fewer[number] = len(items) - len(known)
            return kind, longest, known
        return kind, longest, [self._value(each) for each in content_of(item)]

    def _gradients(self, inputs: list[Input]) -> Iterable[tuple[int, torch.Tensor]]:
        """The gradients to which the program adds, as they are now."""
        for item in inputs:
            of = item.gradient_of
            live = of.live() if of is not None and of.argument is None else None
            if of is not None and live is not None and live.grad is not None:
                yield inputs.index(of), live.grad


def encode_states(
    programs: Sequence[Recording], encoder: Encoder, owned: Iterable[int]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The Python state of the programs of a file: what they share, and the part of each.

    Raises:
        Refusal: no file can have it.
    """
    holders, owned = ContainerTable(programs), frozenset(owned)
    encoders = [StateEncoder(recorded, encoder, owned, holders) for recorded in programs]
    own = [each.places() for each in encoders]
    read = frozenset().union(*(each.read for each in encoders))
    items, fewer = list[tuple[Any, ...]](), dict[int, int]()
    while len(items) < len(holders.items):  # an item may add a container
        items.append(encoders[0].holder(len(items), read, fewer))
    for each, one in zip(own, encoders, strict=True):
        each["held"] = one.guards(fewer)
    shared = {"holders": items, "objects": holders.objects, "optimizers": holders.optimizers}
    return shared, own


def _kept(item: Kept) -> tuple[Any, ...]:
    if isinstance(item, ItemBefore):
        return WAS, item.path
    if isinstance(item, BuiltObject):
        return IS, item.state, item.path
    if isinstance(item, FoundObject):  # `check_python` refuses those outside of the arguments
        return FOUND, item.number
    raise TypeError(f"{item} is of a former container")


def _leaf(leaf: Any) -> tuple[Any, ...]:
    if leaf is OPEN:
        return ("open",)
    return ("tensor",) if isinstance(leaf, torch.Tensor) else ("is", leaf)
