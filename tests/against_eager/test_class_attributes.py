"""Attributes of classes that a program binds, however it reaches the class: each call, as eager."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.bits import differences

Made = tuple[Callable[[Tensor], Tensor], type]


class Counter:
    n = 0
    total = torch.zeros(2)

    @classmethod
    def add(cls, x: Tensor) -> Tensor:
        cls.n += 1
        cls.total = cls.total + x.detach()
        return x * cls.n + cls.total


def fresh() -> Any:
    """A class of its own for each program, with the methods of `Counter`."""
    return type("Fresh", (Counter,), {"n": 0, "total": torch.zeros(2), "kept": []})


def in_a_cell() -> Made:
    kind = fresh()

    def fn(x: Tensor) -> Tensor:
        kind.n += 1
        kind.total = kind.total + x.detach()
        return x * kind.n + kind.total

    return fn, kind


def in_a_list() -> Made:
    kinds = [fresh()]

    def fn(x: Tensor) -> Tensor:
        kinds[0].n += 1
        return x * kinds[0].n

    return fn, kinds[0]


def by_default() -> Made:
    kind = fresh()

    def fn(x: Tensor, owner: Any = kind) -> Tensor:
        owner.n += 1
        return x * owner.n

    return fn, kind


def by_a_class_method() -> Made:
    kind = fresh()
    return (lambda x: kind.add(x) * 2), kind


def bound_to_the_class() -> Made:
    kind = fresh()
    return kind.add, kind


def inherited() -> Made:
    kind = fresh()
    heir: Any = type("Heir", (kind,), {})

    def fn(x: Tensor) -> Tensor:
        heir.n += 1
        return x * heir.n + kind.n

    return fn, heir


def new_there() -> Made:
    kind = fresh()

    def fn(x: Tensor) -> Tensor:
        kind.late = getattr(kind, "late", 0) + x.detach()
        return x * kind.late

    return fn, kind


def in_a_list_of_the_class() -> Made:
    kind = fresh()

    def fn(x: Tensor) -> Tensor:
        kind.kept.append(x.detach())
        return x * len(kind.kept) + sum(kind.kept)

    return fn, kind


def of_a_module() -> Made:
    class Smoothed(nn.Module):
        n = 0
        total = torch.zeros(2)

        def forward(self, x: Tensor) -> Tensor:
            type(self).total = self.total * 0.5 + x.detach()
            self.__class__.n += 1
            return x * self.n + self.total

    return Smoothed(), Smoothed


def of_a_function() -> Made:
    class Doubled(torch.autograd.Function):
        n = 0

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            Doubled.n += 1
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 2

    return Doubled.apply, Doubled


PROGRAMS = [
    in_a_cell, in_a_list, by_default, by_a_class_method, bound_to_the_class, inherited, new_there,
    in_a_list_of_the_class, of_a_module, of_a_function,
]  # fmt: skip


def state_of(kind: Any) -> list[Any]:
    return [getattr(kind, name, None) for name in ("n", "total", "late", "kept")]


@pytest.mark.filterwarnings("ignore:.* is not captured whole")  # a list that grows is read
@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("make", PROGRAMS)
def test_each_call_is_as_eagers(make: Callable[[], Made], fullgraph: bool) -> None:
    (fn, eager), (compiled, kind) = make(), make()
    call = foretrace.compile(compiled, fullgraph=fullgraph)
    for factor in (1.0, 2.0, -1.0):
        x = torch.tensor([1.0, 0.5]) * factor
        assert not list(differences(fn(x), call(x), "result"))
        assert not list(differences(state_of(eager), state_of(kind), "state"))


@pytest.mark.parametrize("make", PROGRAMS)
def test_a_capture_leaves_the_class_as_it_was(make: Callable[[], Made]) -> None:
    fn, kind = make()
    before = vars(kind).copy()
    kept = list(before.get("kept", ()))
    foretrace.capture(fn, (torch.ones(2),))
    assert vars(kind) == before
    assert all(vars(kind)[name] is item for name, item in before.items())
    assert before.get("kept", kept) == kept


class Scaled:
    """An object among the arguments; what it multiplies by is its class's."""

    by = 2

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def forward(self) -> Tensor:
        return self.x * self.by


def test_what_the_class_of_an_argument_has_is_a_guard() -> None:
    compiled, before = foretrace.compile(lambda item: item.forward(), fullgraph=True), Scaled.by
    try:
        for Scaled.by in (2, 5, 7):
            item = Scaled(torch.ones(2))
            assert torch.equal(compiled(item), item.forward())
    finally:
        Scaled.by = before


class Registry:
    calls: ClassVar[dict[str, int]] = {}


def registered(kind: type[Registry], x: Tensor) -> Tensor:
    kind.calls["n"] = kind.calls.get("n", 0) + 1
    return x * kind.calls["n"]


def passed_on(x: Tensor) -> Tensor:
    return registered(Registry, x)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_class_that_is_passed_on(fullgraph: bool) -> None:
    """What another function changes in its containers is taken back, and each call does it."""
    Registry.calls.clear()
    foretrace.capture(passed_on, (torch.ones(2),))
    assert not Registry.calls
    fast = foretrace.compile(passed_on, fullgraph=fullgraph)
    for call in range(1, 4):
        assert torch.equal(fast(torch.ones(2)), torch.full((2,), float(call)))
        assert Registry.calls == {"n": call}


class Meta(type):
    """The attributes of it are those of its classes, too."""

    scale = 2
    made: ClassVar[list[float]] = []

    @property
    def twice(cls) -> int:
        return Meta.scale * 2


class OfMeta(metaclass=Meta):
    pass


def kept_by_the_metaclass(x: Tensor) -> Tensor:
    OfMeta.made.append(x.sum().item())
    return x * 2


def scaled_by_the_metaclass(x: Tensor) -> Tensor:
    return x * OfMeta.twice


def test_what_a_metaclass_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Meta, "made", [])
    kept = foretrace.compile(kept_by_the_metaclass, fullgraph=True)
    scaled = foretrace.compile(scaled_by_the_metaclass, fullgraph=True)
    for number in range(2, 6):
        monkeypatch.setattr(Meta, "scale", number)
        x = torch.full((2,), float(number))
        assert torch.equal(kept(x), x * 2)
        assert torch.equal(scaled(x), scaled_by_the_metaclass(x))
        assert type(Meta.scale) is int
    assert Meta.made == [4.0, 6.0, 8.0, 10.0]
    assert not kept.recaptures


class Logged(nn.Module):
    """What all objects of a class log to."""

    log: ClassVar[list[float]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.log.append(x.sum().item())
        return x * 2

    @classmethod
    def told(cls, x: Tensor) -> Tensor:
        cls.log.append(x.sum().item())
        return x * 3


@pytest.mark.parametrize("program", [Logged(), Logged.told, lambda x: Logged().told(x)])
def test_a_list_of_a_class_that_is_only_filled(program: Any) -> None:
    Logged.log.clear()
    compiled = foretrace.compile(program, fullgraph=True)
    for number in range(4):
        compiled(torch.full((2,), float(number)))
    assert Logged.log == [0.0, 2.0, 4.0, 6.0]
    assert not compiled.recaptures
