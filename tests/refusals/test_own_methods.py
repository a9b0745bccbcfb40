"""A class of the user's may give any method another meaning: none is called behind its back."""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.exporting import as_module

METHODS = (
    "__len__", "__repr__", "__str__", "__format__", "__iter__", "__reversed__", "__contains__",
    "__getitem__", "__setitem__", "__eq__", "__ne__", "__bool__", "__copy__", "__deepcopy__",
    "__reduce_ex__", "keys", "values", "items", "get", "copy", "index", "count",
)  # fmt: skip
X = torch.linspace(-1, 1, 8).view(2, 4)


class Pair(NamedTuple):
    first: int
    second: float


KINDS = (tuple, list, dict, set, frozenset, OrderedDict, defaultdict, deque, Pair)
ENTRIES: dict[str, Callable[..., Any]] = {
    "capture": lambda fn, args: foretrace.capture(fn, args).cut("export")(*args),
    "compile": lambda fn, args: [foretrace.compile(fn, fullgraph=True)(*args) for _ in range(2)],
    "export": lambda fn, args: foretrace.export(as_module(fn), args).module()(*args),
    "aot": lambda fn, args: foretrace.aot_export_module(as_module(fn), args, trace_joint=False),
}


def _refuse(*args: object, **kwargs: object) -> NoReturn:
    raise NotImplementedError("a method of the user's class was called")


def hostile(kind: type, **more: object) -> Any:
    """The type with every method refusing."""
    return type(f"Hostile{kind.__name__}", (kind,), {**dict.fromkeys(METHODS, _refuse), **more})


def made(kind: Any) -> Any:
    """One that holds data and an object."""
    if kind is Pair:  # it is data: told in a reason, and hashed
        methods = {name: vars(tuple)[name] for name in ("__repr__", "__hash__")}
        return tuple.__new__(hostile(Pair, **methods), (1, 2.0))
    if issubclass(kind, dict):
        found = hostile(kind)()
        dict.__setitem__(found, "a", object())
        return found
    return hostile(kind)([1, (2, "b")])


class Silent(nn.Linear):
    """A module that cannot be told, counted or compared."""

    extra_repr = __repr__ = __len__ = __iter__ = __contains__ = __getitem__ = __bool__ = _refuse  # type: ignore[assignment]


class Holds(nn.Module):
    def __init__(self, item: object) -> None:
        super().__init__()
        self.item, self.inner = item, Silent(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * (2 if issubclass(type(self.item), tuple) else 3)


def closing_over(item: object) -> Callable[[Tensor], Tensor]:
    return lambda x: x * (2 if issubclass(type(item), tuple) else 3)


@pytest.mark.parametrize("entry", ENTRIES)
@pytest.mark.parametrize("holder", [Holds, closing_over])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_of_containers(kind: type, holder: Callable[..., Any], entry: str) -> None:
    ENTRIES[entry](holder(made(kind)), (X,))


@pytest.mark.parametrize("entry", ENTRIES)
def test_of_modules(entry: str) -> None:
    ENTRIES[entry](Silent(4, 4), (X,))


@pytest.mark.parametrize("entry", ["capture", "compile"])
@pytest.mark.parametrize("kind", KINDS[:-1], ids=lambda kind: kind.__name__)
def test_of_arguments(kind: type, entry: str) -> None:
    """Of those that torch's pytree takes for leaves."""
    ENTRIES[entry](lambda x, item: x * 2, (X, made(kind)))
