"""Snapshots of what Python does not see: states of generators, numbers of arrays, what C keeps.

A generator is in another state while the program runs than before and after: so that a program is
found that seeds it with the state in which it is, or ends in the one in which it began.
"""

import array
import contextvars
import os
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

import torch

from foretrace.arrays import as_plain, numpy
from foretrace.ir.pydata.members import MISSING
from foretrace.ir.pydata.plain_data import other_state, same_state
from foretrace.python_state.snapshot.objects import Snapshot, all_are

OUT_OF_SIGHT: Final = frozenset({
    "zlib", "_bz2", "_lzma", "_csv", "_hashlib", "_md5", "_sha1", "_sha2", "_sha256", "_sha512",
    "_sha3", "_blake2", "_hmac",
})  # fmt: skip
"""Modules whose objects keep in C what is neither read nor written back: compressors, hashes"""


class Way(NamedTuple):
    """How a state that Python does not see is read, and written."""

    read: Callable[[Any], Any]
    write: Callable[[Any, Any], object]
    same: Callable[[Any, Any], bool] = same_state
    other: Callable[[Any], Any] | None = None
    """another state, by one; None where a run has the same"""
    inside: Callable[[Any], Iterable[Any]] = lambda state: ()
    """the objects in a state"""


class StateSnapshot(Snapshot):
    """What Python does not see, such as a generator's state."""

    __slots__ = ("during", "way")

    def __init__(self, item: Any, way: Way) -> None:
        self.item, self.way, self.before = item, way, way.read(item)
        self.during = self.before
        """the state in which the run finds it"""

    @property
    def intact(self) -> bool:
        """As `Snapshot` has it."""
        return self.way.same(self.way.read(self.item), self.before)

    @property
    def used(self) -> bool:
        """Whether it is in another state than the run found."""
        return not self.way.same(self.way.read(self.item), self.during)

    def exchange(self) -> None:
        """Leave it in another state until `put_back`."""
        if self.way.other is not None:
            self.way.write(self.item, other := self.way.other(self.before))
            self.during = other

    def _write(self) -> None:
        self.way.write(self.item, self.before)


def _refill(item: Any, content: Any) -> None:
    item[:] = content


def _in_thread(local: Any) -> dict[str, Any]:
    return dict(vars(local))


def _put_in_thread(local: Any, names: dict[str, Any]) -> None:
    space = vars(local)
    space.clear()
    space.update(names)


def _same_items(now: dict[Any, Any], before: dict[Any, Any]) -> bool:
    return list(now) == list(before) and all_are([*now.values()], [*before.values()])


def _put_environment(environment: Any, names: dict[str, str]) -> None:
    for name in set(environment) - names.keys():
        del environment[name]
    environment.update(names)


def _put_value(variable: Any, value: Any) -> None:
    """Set it, if it was set; the run has a copy of the context, so that nothing else is to do."""
    if value is not MISSING:
        variable.set(value)


SEEDING: Final = frozenset({"seed", "setstate", "set_state"})
"""Names by which code gives a generator of Python's, or numpy's, a state"""
STATES: dict[type, Way] = {
    torch.Generator: Way(torch.Generator.get_state, torch.Generator.set_state),
    random.Random: Way(random.Random.getstate, random.Random.setstate, other=other_state),
    bytearray: Way(bytes, _refill),
    array.array: Way(lambda each: each[:], _refill),
    threading.local: Way(_in_thread, _put_in_thread, _same_items, inside=dict.values),
    contextvars.ContextVar: Way(
        lambda each: each.get(MISSING),
        _put_value,
        lambda now, before: now is before,
        inside=lambda value: (value,),
    ),
    type(os.environ): Way(dict, _put_environment),
}


def states() -> Mapping[type, Way]:
    """How the state of generators and the content of arrays is kept, by type; numpy's if loaded."""
    return _with_numpy(numpy())


def way_of(item: Any) -> Way | None:
    """How the state of an object is kept; None where it has none that can be read.

    Nor has the generator behind `random.random` and `numpy.random.rand`: `rng.py` keeps theirs.
    """
    if isinstance(item, random.SystemRandom) or any(item is each for each in shared_generators()):
        return None
    return next((way for kind, way in states().items() if isinstance(item, kind)), None)


def shared_generators() -> tuple[object, ...]:
    """The generators behind `random.random` and `numpy.random.rand`, which every thread shares.

    And the function that seeds numpy's, which is bound to nothing (numpy 1.26 to 2.4).
    """
    loaded, of_python = numpy(), getattr(random.seed, "__self__", None)
    if loaded is None:
        return (of_python,)
    return of_python, loaded.random.rand.__self__, loaded.random.seed


@cache
def _with_numpy(np: Any) -> Mapping[type, Way]:
    if np is None:
        return STATES
    drawing, array_type = np.random.RandomState, np.ndarray
    return STATES | {
        drawing: Way(drawing.get_state, drawing.set_state, other=other_state),
        np.random.Generator: Way(
            lambda each: each.bit_generator.state,
            lambda each, state: setattr(each.bit_generator, "state", state),
            other=other_state,
        ),
        array_type: Way(
            lambda each: as_plain(each).copy(),
            lambda each, content: as_plain(each).__setitem__(..., content),
        ),
    }
