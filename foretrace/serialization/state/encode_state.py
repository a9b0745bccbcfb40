"""What a program reads and leaves of Python's state, told in a file and made anew.

Optimizers, counters, caches: a file has them as data. What the program has found of them, and its
graph has as constants, is a guard on that data, as it was one on the objects.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from foretrace.errors import Attempt, Refusal, line_of
from foretrace.ir.program.call_requirements import ContainerLength, ReadLocation
from foretrace.ir.program.effects import ChangePlace, LeaveState
from foretrace.ir.program.recording import Input, Recording
from foretrace.ir.pydata.containers import LEAF, take_apart
from foretrace.ir.pydata.location import (
    Contents,
    Filling,
    Location,
    OnArguments,
    OnGradient,
    OnInput,
    content_of,
)
from foretrace.ir.pydata.members import MISSING
from foretrace.ir.pydata.plain_data import plain
from foretrace.ir.pydata.state import OPEN, Change, State, StateRead
from foretrace.serialization.schema.effect_schema import IN_STATE
from foretrace.serialization.schema.encode import Encoder
from foretrace.serialization.state.containers import KINDS, ContainerTable, Spot
from foretrace.serialization.state.savable import one_call, outside
from foretrace.serialization.state.state_objects import Trained

ON_THE_CALL: Mapping[type[Location], str] = MappingProxyType(
    {OnInput: "input", OnGradient: "gradient", OnArguments: "arguments"}
)
"""Places that each call has of its own"""
ITEM, BUILT, HOLDER = "item", "built", "holder"
ENTRY, CONTENT, FILLING = "entry", "content", "filling"


class StateEncoder:
    """Tells the Python state of one program.

    Args:
        recorded: the program.
        encoder: tells items.
        owned: ids of tensors that the modules of the file have.
        holders: those of the file.
    """

    def __init__(
        self, recorded: Recording, encoder: Encoder, owned: Iterable[int], holders: ContainerTable
    ) -> None:
        self.recorded, self.encoder, self.holders = recorded, encoder, holders
        self._owned = frozenset(owned)
        self.read = set[Spot]()
        """what it reads at each call"""
        self._guards = list[tuple[Any, ...]]()

    def places(self) -> dict[str, Any]:
        """All that is its own, but for guards, to be encoded.

        Raises:
            Refusal: it has what no file holds.
        """
        requires, inputs = self.recorded.requires, self.recorded.inputs
        reads = [(i, self._reading(each.read)) for i, each in enumerate(inputs) if each.read]
        tied = [(r, i) for r, i in requires.python.tied if not isinstance(r.place.holder, Trained)]
        told: dict[str, Any] = {
            IN_STATE[LeaveState]: [self._state(each) for each in self.recorded.states],
            "reads": reads,
            "hooked": [*requires.inputs.hooked],
            "forms": [self._reading(each) for each in requires.python.forms],
            "tied": [(self._reading(each), index) for each, index in tied],
            IN_STATE[ChangePlace]: [self._change(each) for each in self.recorded.changes],
            "gradients": list(self._gradients(inputs)),
        }
        for mutation in self.recorded.mutations:
            tensor = inputs[mutation.index].tensor
            if tensor is not None and id(tensor) not in self._owned:
                self.holders.keep(tensor)
        self._guards = [each for each in map(self._held, requires.python.held) if each is not None]
        return told

    def guards(self, fewer: Mapping[int, int]) -> list[tuple[Any, ...]]:
        """Its guards; `fewer`: by number of a container, how many of its items no file holds."""
        told = list[tuple[Any, ...]]()
        for what, name, number, key, value, *rest in self._guards:
            less = fewer.get(number, 0) if what == "length" else 0
            told.append((what, name, number, key, value - less if less else value, *rest))
        return told

    # ---- places ------------------------------------------------------------------------------

    def _place(self, place: Location) -> tuple[Any, ...]:
        kind = ON_THE_CALL.get(type(place))
        if kind is not None:
            return kind, str(place.name), getattr(place, "index", 0), None
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
        kept = tuple([(i, each.path) for i, each in state.kept.items()])
        at, count = line_of(state.at), state.count
        return self._place(state.place), state.structure, state.first, count, at, kept, state.like

    def _change(self, change: Change) -> tuple[Any, ...]:
        """A name that each call binds to the same data.

        Raises:
            Refusal: it does more.
        """
        if change.itself or not change.repeatable:
            raise outside(f"the program changes {change.name}", change.at)
        return self._place(change.place), self._value(change.after), line_of(change.at), change.path

    # ---- what is there -----------------------------------------------------------------------

    def _held(self, held: Any) -> tuple[Any, ...] | None:
        """A guard on what the file has; None where it has it not, or reads it at each call.

        Raises:
            Refusal: the first call has made what later ones find.
        """
        if isinstance(held, ReadLocation) and held.left:
            there = "where there was none" * (held.before is MISSING)
            raise one_call(f"the program leaves another {held.name} {there}".rstrip(), held.at)
        spot = (
            self.holders.held(held) if isinstance(held, (ReadLocation, ContainerLength)) else None
        )
        if spot is None or spot in self.read:
            return None
        if isinstance(held, ContainerLength):
            return "length", str(held.name), *spot, held.before, None, False
        value = self._value(held.before, itself=held.itself or not plain(held.before))
        if not self._tells((spot[1], value)):
            return None
        now = dict.get(held.holder, held.key, MISSING) if isinstance(held.holder, dict) else MISSING
        self.holders.note(spot, now)
        return "held", str(held.name), *spot, value, line_of(held.at), held.itself

    def _tells(self, item: Any) -> bool:
        """Whether a file can hold it."""
        attempt = Attempt(Refusal)
        with attempt:
            self.encoder.item(item)
        return attempt.error is None

    def _value(self, item: Any, *, itself: bool = False) -> tuple[Any, ...]:
        """What a place holds: one of the containers, or data; `itself`: it is known by identity."""
        number = self.holders.numbers.get(id(item))
        if number is not None:
            return HOLDER, number
        pairs, form = take_apart(item)
        if form == LEAF:
            return ITEM, item
        leaves = tuple([leaf for _, leaf in pairs])
        lasting = itself or any(isinstance(x, torch.Tensor) for x in leaves)
        if type(item) in KINDS.values() and lasting and self._tells(leaves):
            # the program may know it by identity
            return HOLDER, self.holders.add(item)
        return BUILT, form, leaves

    def holder(self, number: int, read: Collection[Spot], fewer: dict[int, int]) -> tuple[Any, ...]:
        """A container with all that it holds; of one that is not all its items, those of a form.

        Args:
            number: of the container.
            read: what calls read; a file that cannot hold that is refused.
            fewer: takes how many of its items were left out.
        """
        kind, item = self.holders.kinds[number], self.holders.items[number]
        longest = item.maxlen if isinstance(item, deque) else None
        if issubclass(KINDS[kind], dict):
            pairs = ((key, each) for key, each in dict.items(item) if each is not MISSING)
            told = [(key, self._value(each)) for key, each in pairs]
            known = [
                (key, each)
                for key, each in told
                if (number, key) in read or self._tells((key, each))
            ]
            fewer[number] = len(told) - len(known)
            return kind, longest, known
        return kind, longest, [self._value(each) for each in content_of(item)]

    def _gradients(self, inputs: list[Input]) -> Iterable[tuple[int, torch.Tensor]]:
        """The gradients that the program adds to, as they are now."""
        for item in inputs:
            of = item.gradient_of
            live = of.live() if of is not None and of.argument is None else None
            if of is not None and live is not None and live.grad is not None:
                yield inputs.index(of), live.grad


def told_all(
    programs: Sequence[Recording], encoder: Encoder, owned: Iterable[int]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The Python state of the programs of a file: what they share, and what each has of its own.

    Raises:
        Refusal: there is what no file holds.
    """
    holders, owned = ContainerTable(programs), frozenset(owned)
    tellers = [StateEncoder(recorded, encoder, owned, holders) for recorded in programs]
    own = [each.places() for each in tellers]
    read = frozenset().union(*(each.read for each in tellers))
    told, fewer = list[tuple[Any, ...]](), dict[int, int]()
    while len(told) < len(holders.items):  # what one holds may be another
        told.append(tellers[0].holder(len(told), read, fewer))
    for each, teller in zip(own, tellers, strict=True):
        each["held"] = teller.guards(fewer)
    shared = {"holders": told, "objects": holders.objects, "optimizers": holders.optimizers}
    return shared, own


def _leaf(leaf: Any) -> tuple[Any, ...]:
    if leaf is OPEN:
        return ("open",)
    return ("tensor",) if isinstance(leaf, torch.Tensor) else ("is", leaf)
