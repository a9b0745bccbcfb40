"""Objects whose attributes raise, as a package that is not installed does when it is imported.

Nothing asks them for more than the program does.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

import foretrace


class Missing:
    """In the place of a package: what is asked of it raises."""

    def __getattr__(self, name: str) -> Any:
        raise ImportError(name)

    def __call__(self, *args: Any) -> Any:
        raise ImportError


class Closed(Missing):
    """What it has raises, too."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("__dict__", "__class__"):
            return object.__getattribute__(self, name)
        raise OSError(name)


class MissingKind(type):
    """The class of a class in the place of a package's."""

    def __getattr__(cls, name: str) -> Any:
        raise ImportError(name)


class OfMissing(metaclass=MissingKind):
    """Such a class."""


class Computed:
    """Properties with names that others look for."""

    @property
    def __name__(self) -> str:
        raise OSError

    @property
    def __wrapped__(self) -> Any:
        raise OSError

    @property
    def cache_info(self) -> Any:
        raise OSError


PACKAGE = Missing()
HERE = False
OBJECTS = [PACKAGE, Closed(), OfMissing, OfMissing(), Computed()]


class Optional(nn.Module):
    """Asks whether a package is there, in each place where one may be."""

    def __init__(self, item: Any) -> None:
        super().__init__()
        self.inner, self.item, self.items = nn.Linear(3, 3), item, [item]
        self.named = {"item": item}

    def forward(self, x: Tensor, *given: Any) -> Tensor:
        if HERE:
            return PACKAGE(x)
        if any(each is None for each in (PACKAGE, self.item, self.items[0], *given)):
            return x
        return self.inner(x) + (self.named["item"] is None)


def by(kind: str) -> Callable[[nn.Module, tuple[Any, ...]], Any]:
    """A cut, called."""
    tangents = {} if kind != "joint" else {"tangents": [torch.ones(2, 3)]}
    return lambda fn, args: foretrace.capture(fn, args).cut(kind)(*args, **tangents)


WAYS: dict[str, Callable[[nn.Module, tuple[Any, ...]], Any]] = {
    "export": by("export"), "joint": by("joint"),
    "Program.compile": lambda fn, args: foretrace.capture(fn, args).compile()(*args),
    "compile": lambda fn, args: foretrace.compile(fn, dynamic=True)(*args),
    "a file": lambda fn, args: foretrace.export(fn, args[:1]).module()(*args[:1]),
}  # fmt: skip


@pytest.mark.parametrize("given", [False, True], ids=["held", "given"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("item", OBJECTS, ids=lambda item: f"{type(item).__name__}")
def test_nothing_is_asked_of_them(item: Any, way: str, given: bool) -> None:
    module, x = Optional(item), torch.randn(2, 3)
    args = (x, item) if given else (x,)
    found = WAYS[way](module, args)
    assert torch.equal(found[0] if way == "joint" else found, module(x))


class Untold(NamedTuple):
    """Plain data that has no words: its class asks it for what it has not."""

    rate: float = 2.0

    def __repr__(self) -> str:
        raise AttributeError


def test_plain_data_that_cannot_be_told() -> None:
    def scaled(x: Tensor, by: Any) -> Tensor:
        return x * by.rate * KEPT.rate

    compiled, x = foretrace.compile(scaled, fullgraph=True), torch.ones(2)
    assert torch.equal(compiled(x, Untold()), x * 4)
    assert torch.equal(compiled(x, Untold(3.0)), x * 6)


KEPT = Untold()


class Silent(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        return NotImplemented


@pytest.mark.parametrize("fullgraph", [True, False])
def test_a_tensor_whose_class_answers_nothing(fullgraph: bool) -> None:
    """It is held beside the program, which asks nothing of it."""
    held = [torch.ones(2).as_subclass(Silent)]
    compiled = foretrace.compile(lambda x: x * len(held), fullgraph=fullgraph)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(2)), torch.ones(2))
    held.append(held[0])
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))


class Holding(torch.nn.Module):
    """It has such a tensor for a parameter, on which Python has set an attribute."""

    def __init__(self) -> None:
        super().__init__()
        silent = torch.ones(2).as_subclass(Silent)
        object.__getattribute__(silent, "__dict__")["mark"] = 1
        self._parameters["weight"] = silent  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        return x * 2


def test_a_parameter_whose_class_answers_nothing() -> None:
    compiled = foretrace.compile(Holding())
    with pytest.warns(UserWarning, match="Silent"):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(foretrace.Refusal, match="Silent"):
        foretrace.capture(Holding(), (torch.ones(2),))
