"""Functions of torch's and of Python's `math`, which follow open floats during a capture."""

import inspect
import math
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Set as AbstractSet
from contextlib import contextmanager
from functools import cache, partial, wraps
from types import ModuleType
from typing import Any, Final

import torch

# Batch norm takes `float` of a buffer.
from torch.nn.modules import batchnorm

from foretrace.torch_api.symbolic.floats import (
    ASKED,
    INTEGER,
    MATHS,
    NUMBERS,
    initialize_float,
    initializing,
)

Place = tuple[Any, str, Any]
"""A module or class, a name in it, and what stands there meanwhile"""


class Following:
    """Who follows floats that data decides: one run at a time, and nobody between runs."""

    def __init__(self) -> None:
        self.by: FollowedFloats | None = None

    def compute(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """What the run computes of it."""
        by = self.by
        return function(*args, **kwargs) if by is None else by.compute(function, *args, **kwargs)

    def follows(self, number: Any) -> bool:
        """Whether the run follows it."""
        return self.by is not None and self.by.follows(number)

    def float_of(self, argument: Any) -> Any:
        """The number that `float` gives of a tensor, as the run follows it; all else as it is."""
        if self.by is None or not isinstance(argument, torch.Tensor):
            return argument
        return self.by.number(argument)


FOLLOWING: Final = Following()


@cache
def _of_math() -> tuple[Place, ...]:
    """What stands in the place of Python's functions of floats, once for all runs."""
    compute, follows = FOLLOWING.compute, FOLLOWING.follows
    found = {
        name: _function(each, compute, follows, None if name in NO_FLOATS else FOLLOWING.float_of)
        for name, each in MATHS.items()
    }
    return tuple([(math, name, function) for name, function in found.items()])


NO_FLOATS: Final = frozenset({"trunc", "prod", "fsum", "dist", "sumprod", "ldexp"})
"""Functions of `math` that do not ask each argument for `float`: they iterate, or take integers"""


class FollowedFloats:
    """What makes a float of a number that data decides is computed by `compute` inside.

    Python's functions of numbers take no symbol, and torch's SymInt makes sympy expressions. A
    module that is imported meanwhile would keep what stands in their place: it finds them as they
    were.

    Args:
        compute: gets a function, and numbers of which `follows` is true for one.
        follows: whether data decides a symbolic number.
        call: gets an operator, torch's function of it, and arguments with such a number.
        number: gets a tensor of which Python would take `float`; gives that number, or the tensor.
        as_they_are: functions of `math` and torch that are left, by their full names.
    """

    def __init__(
        self, compute: Callable[..., Any], follows: Callable[[Any], bool],
        call: Callable[..., Any], number: Callable[[Any], Any], *,
        as_they_are: AbstractSet[str] = frozenset(),
    ) -> None:  # fmt: skip
        self.on = False
        self._before: list[Place] = []
        self.compute, self.follows, self.call, self.number = compute, follows, call, number
        self._as_they_are = as_they_are
        # what others have put there runs as it is
        own = (each for each in _of_math() if vars(math).get(each[1]) is MATHS[each[1]])
        self._places = self._first = self._without(own)
        self._around: Any = None

    def follow_all(self) -> None:
        """From the first number on more than `math` is followed, which is looked up before it."""
        if self._places is self._first:
            self.rest()
            more = self._without(_places(self.compute, self.follows, self.call))
            self._places = *self._first, *more
            self.resume()

    def _without(self, places: Iterable[Place]) -> tuple[Place, ...]:
        """All but those that are left as they are."""
        if not self._as_they_are:
            return tuple(places)
        return tuple([e for e in places if f"{e[0].__name__}.{e[1]}" not in self._as_they_are])

    @property
    def names(self) -> Iterator[tuple[ModuleType, str]]:
        """The functions of modules in whose places others have stood."""
        return ((home, name) for home, name, _ in self._places if isinstance(home, ModuleType))

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)
        self._around, FOLLOWING.by = FOLLOWING.by, self
        self.resume()

    def __exit__(self, *error: object) -> None:
        sys.meta_path.remove(self)
        self.rest()
        FOLLOWING.by = self._around

    def resume(self) -> None:
        """Follow from here on."""
        if not self.on:
            self.on = True
            for home, name, stand_in in self._places:
                self._before.append((home, name, vars(home).get(name)))
                setattr(home, name, stand_in)

    def rest(self) -> None:
        """All is as it was."""
        while self._before:
            home, name, before = self._before.pop()
            if before is None:  # inherited
                delattr(home, name)
            else:
                setattr(home, name, before)
        self.on = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Where a module is that is being imported; it runs while all is as it was."""
        spec = found_after(self, name, path, target)
        loader: Any = getattr(spec, "loader", None)
        if loader is None or isinstance(loader, type):
            return spec
        run = loader.exec_module

        def exec_module(module: Any) -> None:
            vars(loader).pop("exec_module", None)
            before = self.on
            self.rest()
            try:
                run(module)
            finally:
                if before:
                    self.resume()

        loader.exec_module = exec_module
        return spec


def found_after(finder: Any, name: str, path: Any, target: Any) -> Any:
    """Where a module is, as the finders say that come after one; None where none says it."""
    before = (n for n, each in enumerate(sys.meta_path) if each is finder)
    others = sys.meta_path[next(before, -1) + 1 :]  # another thread may have just removed it
    found = (each.find_spec(name, path, target) for each in others)
    return next((spec for spec in found if spec is not None), None)


def _places(
    compute: Callable[..., Any], follows: Callable[[Any], bool], call: Callable[..., Any]
) -> Iterator[Place]:
    """What stands in the place of what, and where."""
    yield torch.SymFloat, "__init__", initialize_float
    yield torch.SymInt, "__init__", initializing(vars(torch.SymInt)["__init__"])
    for name, method in _stand_ins(compute, follows).items():
        yield torch.SymInt, name, method
    for name, operator_of in _of_doubles().items():
        yield torch, name, _function(vars(torch)[name], partial(call, operator_of), follows)
    yield torch, "tensor", (tensor := _maker(torch.tensor, follows))
    yield torch, "as_tensor", _maker(torch.as_tensor, follows)
    yield torch.Tensor, "new_tensor", _new_maker(torch.Tensor.new_tensor, follows, tensor)


def _maker(original: Callable[..., Any], follows: Callable[[Any], bool]) -> Callable[..., Any]:
    """A function that makes a tensor of numbers, as operators that take symbols."""

    @wraps(original)
    def make(data: Any, *args: Any, dtype: Any = None, device: Any = None, **kwargs: Any) -> Any:
        numbers = _numbers_in(data)
        if numbers is None or args or kwargs or not any(map(follows, numbers)):
            options = {"dtype": dtype, "device": device}
            options = {name: item for name, item in options.items() if item is not None}
            return original(data, *args, **options, **kwargs)
        floats = any(issubclass(type(n), (float, torch.SymFloat)) for n in numbers)
        dtype = dtype or (torch.get_default_dtype() if floats else torch.int64)
        if floats and not (dtype.is_floating_point or dtype.is_complex):
            return original(data, dtype=dtype, device=device)
        return _stacked(data, dtype, device)

    return make


def _new_maker(
    original: Callable[..., Any], follows: Callable[[Any], bool], tensor: Callable[..., Any]
) -> Callable[..., Any]:
    @wraps(original)
    def new_tensor(self: torch.Tensor, data: Any, **kwargs: Any) -> Any:
        numbers = _numbers_in(data)
        if numbers is None or not any(map(follows, numbers)):
            return original(self, data, **kwargs)
        like = {"dtype": self.dtype, "device": self.device}
        return tensor(data, **{**like, **kwargs})

    return new_tensor


def _numbers_in(data: Any) -> list[Any] | None:
    """The numbers in nested lists; None where anything else is in them."""
    if isinstance(data, (list, tuple)):
        found = [_numbers_in(item) for item in data]
        return None if None in found else [n for part in found for n in part or ()]
    return [data] if type(data) is bool or issubclass(type(data), NUMBERS) else None


def _stacked(data: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
    if isinstance(data, (list, tuple)):
        return torch.stack([_stacked(item, dtype, device) for item in data])
    return torch.scalar_tensor(data, dtype=dtype, device=device)


@contextmanager
def batches_counted() -> Iterator[None]:
    """Batch norms with `momentum=None` divide by the number of batches as the graph has it.

    They call `float` of a buffer, and Python makes a float of whatever that gives.
    """
    space = vars(batchnorm)
    space["float"] = _float_of
    try:
        yield
    finally:
        del space["float"]


def _float_of(number: Any = 0.0) -> Any:
    return torch.sym_float(number.item()) if isinstance(number, torch.Tensor) else float(number)


@cache
def _of_doubles() -> dict[str, Any]:
    """Torch's functions of Python floats, and the operators that they call.

    A function of torch's is bound to C++ by a parser that asks for the number; the operator itself
    takes a symbol. One that has several forms has some for symbols.
    """
    found: dict[str, Any] = {}
    for name, function in vars(torch).items():
        bound = inspect.isbuiltin(function) and not name.startswith("_")
        packet: Any = getattr(torch.ops.aten, name, None) if bound else None
        forms = [f for f in packet.overloads() if f != "out"] if packet is not None else []
        if forms == ["default"]:
            takes = [str(each.type) for each in packet.default._schema.arguments]
            if "float" in takes or "Optional[float]" in takes:
                found[name] = packet.default
    return found


def _stand_ins(
    compute: Callable[..., Any], follows: Callable[[Any], bool]
) -> dict[str, Callable[..., Any]]:
    """Methods of SymInt, by name."""
    stand_ins: dict[str, Callable[..., Any]] = {}
    for name, function in {**INTEGER, **ASKED}.items():
        for swap in (False, True) if name in INTEGER else (False,):
            place = f"__{'r' * swap}{name}__"
            stand_ins[place] = _of_integer(
                function, vars(torch.SymInt)[place], compute, follows, swap
            )
    original = vars(torch.SymInt)["__sym_float__"]

    def sym_float(self: Any) -> Any:
        return compute(torch.sym_float, self) if follows(self) else original(self)

    return stand_ins | {"__sym_float__": sym_float}


def _of_integer(
    function: Callable[..., Any],
    original: Callable[..., Any],
    compute: Callable[..., Any],
    follows: Callable[[Any], bool],
    swap: bool,
) -> Callable[..., Any]:
    divides, asked = function is operator.truediv, function in ASKED.values()

    def method(self: Any, other: Any) -> Any:
        kind = type(other)
        of_float = issubclass(kind, torch.SymFloat) or (kind is float and not asked)
        if (of_float or (divides and issubclass(kind, NUMBERS))) and (
            follows(other) or (follows(self) and not (asked and not follows(other)))
        ):
            return compute(function, *((other, self) if swap else (self, other)))
        known = self.node.maybe_as_int() if of_float else None
        if known is not None:  # a symbol that became a number: sympy's remainders are not Python's
            return function(other, known) if swap else function(known, other)
        return original(self, other)

    return method


def _function(
    original: Callable[..., Any],
    compute: Callable[..., Any],
    follows: Callable[[Any], bool],
    float_of: Callable[[Any], Any] | None = None,
) -> Callable[..., Any]:
    """`float_of`: gives the number of a tensor of which the function would take `float`."""

    def function(*args: Any, **kwargs: Any) -> Any:
        if float_of is not None:
            args = tuple(map(float_of, args))
        if any(map(follows, (*args, *kwargs.values()))):
            return compute(original, *args, **kwargs)
        return original(*args, **kwargs)

    # `functools.wraps` takes 2 us, of a hundred functions in a capture with a number of data's
    function.__name__ = original.__name__
    vars(function)["__wrapped__"] = original
    return function
