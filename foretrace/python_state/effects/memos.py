"""Memoized functions that a program calls: what stands for them while it is recorded.

A call of one is a call of the graph's, too: it gives what is kept, and counts. A run takes a result
from where it is kept, and leaves the memo as it is. What is not kept yet is computed beside the
memo; a run that changes something thereby is a first call, which runs as Python.
"""

import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FunctionType, ModuleType
from typing import Any, Final

import torch

from foretrace.errors import PACKAGE_DIR, FirstCall, Frame, Refusal
from foretrace.ir.pydata.heap_walk import walk_heap
from foretrace.ir.pydata.members import MISSING, cell_content
from foretrace.ir.pydata.memo import Memo, MemoCall
from foretrace.ir.pydata.plain_data import plain, same
from foretrace.ir.pydata.read_facts import ShownContent
from foretrace.ir.pydata.state import Change
from foretrace.ir.source.state_change_lines import Lines
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.python_state.access.monitor import AccessMonitor
from foretrace.python_state.effects.counters import is_open
from foretrace.python_state.snapshot.code_references import is_users_memo
from foretrace.python_state.snapshot.heap import HeapSnapshot, memo_in
from foretrace.python_state.snapshot.reachable import referents

Changes = Callable[[], Iterable[Change]]
BEFORE: Final = FirstCall("or, if no argument is a tensor of the program: call it once before")
"""A way out"""
MOST: Final = 20_000
"""How many objects a result may lead to"""
LEAVES = (str, bytes, int, float, bool, type(None))
WRAPPING = (staticmethod, classmethod)
"""What a class has in the place of a function that its methods call"""


class Memos:
    """The memoized functions of one run.

    Args:
        refuse: notes a refusal, in case the program catches it.
        fills: whether a memo may be called for an object that it keeps, as by a call before; not
            where a refused first call is one.
    """

    def __init__(self, refuse: Callable[[Refusal], Refusal], *, fills: bool) -> None:
        self.refuse, self.fills = refuse, fills
        self.calls = list[MemoCall]()
        """in order"""
        self._computed = dict[tuple[int, Any], Any]()
        """what the run has computed, by memo and key"""
        self._refused = dict[tuple[int, Any], Refusal]()
        """what it is refused for where that is no first call of a function of data alone"""
        self._changes: Changes = tuple
        self._counts = dict[int, Any]()
        """how often each was called before, by its id"""
        self._bound = set[int]()
        """what stands for them where they are bound, by its id"""

    @contextmanager
    def replaced(
        self,
        before: HeapSnapshot,
        outside: AccessMonitor | None,
        changes: Changes,
        lines: Callable[[], Lines],
    ) -> Iterator[None]:
        """Inside, the program finds what stands for them.

        Args:
            before: what it can reach.
            outside: watches it.
            changes: finds what the run has changed so far.
            lines: of the program.

        Raises:
            Refusal: it has called one itself, which it found by another way.
        """
        self._changes = changes
        memos = {id(each): each for each in before.memos() if is_users_memo(each)}
        self._counts = {key: each.cache_info() for key, each in memos.items()}
        places = before.places_with(memos)
        found = {id(memo_in(place.before)) for place in places}
        stand_ins = {key: self._stand_in(memos[key]) for key in found}
        if outside is not None:
            pairs = ((each, memos[key]) for key, each in stand_ins.items())
            outside.places.borrowed.update({id(one): (one, other) for one, other in pairs})
        try:
            for place in places:
                put = _put(place.before, stand_ins)
                self._bound.add(id(put))
                place.bind(put)
            yield
        finally:
            self._changes = tuple
            for place in places:
                place.bind(place.before)
        self._check_results()
        _check_uncalled(memos, self._counts, lines)

    def _check_results(self) -> None:
        """Refuse a program that changes what it was the first to compute: that is kept.

        Raises:
            Refusal: it does.
        """
        for each in self.calls:
            if each.entry is MISSING and not same(each.result, each.before):
                raise self._refused[id(each.memo), each.key]

    def reads(self) -> Iterator[ShownContent]:
        """What later calls have to find, once for each key."""
        known = {(id(each.memo), id(each.table), repr(each.key)): each for each in self.calls}
        for each in known.values():
            yield ShownContent(each.name, each.memo, each.now, each.before)

    def _stand_in(self, memo: Any) -> Any:
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            return self._called(memo, args, kwargs)

        def asked(*args: Any) -> Any:
            what = f"the program asks what functools.lru_cache keeps of {_name(memo)}, or clears it"
            raise self.refuse(self._refusal(memo, what))

        functools.update_wrapper(stand_in, memo.__wrapped__)
        vars(stand_in).update(vars(memo))
        found: Any = stand_in
        found.cache_info = found.cache_clear = asked
        found.cache_parameters = memo.cache_parameters
        return found

    def _called(self, memo: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args = tuple(map(_number, args))
        kwargs = {name: _number(each) for name, each in kwargs.items()}
        name = f"{_name(memo)}({', '.join(_words(args, kwargs))})"
        if any(isinstance(each, Abstract) for each in walk_heap([args, kwargs], _inside)):
            what = f"the program calls {name}, which is memoized, with a tensor"
            raise self.refuse(self._refusal(memo, what))
        try:
            known = Memo(memo)
        except LookupError:
            what = f"the program calls {name}, and this Python keeps its results out of sight"
            raise self.refuse(self._refusal(memo, what)) from None
        key = known.key(args, kwargs)
        entry, result = known.table.get(key, MISSING), known.result(key)
        if entry is MISSING:
            if (id(memo), key) not in self._computed:
                what = f"the program calls {name}, whose result functools.lru_cache keeps"
                self._refused[id(memo), key] = refusal = self._refusal(memo, what)
                self._computed[id(memo), key] = self._compute(refusal, memo, args, kwargs)
            result = self._computed[id(memo), key]
            entry = Memo(memo).table.get(key, MISSING)
        self.calls.append(MemoCall(name, memo, args, kwargs, key, known.table, entry, result))
        return result

    def _compute(self, refusal: Refusal, memo: Any, args: Any, kwargs: Any) -> Any:
        """A result of a function that changes nothing: plain data, or an object that is kept now.

        Such an object is another at each run of the function, so the memo is called for it now, as
        a call before the capture would.

        Raises:
            Refusal: it changes something, or what it returns leads to a tensor of the run.
        """
        before = self._stamp()
        result = Memo(memo).function(*args, **kwargs)
        if self._stamp() != before or _leads_to_the_run(result):
            raise self.refuse(refusal)
        if plain(result):
            return result
        if not self.fills:
            raise self.refuse(refusal)
        result = memo(*args, **kwargs)
        self._counts[id(memo)] = memo.cache_info()
        return result

    def _stamp(self) -> list[Any]:
        """What is changed, and how; not where one of ours is bound."""
        changes = (each for each in self._changes() if id(each.after) not in self._bound)
        return [(each.place.identity, _content(each.after)) for each in changes]

    def _refusal(self, memo: Any, what: str) -> Refusal:
        frame = sys._getframe(1)
        while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE_DIR):
            frame = frame.f_back
        at = Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_qualname)
        do = f"call {_name(memo)}.__wrapped__ in the program, which keeps nothing", BEFORE
        return Refusal(what, kind="side effect", at=at, do=do)


def _check_uncalled(
    memos: dict[int, Any], counts: dict[int, Any], lines: Callable[[], Lines]
) -> None:
    """Refuse a run that has called one itself.

    Raises:
        Refusal: it has.
    """
    for key, each in memos.items():
        if each.cache_info() != counts[key] and not _gives_nothing(each):
            raise Refusal(
                f"the program calls {_name(each)}, which functools.lru_cache has memoized,"
                " by a way that is not followed",
                kind="side effect",
                at=lines().reaching(partial(_leads_to, each)),
                do="call it by its name",
            )


def _gives_nothing(memo: Any) -> bool:
    """Whether all that it keeps is None: it is called for what it does, such as a warning."""
    try:
        return all(each is None for each in Memo(memo).results())
    except LookupError:
        return False


def _leads_to_the_run(result: Any) -> bool:
    """Whether an object leads to a tensor or an open number of the run, or to more than is seen."""
    seen = dict[int, Any]()
    found = walk_heap([result], _referents, most=MOST, leaves=LEAVES, seen=seen)
    return any(isinstance(each, Abstract) or is_open(each) for each in found) or len(seen) >= MOST


def _referents(item: Any) -> Iterable[Any]:
    if isinstance(item, (type, ModuleType, torch.Tensor)):
        return ()
    if isinstance(item, FunctionType):
        return (*map(cell_content, item.__closure__ or ()), item.__defaults__, item.__kwdefaults__)
    return referents(item)


def _put(holds: Any, stand_ins: dict[int, Any]) -> Any:
    """What stands for what a place holds."""
    found = stand_ins[id(memo_in(holds))]
    if isinstance(holds, WRAPPING):
        return type(holds)(found)
    return property(found) if isinstance(holds, property) else found


def _number(item: Any) -> Any:
    """Where a memo looks a size up, it is a number, which a guard fixes."""
    return int(item) if isinstance(item, torch.SymInt) else item


def _content(item: Any) -> Any:
    return [*map(_content, item)] if type(item) in (list, tuple) else id(item)


def _inside(item: Any) -> Iterable[Any]:
    if isinstance(item, dict):
        return (*item, *item.values())
    return item if isinstance(item, (list, tuple, set, frozenset)) else ()


def _leads_to(memo: Any, item: Any) -> bool:
    return any(each is memo for each in walk_heap([item], _inside, depth=3))


def _name(memo: Any) -> str:
    return str(getattr(memo, "__qualname__", "a function")).rpartition(".")[2]


def _words(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[str]:
    """The arguments in a few words each."""
    for each in args:
        yield f"{each!r:.40}" if plain(each) else type(each).__name__
    yield from (f"{name}=..." for name in kwargs)
