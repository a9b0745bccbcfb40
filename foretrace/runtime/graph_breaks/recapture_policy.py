"""Whether one more capture of a program, or of a piece, is worth it (decision 045).

A capture costs as much as some calls, and it is paid back by the calls that it answers later. One
that answers none was for nothing: a list grows at each call, a number is always another.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Final

from torch import Tensor, is_grad_enabled as grad_enabled, nn

from foretrace.errors import Refusal
from foretrace.runtime.guards.broken import Broken
from foretrace.runtime.guards.guard import Of
from foretrace.runtime.guards.guarded_entry import Entry

RECAPTURES = 7
"""Captures again of a piece, after which it runs as Python: torch.compile, too, keeps eight"""
UNUSED: Mapping[Of, int] = MappingProxyType({"state": 2, "value": 2, "answer": 4, "call": 8})
"""Captures that answered no call but their own, after which there is not one more, by what the
guard is about that failed"""

RESTS, LONGER = 64, 4
"""Calls that run as Python before captures are tried again, and how many times as many each time:
a program may change for a while alone (a warm-up, the first calls of an average)"""

AGAIN = "captured again"
"""Kind of a refusal: calls like this were captured too often"""
TRIES = 4
"""Refusals of one module after which it is not tried again"""
NOT_OF_PROGRAMS = frozenset({"wrong backend"})
"""Kinds of refusals that are not about the program"""
RAISED = "raised before"
"""Kind of a refusal: the last capture raised, so this call is not captured"""
PLAIN: Final = frozenset({Tensor, nn.Parameter})
"""What answers by torch's own code; a class of the user's may have other functions"""
Key = tuple[Any, ...]
"""The kind of a call: its modes, and the types of its arguments"""


def key_of(module: nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key:
    """The kind of a call; calls of other kinds are captured again."""
    kinds = [
        (item.dtype, item.requires_grad) if type(item) in PLAIN else type(item)
        for item in ((*args, *kwargs.values()) if kwargs else args)
    ]
    return module is not None and module.training, grad_enabled(), *kinds


class Backoff:
    """For how many calls a program is not captured after it raised in a capture: more each time."""

    def __init__(self) -> None:
        self._raised = self._waits = 0

    def waits(self) -> bool:
        """Whether the call is not to be captured; it is counted."""
        waits = self._waits > 0
        self._waits -= waits
        return waits

    @contextmanager
    def unless_it_returns(self) -> Iterator[None]:
        """Wait longer, unless what runs inside returns."""
        before = self._raised, self._waits
        self._raised += 1
        self._waits = self._raised
        yield
        self._raised, self._waits = before


class Again:
    """The kinds of call that one callable was captured for."""

    def __init__(self) -> None:
        self.keys: dict[Entry, Key] = {}
        self._aborted, self._rests = 0, RESTS

    def rest(self) -> int:
        """For how many calls not to capture again, as the captures so far were not worth it."""
        self._rests, rests = self._rests * LONGER, self._rests
        self.keys = {}
        return rests

    def note(self, entry: Entry, key: Key, known: Collection[Entry]) -> None:
        """Note a capture for a call of kind `key`; `known` are the entries that are kept."""
        self.keys = {e: key for e, key in self.keys.items() if e in known}
        self.keys[entry] = key

    def raises(self, broken: Sequence[Broken]) -> bool:
        """Whether captures are aborted again and again in their middle, for what raises then."""
        self._aborted += any(each.asked is not None for each in broken)
        return self._aborted >= RECAPTURES

    def check(
        self, broken: Sequence[Broken], key: Key, known: Collection[Entry], *, many: bool
    ) -> None:
        """Refuse one more capture where those before it, for such calls, were for nothing.

        Args:
            broken: why each of those that are kept does not answer; the nearest first.
            key: what the call is like.
            known: those that are kept.
            many: whether there are too many anyway.

        Raises:
            Refusal: none of them answered a second call.
        """
        same = [e for e, other in self.keys.items() if other == key and e in known]
        unused = sum(not entry.answered for entry in same)
        if many or unused >= min(UNUSED[each.of] for each in broken):
            raise Refusal(
                f"captured {len(known)} times, and each call is unlike those: {broken[0].reason}",
                kind=AGAIN,
                at=broken[0].at,
                do="pass what changes as a tensor, or keep it out of what is captured",
            )
