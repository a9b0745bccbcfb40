"""Floats that data decides: the node of a SymFloat that computes nothing with sympy.

A SymFloat of torch's is a float with all its methods over a node, which C++ carries along, too.
torch's own node makes sympy expressions, which are simplified: `(v + 0.1) + 0.2` becomes
`v + 0.3`, another float. Checked on torch 2.13.
"""

import math
import operator
from collections.abc import Callable, Mapping
from copy import copy
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import torch

# Where a guard comes from.
from torch._guards import SLoc

# What is in a SymFloat; C++ asks it by the names of these methods.
from torch.fx.experimental.sym_node import SymNode, to_node

# Where a symbol's range comes from.
from torch.fx.experimental.symbolic_shapes import ValueRangesSLoc

# The name of a symbol says what it stands for.
from torch.utils._sympy.symbol import SymT, make_symbol

# What a ShapeEnv knows of each symbol: between which numbers it is, and where it comes from.
from torch.utils._sympy.value_ranges import ValueRanges

# Where a symbol comes from.
from torch.utils._traceback import CapturedTraceback

from foretrace.torch_api.symbolic.shape_env import note_names

# What a ShapeEnv notes of a symbol that comes from nowhere in particular.
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
        operands = (_number(other) for other in others)
        return to_node(self, self.compute(function, self.kind(self), *operands))

    return method


def _number(item: Any) -> Any:
    if not isinstance(item, SymNode):
        return item
    if item.constant is not None:
        return item.constant
    kinds: dict[type, Any] = {int: torch.SymInt, float: torch.SymFloat, bool: torch.SymBool}
    return kinds[item.pytype](item)


def initialize_float(self: torch.SymFloat, node: Any) -> None:
    """As SymFloat's own `__init__`, by which C++ makes one: the class is the node's."""
    self.node = node
    if type(node) is FloatNode and type(self) is torch.SymFloat:
        object.__setattr__(self, "__class__", node.kind)


def initializing(original: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """SymInt's `__init__`: of a node that `as_integer` has marked the class is another."""

    def initialize(self: torch.SymInt, node: Any) -> None:
        original(self, node)
        kind = getattr(node, "kind", None)
        if kind is not None and type(self) is torch.SymInt:
            object.__setattr__(self, "__class__", kind)

    return initialize


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
