"""Floats that data decides: the node of a SymFloat that computes nothing with sympy.

A SymFloat of torch's is a float with all its methods over a node, which C++ carries along, too.
torch's own node makes sympy expressions, which are simplified: `(v + 0.1) + 0.2` becomes
`v + 0.3`, another float. Checked on torch 2.13.
"""

import inspect
import math
import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from functools import cache, lru_cache, partial, wraps
from types import MappingProxyType
from typing import Any

import torch

# Where a guard was made.
from torch._guards import SLoc

# What is in a SymFloat; C++ asks it by the names of these methods.
from torch.fx.experimental.sym_node import SymNode, to_node

# Where a symbol's range comes from.
from torch.fx.experimental.symbolic_shapes import ValueRangesSLoc

# Batch norm takes `float` of a buffer.
from torch.nn.modules import batchnorm

# The name of a symbol says what it stands for.
from torch.utils._sympy.symbol import SymT, make_symbol

# What a ShapeEnv knows of each symbol: between which numbers it is, and where it was made.
from torch.utils._sympy.value_ranges import ValueRanges

# Where a symbol was made.
from torch.utils._traceback import CapturedTraceback

from foretrace.torch_api.shape_env import note_names

# What a ShapeEnv notes of a symbol that was made nowhere in particular.
NO_STACK = CapturedTraceback(None)
NO_PLACE = SLoc(None, None)
# From minus to plus infinity.
ANY_FLOAT = ValueRanges.unknown()

UNARY: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "neg": operator.neg, "abs": operator.abs, "floor": math.floor, "ceil": math.ceil,
    "trunc": math.trunc, "sym_int": math.trunc, "round": round,
    **{name: getattr(math, name) for name in (
        "sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "log2", "exp",
    )},
})  # fmt: skip
"""What each method of a node is of a Python number"""
BINARY: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "mod": operator.mod,
    "float_pow": operator.pow, "pow": operator.pow, "pow_by_natural": operator.pow,
    "float_truediv": operator.truediv, "truediv": operator.truediv,
    "int_floordiv": operator.floordiv, "floordiv": operator.floordiv,
    "sym_min": torch.sym_min, "sym_max": torch.sym_max,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge,
})  # fmt: skip
"""The same of those with two operands"""


class FloatNode(SymNode):
    """The node of a float that data decides.

    Args:
        kind: the class of SymFloat that has it, however C++ makes one.
        symbol: what it goes by.
        shape_env: whose symbol it is.
        number: what it was in the captured run.
        compute: computes a function of numbers, one of which is such a float.
        ask: gives the number itself, if it may be asked for.
    """

    def __init__(
        self,
        kind: type[torch.SymFloat],
        symbol: Any,
        shape_env: Any,
        number: float,
        compute: Callable[..., Any],
        ask: Callable[[Any], float],
    ) -> None:
        super().__init__(symbol, shape_env, float, number)
        self.kind, self.compute, self.ask = kind, compute, ask

    @property
    def expr(self) -> Any:
        """The symbol: nothing is ever known to be equal to it."""
        return self._expr

    def guard_float(self, file: str, line: int) -> float:
        """The number, for Python and C++ that know numbers only."""
        return self.ask(self._expr)

    def sym_float(self) -> "FloatNode":
        """Itself."""
        return self

    def pos(self) -> "FloatNode":
        """Itself."""
        return self

    def evaluate(self, size_oblivious: bool = False) -> float:
        """The number."""
        return self.ask(self._expr)


def _method(function: Callable[..., Any]) -> Callable[..., SymNode]:
    def method(self: FloatNode, *others: Any) -> SymNode:
        given = (_number(other) for other in others)
        return to_node(self, self.compute(function, self.kind(self), *given))

    return method


def _number(item: Any) -> Any:
    if not isinstance(item, SymNode):
        return item
    if item.constant is not None:
        return item.constant
    kinds: dict[type, Any] = {int: torch.SymInt, float: torch.SymFloat, bool: torch.SymBool}
    return kinds[item.pytype](item)


def _made(self: torch.SymFloat, node: Any) -> None:
    """As SymFloat's own `__init__`, by which C++ makes one: the class is the node's."""
    self.node = node
    if type(node) is FloatNode and type(self) is torch.SymFloat:
        object.__setattr__(self, "__class__", node.kind)


def _made_int(self: torch.SymInt, node: Any) -> None:
    """As SymInt's own `__init__`: of a node that `as_integer` has marked the class is another."""
    self.node = node
    kind = getattr(node, "kind", None)
    if kind is not None and type(self) is torch.SymInt:
        object.__setattr__(self, "__class__", kind)


def as_integer(number: Any, kind: type[torch.SymInt]) -> Any:
    """A SymInt as one of another class, however C++ makes it again, while floats are followed."""
    node: Any = copy(number.node)
    node.kind = kind
    return kind(node)


for _name, _computes in {**UNARY, **BINARY}.items():
    setattr(FloatNode, _name, _method(_computes))


@lru_cache(1 << 14)
def _float_number(number: int) -> Any:
    """The symbol with this number; sympy, whose symbols are equal by name, takes 15 us for one."""
    return make_symbol(SymT.UNBACKED_FLOAT, number)


def new_float(shape_env: Any) -> Any:
    """A new symbol for a float that data decides (2.13: zuf0, zuf1).

    What `ShapeEnv.create_unbacked_symfloat` notes of one, without its logging and stack, which take
    six times as long: an optimizer has a thousand of them. FakeTensor does not wait for it in the
    next kernel's result.
    """
    symbol = _float_number(shape_env.unbacked_symfloat_counter)
    shape_env.unbacked_symfloat_counter += 1
    shape_env.var_to_stack[symbol] = NO_STACK
    shape_env.var_to_range[symbol] = ANY_FLOAT
    shape_env.var_to_range_sloc[symbol] = ValueRangesSLoc(NO_PLACE, NO_PLACE)
    note_names(shape_env, (symbol,))
    return symbol


def count_floats_from(shape_env: Any, number: int) -> None:
    """Let such symbols have numbers from here on in their names."""
    shape_env.unbacked_symfloat_counter = number


def plain_float(shape_env: Any, symbol: Any) -> torch.SymFloat:
    """The float as torch has it, which computes with sympy; a file is read with no hint alone."""
    return torch.SymFloat(SymNode(symbol, shape_env, float, None))


# `torch.sym_sqrt` and its like ask a number for a method of such a name.
MATH: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {name: UNARY[name] for name in UNARY.keys() & vars(math).keys() - {"floor", "ceil", "trunc"}}
)
INTEGER: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "mod": operator.mod,
    "truediv": operator.truediv, "floordiv": operator.floordiv, "pow": operator.pow,
})  # fmt: skip
ASKED: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge,
})  # fmt: skip
ROOTS = frozenset({"isqrt", "gcd", "lcm", "comb", "perm", "factorial"})
"""Functions of integers alone"""
MATHS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        name: function
        for name, function in vars(math).items()
        if callable(function) and name not in ROOTS and not name.startswith("_")
    }
)
"""Python's functions of floats, each of which may be a step"""
STEPS_OF_FLOATS = MATHS, UNARY, BINARY
"""What steps between numbers may call"""
NUMBERS = (int, float, torch.SymInt, torch.SymFloat)


class FollowedFloats:
    """What makes a float of a number that data decides is computed by `compute` inside.

    Python's functions of numbers take no symbol, and torch's SymInt makes sympy expressions. A
    module that is imported meanwhile would keep what stands in their place: it finds them as they
    were.

    Args:
        compute: gets a function, and numbers of which `follows` is true for one.
        follows: whether data decides a symbolic number.
        call: gets an operator, torch's function of it, and arguments with such a number.
    """

    def __init__(
        self, compute: Callable[..., Any], follows: Callable[[Any], bool], call: Callable[..., Any]
    ) -> None:
        self.on = False
        self._before: list[tuple[Any, str, Any]] = []
        self._math = [
            (math, name, _function(function, compute, follows)) for name, function in MATHS.items()
        ]
        self._made = compute, follows, call
        self._places = self._math

    def follow_all(self) -> None:
        """From the first number on more than `math` is followed, which is looked up before it."""
        if self._places is self._math:
            self.rest()
            self._places = [*self._math, *_places(*self._made)]
            self.resume()

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)
        self.resume()

    def __exit__(self, *error: object) -> None:
        sys.meta_path.remove(self)
        self.rest()

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
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((each for each in found if each is not None), None)
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


def _places(
    compute: Callable[..., Any], follows: Callable[[Any], bool], call: Callable[..., Any]
) -> Iterator[tuple[Any, str, Any]]:
    """What stands in the place of what, and where."""
    yield torch.SymFloat, "__init__", _made
    yield torch.SymInt, "__init__", _made_int
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
            given = {"dtype": dtype, "device": device}
            given = {name: item for name, item in given.items() if item is not None}
            return original(data, *args, **given, **kwargs)
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
    made: dict[str, Callable[..., Any]] = {}
    for name, function in {**INTEGER, **ASKED}.items():
        for swap in (False, True) if name in INTEGER else (False,):
            place = f"__{'r' * swap}{name}__"
            made[place] = _of_integer(function, vars(torch.SymInt)[place], compute, follows, swap)
    original = vars(torch.SymInt)["__sym_float__"]

    def sym_float(self: Any) -> Any:
        return compute(torch.sym_float, self) if follows(self) else original(self)

    return made | {"__sym_float__": sym_float}


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
    original: Callable[..., Any], compute: Callable[..., Any], follows: Callable[[Any], bool]
) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        if any(map(follows, (*args, *kwargs.values()))):
            return compute(original, *args, **kwargs)
        return original(*args, **kwargs)

    # `functools.wraps` takes 5 us, of forty functions in each capture
    function.__name__ = original.__name__
    vars(function)["__wrapped__"] = original
    return function
