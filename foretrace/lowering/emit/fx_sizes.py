"""An expression over sizes as fx nodes: each function that a ShapeEnv's expressions may have."""

import math
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import sympy
import torch
from torch import fx

from foretrace import torch_api

Make = Callable[[Callable[..., Any], tuple[Any, ...]], Any]
"""Adds a node that calls a function of nodes and numbers"""

FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "add": operator.add, "mul": operator.mul, "sub": operator.sub, "neg": operator.neg,
    "abs": operator.abs, "floordiv": operator.floordiv, "mod": operator.mod,
    "python_mod": operator.mod, "pow": operator.pow, "pow_by_natural": operator.pow,
    "truediv": operator.truediv, "int_truediv": operator.truediv,
    "round_decimal": round, "is_non_overlapping_and_dense_indicator": torch_api.is_dense,
    **torch_api.SIZE_FUNCTIONS,
    "minimum": torch.sym_min, "maximum": torch.sym_max,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge, "and_": operator.and_, "or_": operator.or_,
    "not_": torch.sym_not, "where": torch.sym_ite,
    "bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor,
    "floor": math.floor, "ceil": math.ceil,
})  # fmt: skip
"""The graph's form of each function of torch's sympy, as torch's own verifier allows."""

ROUNDING: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "floor_to_int": math.floor,
        "ceil_to_int": math.ceil,
        "trunc_to_int": math.trunc,
        "round_to_int": round,
    }
)
"""The same for functions that torch calls with the dtype of the result."""


class SizeNodes:
    """Handlers for torch's interpreter of expressions: a method for each function, by name."""

    def __init__(self, make: Make) -> None:
        self.make = make

    def constant(self, number: Any, dtype: torch.dtype) -> Any:
        """A number of the expression."""
        kinds: dict[torch.dtype, type] = {torch.int64: int, torch.bool: bool}
        return kinds.get(dtype, float)(number)

    def to_dtype(self, node: Any, dtype: torch.dtype) -> Any:
        """An integer as a float."""
        return self.make(torch.sym_float, (node,))

    def piecewise(self, *cases: tuple[Any, Any]) -> Any:
        """The first case whose condition holds."""
        (value, condition), *rest = cases
        if condition is True or not rest:
            return value
        return self.make(torch.sym_ite, (condition, value, self.piecewise(*rest)))

    def expr_cond_pair(self, value: Any, condition: Any) -> tuple[Any, Any]:
        """One case of `piecewise`."""
        return value, condition

    def identity(self, node: Any) -> Any:
        """Return the node itself."""
        return node

    def trunc(self, node: Any) -> Any:
        """The number before the point, as a float."""
        return self.make(torch.sym_float, (self.make(math.trunc, (node,)),))

    def modular_indexing(self, base: Any, divisor: Any, modulus: Any) -> Any:
        """`base // divisor % modulus`."""
        part = base if divisor == 1 else self.make(operator.floordiv, (base, divisor))
        return self.make(operator.mod, (part, modulus))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in ROUNDING:
            return lambda node, dtype: self.make(ROUNDING[name], (node,))
        if name not in FUNCTIONS:
            raise AttributeError(name)
        return lambda *args: self.make(FUNCTIONS[name], args)


def write_size(
    expr: sympy.Basic, symbols: dict[sympy.Symbol, Any], create: Callable[..., fx.Node]
) -> Any:
    """The node that computes `expr` from the nodes of its symbols; each has its `val`.

    Args:
        expr: over the symbols, with the functions of `torch.utils._sympy`.
        symbols: the node, or number, of each symbol.
        create: makes a node from a function and its arguments.
    """

    def make(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        known = [arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args]
        if not any(isinstance(arg, fx.Node) for arg in args):
            return function(*args)
        node = create(function, args)
        node.meta["val"] = function(*known)
        return node

    return torch_api.interpret_expression(expr, SizeNodes(make), symbols)
