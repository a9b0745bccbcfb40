"""What a run has changed of what is kept; and all of it left as it was, whatever fails there."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from operator import is_
from typing import Any

from foretrace import forks, torch_api
from foretrace.errors import Attempt, Refusal
from foretrace.ir.pydata.members import MISSING
from foretrace.ir.pydata.places import Change, Contents, Entry, Place
from foretrace.ir.pydata.plain_data import plain, same
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.python_state.snapshot.objects import (
    Kept,
    KeptAttributes,
    KeptContent,
    KeptDict,
    KeptItems,
    KeptNames,
    KeptState,
    KeptTensor,
)


def put_all_back(kept: Iterable[Kept]) -> list[str]:
    """Leave everything as it was, whatever fails on the way; gives what could not be, in words.

    A step that an interrupt stopped half way is done again; the interrupt is raised in the end.
    """
    failed: list[str] = []
    interrupt: BaseException | None = None
    attempt = Attempt(BaseException)
    with torch_api.no_torch_function():
        waiting = list(kept)[::-1]
        while waiting:
            with attempt:
                while waiting:
                    waiting[-1].put_back()
                    waiting.pop()
            if attempt.error is None:
                continue
            interrupt = interrupt if isinstance(attempt.error, Exception) else attempt.error
            with attempt:
                waiting[-1].put_back()
            if attempt.error is not None:
                failed.append(f"a {type(waiting[-1].item).__name__} ({attempt.error})")
            waiting.pop()
    if interrupt is not None:
        raise interrupt
    return failed


@contextmanager
def put_back(step: Callable[[], list[str]], *, always: bool) -> Iterator[None]:
    """Do a step of putting back after the block, if it fails or always; say what cannot be done.

    A child that another thread forks inside the block does it, too.

    Raises:
        Refusal: the block ended well, and something could not be put back.
    """
    key = forks.noted(step)
    try:
        yield
    except BaseException as error:
        forks.forgotten(key)
        failed = step()
        if failed and isinstance(error, Refusal):
            error.ways = (*error.ways, left_broken(failed))
        raise
    forks.forgotten(key)
    failed = step() if always else []
    if failed:
        raise Refusal(
            "something that the program changed could not be put back",
            kind="side effect",
            do=left_broken(failed),
        )


def left_broken(failed: list[str]) -> str:
    """What to do with what is not as it was."""
    return f"make anew what could not be put back: {', '.join(failed)}"


def changes_in(kept: Kept, name: Callable[[Any], str]) -> Iterable[Change]:
    """What is other than it was: names bound anew, or the content of something, by its name."""
    if kept.intact:
        return ()
    if isinstance(kept, (KeptNames, KeptAttributes)):
        return changes_of(kept.places())
    if isinstance(kept, (KeptItems, KeptDict)) and _made_again(kept):
        return ()
    if isinstance(kept, KeptTensor) and kept.flags_intact:
        return changes_in(kept.attributes, name)
    if isinstance(kept, KeptDict):
        return content_changes(name(kept.item), kept.item, kept.before, kept.now)
    if isinstance(kept, KeptContent) and not isinstance(kept, KeptState):
        return (filled(name(kept.item), kept.item, kept.before),)
    return (Change(Place(name(kept.item), {}, None), None, rebound=False),)


def filled(name: str, item: Any, before: Any) -> Change:
    """What a container holds now that held something else before."""
    return Change(place := Contents(name, item, before), place.now, rebound=True)


def _made_again(kept: KeptItems | KeptDict) -> bool:
    """Whether it holds the same numbers and text, which may be other objects."""
    now = kept.now
    return plain(kept.before) and plain(now) and same(now, kept.before)


def changes_of(places: Iterable[Place]) -> list[Change]:
    """What is no longer as it was."""
    found: list[Change] = []
    for place in places:
        if place.changed and isinstance(place.before, dict) and not place.bound:
            found += content_changes(place.name, place.before, place.copy, place.before)
        elif place.changed:
            found.append(Change(place, place.now, place.bound))
    return found


def content_changes(
    name: str, item: dict[Any, Any], before: dict[Any, Any], now: dict[Any, Any]
) -> list[Change]:
    """The entries of a dict that are others now; all of it, if the old ones are no longer in front.

    One under the class of our own tensors is none: where a cache goes by the type of a tensor,
    eager has `torch.Tensor` in it.
    """
    if not all(map(is_, now, before)) or len(now) < len(before):
        return [filled(name, item, before)]
    keys = [key for key in now if not (isinstance(key, type) and issubclass(key, Abstract))]
    called = name.entry if isinstance(name, Called) else lambda _: name
    return changes_of(Entry(called(key), item, key, before.get(key, MISSING)) for key in keys)


class Called(str):
    """What a dict of an optimizer's is about: a parameter, by name, or a group.

    `inner`: of the dict that has one for each parameter, the names of these, by id.
    """

    __slots__ = ("inner",)

    inner: dict[int, str]

    def entry(self, key: object) -> "Called":
        """What the entry of a key is about."""
        found = Called(self.inner.get(id(key), self))
        found.inner = {}
        return found

    def of(self, *parts: object) -> str:
        """What a part of it is called: `exp_avg of layers.0.weight`."""
        what = ".".join(str(part) for part in parts if isinstance(part, str) and part)
        return f"{what} of {self}" if what else str(self)


def told_of(change: Change, path: str) -> str:
    """What a leaf of what a place holds is called; of an optimizer's, `lr of group 0`."""
    if isinstance(change.place.name, Called):
        return change.place.name.of(change.place.key, path)
    return ".".join(filter(None, (change.name, path)))


def called(name: str, inner: dict[int, str] | None = None) -> Called:
    """A dict of an optimizer's."""
    found = Called(name)
    found.inner = inner or {}
    return found
