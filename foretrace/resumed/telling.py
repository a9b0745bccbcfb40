"""What a program reads and leaves of Python's state, told in a file and made anew.

Optimizers, counters, caches: a file has them as data. What the program has found of them, and its
graph has as constants, is a guard on that data, as it was one on the objects.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import torch

from foretrace.errors import Attempt, Refusal, line_of
from foretrace.ir.members import MISSING
from foretrace.ir.program import Input, Recorded
from foretrace.ir.requirements import (
    OPEN,
    Change,
    Contents,
    Held,
    HeldLength,
    OnArguments,
    OnGradient,
    OnInput,
    Place,
    State,
    StateRead,
    content_of,
)
from foretrace.ir.structure import LEAF, take_apart
from foretrace.records.encode import Encoder
from foretrace.resumed.holders import KINDS, Holders
from foretrace.resumed.objects import Trained
from foretrace.resumed.unsaved import one_call, outside

ON_THE_CALL: Mapping[type[Place], str] = MappingProxyType(
    {OnInput: "input", OnGradient: "gradient", OnArguments: "arguments"}
)
"""Places that each call has of its own"""
ITEM, BUILT, HOLDER = "item", "built", "holder"
ENTRY, CONTENT = "entry", "content"


class Told:
    """Tells the Python state of one program.

    Args:
        recorded: the program.
        encoder: tells items.
        owned: ids of tensors that the modules of the file have.
    """

    def __init__(self, recorded: Recorded, encoder: Encoder, owned: Iterable[int]) -> None:
        self.recorded, self.encoder = recorded, encoder
        self.holders = Holders(recorded)
        self._owned = frozenset(owned)
        self._read = set[tuple[int, Any]]()
        self._fewer = dict[int, int]()
        """by number of a container: how many of its items no file holds"""

    def all(self) -> dict[str, Any]:
        """All of it, to be encoded.

        Raises:
            Refusal: it has what no file holds.
        """
        requires, inputs = self.recorded.requires, self.recorded.inputs
        reads = [(i, self._reading(each.read)) for i, each in enumerate(inputs) if each.read]
        told: dict[str, Any] = {
            "states": [self._state(each) for each in requires.states],
            "reads": reads,
            "forms": [self._reading(each) for each in requires.forms],
            "tied": [
                (self._reading(each), index)
                for each, index in requires.tied
                if not isinstance(each.place.holder, Trained)
            ],
            "changed": [self._change(each) for each in requires.changed],
        }
        for mutation in self.recorded.mutations:
            tensor = inputs[mutation.index].tensor
            if tensor is not None and id(tensor) not in self._owned:
                self.holders.keep(tensor)
        held = [each for each in map(self._held, requires.held) if each is not None]
        told["holders"] = self._holders()
        told["held"] = [self._of_told(each) for each in held]
        told |= {
            "hooked": [*requires.hooked], "gradients": list(self._gradients(inputs)),
            "objects": self.holders.objects, "optimizers": self.holders.optimizers,
        }  # fmt: skip
        return told

    # ---- places ------------------------------------------------------------------------------

    def _place(self, place: Place) -> tuple[Any, ...]:
        kind = ON_THE_CALL.get(type(place))
        if kind is not None:
            return kind, str(place.name), getattr(place, "index", 0), None
        number, key = self.holders.spot(place)
        return CONTENT if isinstance(place, Contents) else ENTRY, str(place.name), number, key

    def _reading(self, read: StateRead) -> tuple[Any, ...]:
        place = self._place(read.place)
        self._read.add((place[2], place[3]))
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
        if isinstance(held, Held) and held.left:
            there = "where there was none" * (held.before is MISSING)
            raise one_call(f"the program leaves another {held.name} {there}".rstrip(), held.at)
        spot = self.holders.held(held) if isinstance(held, (Held, HeldLength)) else None
        if spot is None or spot in self._read:
            return None
        if isinstance(held, HeldLength):
            return "length", str(held.name), *spot, held.before, None, False
        value = self._value(held.before)
        if not self._tells((spot[1], value)):
            return None
        now = dict.get(held.holder, held.key, MISSING) if isinstance(held.holder, dict) else MISSING
        self.holders.note(spot, now)
        return "held", str(held.name), *spot, value, line_of(held.at), held.itself

    def _of_told(self, told: tuple[Any, ...]) -> tuple[Any, ...]:
        """The guard; of a length, without the items that no file holds."""
        what, name, number, key, value, *rest = told
        fewer = self._fewer.get(number, 0) if what == "length" else 0
        return what, name, number, key, value - fewer if fewer else value, *rest

    def _tells(self, item: Any) -> bool:
        """Whether a file can hold it."""
        attempt = Attempt(Refusal)
        with attempt:
            self.encoder.item(item)
        return attempt.error is None

    def _value(self, item: Any) -> tuple[Any, ...]:
        """What a place holds: one of the containers, or data."""
        number = self.holders.numbers.get(id(item))
        if number is not None:
            return HOLDER, number
        pairs, form = take_apart(item)
        if form == LEAF:
            return ITEM, item
        leaves = tuple([leaf for _, leaf in pairs])
        lasting = type(item) in KINDS.values() and any(isinstance(x, torch.Tensor) for x in leaves)
        if lasting and self._tells(leaves):  # the program may know it by identity
            return HOLDER, self.holders.add(item)
        return BUILT, form, leaves

    def _holders(self) -> list[tuple[Any, ...]]:
        """All containers; what one holds may be another."""
        told, items = list[tuple[Any, ...]](), self.holders.items
        while len(told) < len(items):
            number = len(told)
            told.append(self._holder(self.holders.kinds[number], number, items[number]))
        return told

    def _holder(self, kind: str, number: int, item: Any) -> tuple[Any, ...]:
        """A container with all that it holds; of one that is not all its items, those of a form."""
        longest = item.maxlen if isinstance(item, deque) else None
        if issubclass(KINDS[kind], dict):
            pairs = ((key, each) for key, each in dict.items(item) if each is not MISSING)
            told = [(key, self._value(each)) for key, each in pairs]
            known = [(key, each) for key, each in told if (number, key) in self._read
                     or self._tells((key, each))]  # fmt: skip
            self._fewer[number] = len(told) - len(known)
            return kind, longest, known
        return kind, longest, [self._value(each) for each in content_of(item)]

    def _gradients(self, inputs: list[Input]) -> Iterable[tuple[int, torch.Tensor]]:
        """The gradients that the program adds to, as they are now."""
        for item in inputs:
            of = item.gradient_of
            live = of.live() if of is not None and of.argument is None else None
            if of is not None and live is not None and live.grad is not None:
                yield inputs.index(of), live.grad


def _leaf(leaf: Any) -> tuple[Any, ...]:
    if leaf is OPEN:
        return ("open",)
    return ("tensor",) if isinstance(leaf, torch.Tensor) else ("is", leaf)
