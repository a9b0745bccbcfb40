"""`int`, `float`, `min`, `max`, `type` as programs call them, of open numbers, too."""

import builtins
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def bound(
    places: Iterable[tuple[dict[str, Any], str]], **reads: Callable[[Any], Any]
) -> Iterator[None]:
    """Names of modules stand for such classes inside.

    Args:
        places: globals, and the names that stand for Python's own in them.
        reads: by name, the number that is in what is converted: open, or as Python takes it; of a
            function, what it gives.
    """
    put, created = list[tuple[dict[str, Any], str]](), dict[str, Any]()
    try:
        for space, name in places:
            if name not in created:
                kind = vars(builtins)[name]
                like = _like if isinstance(kind, type) and kind is not type else Chosen
                created[name] = like(kind, reads[name])
            space[name] = created[name]
            put.append((space, name))
        yield
    finally:
        for space, name in put:
            space.pop(name, None)


def _like(kind: type, read: Callable[[Any], Any]) -> type:
    return Like(kind.__name__, (kind,), {"__module__": kind.__module__, "ft": (kind, read)})


class Chosen:
    """A function that gives what another one gives, and open numbers as they are."""

    def __init__(self, function: Callable[..., Any], read: Callable[..., Any]) -> None:
        self.function, self.read = function, read

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.read(self.function, *args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return other is self.function or other is self

    def __hash__(self) -> int:
        return hash(self.function)

    def __instancecheck__(self, item: Any) -> bool:
        return isinstance(item, self.function)  # type: ignore[arg-type]

    def __subclasscheck__(self, other: type) -> bool:
        return issubclass(other, self.function)  # type: ignore[arg-type]

    def __getitem__(self, item: Any) -> Any:
        return self.function[item]  # type: ignore[index]


class Like(type):
    """A class that gives what another one gives, and open numbers as they are."""

    ft: tuple[type, Callable[[Any], Any]]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        kind, read = cls.ft
        number = read(args[0]) if len(args) == 1 and not kwargs else None
        if issubclass(type(number), (torch.SymInt, torch.SymFloat)) and isinstance(number, kind):
            return number
        return kind(*args, **kwargs)

    def __instancecheck__(cls, item: Any) -> bool:
        return isinstance(item, cls.ft[0])

    def __subclasscheck__(cls, other: type) -> bool:
        return issubclass(other, cls.ft[0])

    def __eq__(cls, other: object) -> bool:
        return other is cls.ft[0] or other is cls

    def __hash__(cls) -> int:
        return hash(cls.ft[0])
