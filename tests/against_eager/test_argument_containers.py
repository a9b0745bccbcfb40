"""Programs that change containers and objects among their arguments: which is which afterwards.

Each is drawn: nested lists, dicts and objects, some at two places, and statements that fill, empty,
swap, replace, share and return them. Values and identities are held against eager's, call by call.
"""

import random
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import foretrace
from foretrace import Refusal

SEEDS = range(60)
CALLS = 3


@dataclass
class Cache:
    """An object of the user's that holds tensors."""

    rows: list[Any] = field(default_factory=list)
    last: Any = None


class Named(dict[str, Any]):
    """A dict of a class of the user's."""


KEPT: list[Any] = [None]
"""What the programs store"""


def make(draw: random.Random, n: int, depth: int = 0) -> Any:
    """A nested argument; `n` makes its values."""
    kind = draw.choice(["list", "dict", "object", "cache", "tuple", "deque", "ordered", "named"])
    if depth > 1 or draw.random() < 0.2:
        return torch.full((2,), float(n + draw.randrange(5)))
    items = [make(draw, n, depth + 1) for _ in range(draw.randrange(1, 4))]
    items.append(torch.full((2,), float(n)))
    if draw.random() < 0.4:
        items.append(draw.choice(items))
    keys = [f"k{i}" for i in range(len(items))]
    made: dict[str, Callable[[], Any]] = {
        "list": lambda: items,
        "dict": lambda: dict(zip(keys, items, strict=True)),
        "object": lambda: SimpleNamespace(**dict(zip(keys, items, strict=True))),
        "cache": lambda: Cache(items, items[0]),
        "tuple": lambda: tuple(items),
        "deque": lambda: deque(items),
        "ordered": lambda: OrderedDict(zip(keys, items, strict=True)),
        "named": lambda: Named(zip(keys, items, strict=True)),
    }
    return made[kind]()


def inside(item: Any) -> list[tuple[Any, Any]]:
    if isinstance(item, dict):
        return [*item.items()]
    if isinstance(item, (list, tuple, deque)):
        return [*enumerate(item)]
    return [*vars(item).items()] if isinstance(item, (Cache, SimpleNamespace)) else []


def every(tree: Any) -> Iterator[Any]:
    """The containers in it, each once, in order."""
    seen, waiting = set[int](), [tree]
    while waiting:
        item = waiting.pop(0)
        if id(item) not in seen and not isinstance(item, torch.Tensor) and inside(item):
            seen.add(id(item))
            yield item
            waiting += [each for _, each in inside(item)]


def program(seed: int) -> Callable[..., Any]:
    """A function of arguments; which statements it has is drawn by the seed alone."""

    def run(*args: Any) -> Any:
        draw, x = random.Random(seed), args[0]
        for _ in range(draw.randrange(1, 6)):
            places = [each for each in every(args) if not isinstance(each, tuple)]
            if places:
                change(draw, draw.choice(places), places, x)
        found = [each for each in every(args) if each is not args]
        results = [draw.choice(found)] if found and draw.random() < 0.5 else []
        total = sum((leaf for leaf in tensors(args)), torch.zeros(2))
        if found and draw.random() < 0.2:
            KEPT[0] = draw.choice(found)
        return total, *results

    return run


def change(draw: random.Random, place: Any, places: list[Any], x: Any) -> None:
    new = [x + draw.randrange(9), [x * 2], {"n": x}, (x - 1,)]
    before = [each for each in places if not leads_to(each, place)]
    items = draw.choice([new, before or new])
    item = draw.choice(items)
    way = draw.randrange(4)
    if isinstance(place, (list, deque)):
        if way == 0 or not place:
            place.append(item)
        elif way == 1:
            place[draw.randrange(len(place))] = item
        elif way == 2:
            place.append(place[0])
            del place[0]
        else:
            place.pop()
    elif isinstance(place, dict):
        keys = [*place]
        if way == 0 or not keys:
            place[f"new{draw.randrange(3)}"] = item
        elif way == 1:
            place[draw.choice(keys)] = item
        elif way == 2:
            one, other = draw.choice(keys), draw.choice(keys)
            place[one], place[other] = place[other], place[one]
        else:
            del place[draw.choice(keys)]
    else:
        names = [*vars(place)]
        setattr(place, draw.choice(names) if way < 3 and names else "more", item)


def leads_to(item: Any, place: Any) -> bool:
    return any(each is place for each in every(item))


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    for _, each in inside(tree):
        yield from tensors(each)


def picture(*trees: Any) -> Any:
    """The values, and by numbers which containers and tensors are one object."""
    numbers, alive = dict[int, int](), list[Any]()

    def of(item: Any) -> Any:
        if not isinstance(item, torch.Tensor) and not inside(item) and not hasattr(item, "__len__"):
            return repr(item) if not vars_of(item) else (type(item).__name__, "empty")
        if isinstance(item, tuple):  # what it holds is all that it is
            return "tuple", [of(each) for each in item]
        again = id(item) in numbers
        number = numbers.setdefault(id(item), len(numbers))
        alive.append(item)
        if isinstance(item, torch.Tensor):
            return number, item.tolist()
        name = type(item).__name__
        return number if again else (number, name, [(key, of(each)) for key, each in inside(item)])

    def vars_of(item: Any) -> bool:
        return isinstance(item, (Cache, SimpleNamespace))

    return [of(tree) for tree in trees]


def drawn(seed: int, n: int) -> list[Any]:
    """The arguments of a call."""
    draw = random.Random(seed)
    args = [torch.full((2,), float(n)), *(make(draw, n) for _ in range(draw.randrange(1, 4)))]
    if draw.random() < 0.5:
        args.append(draw.choice(args[1:]))
    return args


def called(function: Callable[..., Any], seed: int, n: int) -> Any:
    """The picture of what a call leaves: of what was there, arguments, results, what is kept."""
    draw = random.Random(seed)
    args = [torch.full((2,), float(n)), *(make(draw, n) for _ in range(draw.randrange(1, 4)))]
    if draw.random() < 0.5:
        args.append(draw.choice(args[1:]))
    there, KEPT[0] = [*every(args)], None
    results = function(*args)
    return picture(there, args, results, KEPT[0])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("whole", [False, True], ids=["pieces", "whole"])
@pytest.mark.parametrize("seed", SEEDS)
def test_each_container_is_what_it_is_in_eager(seed: int, whole: bool) -> None:
    eager, ours = program(seed), foretrace.compile(program(seed), fullgraph=whole)
    for n in range(CALLS):
        expected = called(eager, seed, n)
        assert called(ours, seed, n) == expected


@pytest.mark.one_in(3)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_file_leaves_the_same(seed: int, tmp_path: Path) -> None:
    args = drawn(seed, 0)
    with suppress(Refusal):
        foretrace.capture(program(seed), tuple(args)).save(tmp_path / "it.fte")
        loaded = foretrace.load(tmp_path / "it.fte", classes=[Cache, Named, SimpleNamespace])
        sides = [called(each, seed, 1)[:-1] for each in (loaded, program(seed))]
        assert sides[0] == sides[1]  # a file has its own of what the program stores


def swaps(d: dict[str, Any], x: Tensor) -> Tensor:
    d["a"], d["b"] = d["b"], d["a"]
    return x + 1


def replaces(d: dict[str, Any], x: Tensor) -> Tensor:
    d["a"] = [*d["a"], x * 2]
    return x + 1


def shares(d: dict[str, Any], x: Tensor) -> Tensor:
    d["c"] = d["a"]
    d["a"].append(x)
    return x + len(d["c"])


def takes_out(d: dict[str, Any], x: Tensor) -> Tensor:
    d.pop("a").append(x * 3)
    return x + 1


def takes_and_returns(d: dict[str, Any], x: Tensor) -> list[Tensor]:
    out: list[Tensor] = d["a"]
    out.append(x)
    d["a"] = []
    return out


@pytest.mark.parametrize("fn", [swaps, replaces, shares, takes_out, takes_and_returns])
def test_what_a_dict_had_keeps_its_own_content(fn: Callable[..., Tensor]) -> None:
    compiled = foretrace.compile(fn, fullgraph=True)
    for n in range(CALLS):
        sides = list[Any]()
        for each in (fn, compiled):
            x = torch.arange(2.0) + n
            one, other = [x], [x, x]
            d = {"a": one, "b": other}
            sides.append(picture((one, other), d, each(d, x)))
        assert sides[0] == sides[1]
    assert not compiled.recaptures


def asks(one: list[Tensor], other: list[Tensor]) -> Tensor:
    return one[0] * 2 if one is other else other[0] * 3


def test_which_arguments_are_one_list_is_a_guard() -> None:
    compiled = foretrace.compile(asks, fullgraph=True)
    for twice in (False, True, False, True):
        one = [torch.ones(2)]
        other = one if twice else [torch.ones(2)]
        assert torch.equal(compiled(one, other), asks(one, other))
    assert len(compiled.recaptures) == 1
    assert "one container" in str(compiled.recaptures[0])
    cut = foretrace.capture(asks, (one, one)).cut("export")
    assert torch.equal(cut(one, one), asks(one, one))
    with pytest.raises(Refusal, match="nested in another way"):
        cut(one, [torch.ones(2)])
