"""Sizes as Python source: each function that a ShapeEnv's expressions may have."""

import math
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import sympy
import torch

from foretrace import torch_api
from foretrace.lowering.emit.fx_sizes import SizeFunctions

TEXTS: Mapping[Callable[..., Any], str] = MappingProxyType({
    operator.add: "({} + {})", operator.mul: "({} * {})", operator.sub: "({} - {})",
    operator.neg: "(-{})", operator.abs: "abs({})", operator.floordiv: "({} // {})",
    operator.mod: "({} % {})", operator.pow: "({} ** {})", operator.truediv: "({} / {})",
    operator.eq: "({} == {})", operator.ne: "({} != {})", operator.lt: "({} < {})",
    operator.le: "({} <= {})", operator.gt: "({} > {})", operator.ge: "({} >= {})",
    operator.and_: "({} & {})", operator.or_: "({} | {})", operator.xor: "({} ^ {})",
    torch.sym_min: "min({}, {})", torch.sym_max: "max({}, {})", torch.sym_not: "(not {})",
    torch.sym_ite: "({1} if {0} else {2})", torch.sym_float: "float({})",
    math.floor: "math.floor({})", math.ceil: "math.ceil({})", math.trunc: "math.trunc({})",
    **{function: f"math.{name}({{}})" for name, function in torch_api.SIZE_FUNCTIONS.items()},
})  # fmt: skip
"""How each function of `lowering/emit/fx_sizes.py` is written, over Python's own numbers"""
NAMED: Mapping[Callable[..., Any], str] = MappingProxyType(
    {round: "round", torch_api.is_dense: "is_dense"}
)
"""Functions with any number of arguments"""
SPACE: Mapping[str, Any] = MappingProxyType({"math": math, "is_dense": torch_api.is_dense})
"""The globals of the texts, beside symbols and builtins"""


def size_text(size: Any) -> str:
    """A size, or a condition on sizes, as Python source; symbols go by their names."""
    if not isinstance(size, sympy.Basic):
        return str(size)
    names = {symbol: str(symbol) for symbol in size.free_symbols}
    return _text(torch_api.interpret_expression(size, SizeFunctions(_call), names))


def _call(function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    if function in NAMED:
        return f"{NAMED[function]}({', '.join(map(_text, args))})"
    return TEXTS[function].format(*map(_text, args))


def _text(item: Any) -> str:
    """A part: text of an expression, or a number."""
    if isinstance(item, str):
        return item
    if isinstance(item, float) and not math.isfinite(item):
        return f"float('{item}')"
    return f"({item!r})" if item < 0 else repr(item)
