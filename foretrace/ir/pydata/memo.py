"""What `functools.cache` and `lru_cache` keep of a function's results, looked at without a call."""

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from foretrace.ir.pydata.members import MISSING
from foretrace.ir.pydata.plain_data import plain, same, snapshot


class Memo:
    """The results that a memoized function keeps.

    Each key leads to a result, or where the number of results is bounded to a link, which is
    another one when the result is computed again. What the collector knows is in the order of
    `lru_cache_tp_traverse` of CPython 3.11 to 3.14: the class, a key, a result and a class for each
    link, the table, the function, the mark between positional arguments and others.

    Raises:
        LookupError: this Python keeps them otherwise.
    """

    def __init__(self, memo: Any) -> None:
        parameters = memo.cache_parameters()
        self.bounded, self.typed = parameters["maxsize"] is not None, parameters["typed"]
        self._found = gc.get_referents(memo)
        self._links = 3 * memo.cache_info().currsize if self.bounded else 0
        table, function, self._mark = self._found[1 + self._links : 4 + self._links]
        if type(table) is not dict or not callable(function):
            raise LookupError("no table of results")
        self.table: dict[Any, Any] = table
        self.function: Any = function

    def key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The key of a call. Source: lru_cache_make_key."""
        if not self.typed and not kwargs:
            return args[0] if len(args) == 1 and type(args[0]) in (str, int) else args
        key = args
        if kwargs:
            key = (*key, self._mark, *(part for pair in kwargs.items() for part in pair))
        return (*key, *map(type, args), *map(type, kwargs.values())) if self.typed else key

    def result(self, key: Any) -> Any:
        """The result under a key; MISSING if there is none."""
        if not self.bounded or key not in self.table:
            return self.table.get(key, MISSING)
        keys, results = self._found[1 : 1 + self._links : 3], self._found[2 : 2 + self._links : 3]
        pairs = zip(keys, results, strict=True)
        return next((each for known, each in pairs if known == key), MISSING)

    def results(self) -> Iterator[Any]:
        """All results."""
        yield from self._found[2 : 2 + self._links : 3] if self.bounded else self.table.values()


@dataclass(slots=True, eq=False)
class MemoCall:
    """A call of a memoized function: what it gave, which each later call has to find again."""

    name: str
    memo: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    key: Any
    table: dict[Any, Any]
    entry: Any
    """what the table has for it; MISSING where the run has computed it, and changed nothing"""
    result: Any
    before: Any = None
    """the result: plain data as a copy"""

    def __post_init__(self) -> None:
        self.before = snapshot(self.result) if plain(self.result) else self.result

    def __call__(self) -> Any:
        """Call it, as the program does: the memo counts, and notes which keys are in use."""
        return self.memo(*self.args, **self.kwargs)

    def now(self, memo: Any = None) -> Any:
        """What a call would give: `before`, or what there is in its place."""
        entry = self.table.get(self.key, MISSING)
        if entry is MISSING and self.entry is MISSING:
            return self.before
        if entry is self.entry and plain(self.before):
            return self.before if same(self.result, self.before) else self.result
        return self._other(entry)

    def _other(self, entry: Any) -> Any:
        """The same where the entry is another one than the run found."""
        if entry is self.entry:
            return self.before
        result = MISSING if entry is MISSING else Memo(self.memo).result(self.key)
        equal = plain(result) and plain(self.before) and same(result, self.before)
        if self.entry is MISSING and equal:  # a call has filled it since
            self.entry, self.result = entry, result
            return self.before
        return result
