"""Memoized functions that a program calls: results, counts and what their first calls change."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.bits import same_bits

Memoize = Callable[[Callable[..., Any]], Any]
HOW: dict[str, Memoize] = {
    "cache": functools.cache,
    "lru_cache": functools.lru_cache(maxsize=8),
    "typed": functools.lru_cache(maxsize=8, typed=True),
}
ARGUMENTS = (1, 1, 2, 1, 2, 3, 3, 1)


class Made:
    """A program, its memo and what it changes."""

    def __init__(self, memoize: Memoize) -> None:
        self.calls, self.scale = 0, 2.0
        self.memo = memoize(self.kept)

    def kept(self, n: int, *, twice: bool = False) -> Any:
        raise NotImplementedError

    def __call__(self, x: Tensor, n: int) -> Tensor:
        raise NotImplementedError


class Counting(Made):
    def kept(self, n: int, *, twice: bool = False) -> Any:
        self.calls += 1
        return n + 1

    def __call__(self, x: Tensor, n: int) -> Tensor:
        found: Tensor = x * self.memo(n) + self.calls
        return found


class Pure(Made):
    def kept(self, n: int, *, twice: bool = False) -> Any:
        return [n, twice]

    def __call__(self, x: Tensor, n: int) -> Tensor:
        found: Tensor = x * self.memo(n)[0] + self.memo(n, twice=True)[1]
        return found


class Mask(Made):
    """A tensor that is kept has what a global was when it was made."""

    def kept(self, n: int, *, twice: bool = False) -> Any:
        return torch.ones(3) * n * self.scale

    def __call__(self, x: Tensor, n: int) -> Tensor:
        found: Tensor = x + self.memo(n)
        self_scale = self.scale
        return found * self_scale


class Filled(Made):
    """What is kept is a list that the program fills."""

    def kept(self, n: int, *, twice: bool = False) -> Any:
        return [1.0]

    def __call__(self, x: Tensor, n: int) -> Tensor:
        found = self.memo(n)
        found.append(2.0)
        return x * sum(found)


class Recipe:
    """An object without a class of its own for equality."""

    def __init__(self, n: int, parts: list[float]) -> None:
        self.n, self.parts = n, parts


class Recipes(Made):
    """What is kept is an object, of which there is one for each argument."""

    def kept(self, n: int, *, twice: bool = False) -> Any:
        return Recipe(n, [0.5, n])

    def __call__(self, x: Tensor, n: int) -> Tensor:
        same = self.memo(n) is self.memo(n)
        found: Tensor = x * self.memo(n).n + sum(self.memo(n).parts) * same
        return found


class Nested(Made):
    """A memo that another calls."""

    def __init__(self, memoize: Memoize) -> None:
        super().__init__(memoize)
        self.inner = memoize(lambda n: n + 1)

    def kept(self, n: int, *, twice: bool = False) -> Any:
        return self.inner(n) > 2

    def __call__(self, x: Tensor, n: int) -> Tensor:
        return x * 2 if self.memo(n) else x - 1


PROGRAMS = {kind.__name__: kind for kind in (Counting, Pure, Mask, Filled, Recipes, Nested)}
ROUTES: dict[str, Callable[[Any], Any]] = {
    "compile": foretrace.compile,
    "whole": lambda fn: foretrace.compile(fn, fullgraph=True),
    "dynamic": lambda fn: foretrace.compile(fn, dynamic=True),
    "graphs": lambda fn: foretrace.compile(fn, backend=lambda module, _: module),
}


def ran(made: Made, call: Callable[..., Tensor]) -> tuple[list[Tensor], int, Any]:
    """The results of calls, how often the function ran, and what the memo says of itself."""
    found = []
    for place, n in enumerate(ARGUMENTS):
        made.scale = 2.0 if place < 4 else 5.0
        found.append(call(torch.ones(3), n))
    return found, made.calls, made.memo.cache_info()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore:.*is not captured whole", "ignore:.*captured again")
def test_compiled_it_is_as_in_eager(name: str, how: str, route: str) -> None:
    eager, made = PROGRAMS[name](HOW[how]), PROGRAMS[name](HOW[how])
    expected, calls, info = ran(eager, eager)
    if (name, route) == ("Filled", "whole"):
        with pytest.raises(foretrace.Refusal) as caught:
            ran(made, ROUTES[route](made))
        assert caught.value.kind == "side effect"
        return
    found, calls_found, info_found = ran(made, ROUTES[route](made))
    assert all(map(same_bits, found, expected))
    assert (calls_found, info_found) == (calls, info)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.filterwarnings("ignore:.*is not captured whole", "ignore:.*captured again")
def test_results_that_are_given_up(name: str) -> None:
    memoize: Memoize = functools.lru_cache(maxsize=2)
    eager, made = PROGRAMS[name](memoize), PROGRAMS[name](memoize)
    expected, calls, info = ran(eager, eager)
    found, calls_found, info_found = ran(made, foretrace.compile(made))
    assert all(map(same_bits, found, expected))
    assert (calls_found, info_found) == (calls, info)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ["Counting", "Mask"])
def test_a_capture_refuses_a_first_call_and_leaves_the_memo(name: str, how: str) -> None:
    made = PROGRAMS[name](HOW[how])
    for way in (foretrace.capture, foretrace.export):
        program = made if way is foretrace.capture else Holding(made)
        with pytest.raises(foretrace.Refusal, match="lru_cache keeps") as caught:
            way(program, (torch.ones(3), 2))
        assert caught.value.kind == "side effect"
        assert made.memo.cache_info()[:2] == (0, 0)
        assert made.calls == 0
    x = torch.ones(3)
    expected = made(x, 2)
    cut = foretrace.capture(made, (x, 2)).cut("aten")
    assert made.memo.cache_info().hits == 0
    assert same_bits(cut(x, 2), made(x, 2))
    assert made.memo.cache_info().hits == 2
    assert same_bits(cut(x, 2), expected)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", ["Pure", "Recipes", "Nested"])
def test_a_capture_takes_the_first_call_of_what_changes_nothing(name: str, how: str) -> None:
    x = torch.ones(3)
    for way in ("capture", "export"):
        made, eager = PROGRAMS[name](HOW[how]), PROGRAMS[name](HOW[how])
        if way == "capture":
            program: Any = foretrace.capture(made, (x, 2)).cut("aten")
        else:
            program = foretrace.export(Holding(made), (x, 2)).module()
        assert same_bits(program(x, 2), eager(x, 2))
        assert made.memo.cache_info().currsize <= 2
        assert made.calls == 0
        assert same_bits(made(x, 2), eager(x, 2))


def test_an_object_that_leads_to_a_tensor_of_the_run_is_not_kept() -> None:
    class Tensors(Made):
        def kept(self, n: int, *, twice: bool = False) -> Any:
            return Recipe(n, [torch.ones(3) * n])  # type: ignore[list-item]

        def __call__(self, x: Tensor, n: int) -> Tensor:
            return x * self.memo(n).parts[0]

    made, x = Tensors(functools.cache), torch.ones(3)
    for way in (foretrace.capture, foretrace.export):
        with pytest.raises(foretrace.Refusal, match="lru_cache keeps"):
            way(made if way is foretrace.capture else Holding(made), (x, 2))
        assert made.memo.cache_info()[:] == (0, 0, None, 0)
    assert same_bits(foretrace.compile(made)(x, 2), x * 2)


class Holding(nn.Module):
    def __init__(self, made: Made) -> None:
        super().__init__()
        self.made = made

    def forward(self, x: Tensor, n: int) -> Tensor:
        return self.made(x, n)


def test_a_cut_asks_whether_a_result_is_kept_still() -> None:
    made, x = Mask(functools.cache), torch.ones(3)
    made(x, 2)
    cut = foretrace.capture(made, (x, 2)).cut("export")
    cut(x, 2)
    made.memo.cache_clear()
    with pytest.raises(foretrace.Refusal) as caught:
        cut(x, 2)
    assert caught.value.kind == "guard broken"


def test_methods_and_wrapped_ones() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = 3

        @functools.lru_cache(maxsize=4)  # noqa: B019 - what it tests
        def of_self(self, n: int) -> int:
            return n * self.gain

        @staticmethod
        @functools.cache
        def alone(n: int) -> int:
            return n * 5

        @property
        @functools.cache  # noqa: B019
        def table(self) -> tuple[int, ...]:
            return (7, self.gain)

        def forward(self, x: Tensor) -> Tensor:
            return x * self.of_self(x.shape[0]) * self.alone(2) + self.table[1]

    net, x = Net(), torch.ones(4)
    compiled = foretrace.compile(net, fullgraph=True)
    expected = x * 12 * 10 + 3
    assert all(same_bits(compiled(x), expected) for _ in range(3))
    assert Net.of_self.cache_info()[:2] == (2, 1)
    assert Net.alone.cache_info()[:2] == (2, 1)
    assert type(vars(Net)["alone"]) is staticmethod
    assert not compiled.recaptures


def test_a_program_that_asks_what_is_kept_is_refused() -> None:
    made = Pure(functools.cache)
    for ask in (made.memo.cache_info, made.memo.cache_clear):
        name = ask.__name__

        def program(x: Tensor, name: str = name) -> Tensor:
            getattr(made.memo, name)()
            return x * 2

        with pytest.raises(foretrace.Refusal) as caught:
            foretrace.capture(program, (torch.ones(2),))
        assert caught.value.kind == "side effect"
