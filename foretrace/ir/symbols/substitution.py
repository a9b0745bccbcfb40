"""Numbers in the place of symbols."""

from typing import Any, TypeAlias

import sympy
from sympy.logic.boolalg import Boolean

from foretrace import torch_api

Size: TypeAlias = int | sympy.Expr
Numbers: TypeAlias = dict[sympy.Symbol, int]
"""what the symbols are in one run"""


def plain(expr: sympy.Basic) -> Size:
    """The expression, or an int where it is one."""
    return int(expr) if isinstance(expr, (int, sympy.Integer)) else expr


def put_in(item: Any, numbers: Numbers) -> Any:
    """Anything with numbers in the place of some symbols.

    Raises:
        ZeroDivisionError: it has no value with them.
    """
    if not isinstance(item, sympy.Basic) or item.free_symbols.isdisjoint(numbers):
        return item
    found = item.xreplace({s: sympy.Integer(n) for s, n in numbers.items()})
    if found.has(sympy.zoo, sympy.nan):
        raise ZeroDivisionError(f"{item} with {numbers}")
    if found.free_symbols:
        return found
    return bool(found) if isinstance(found, Boolean) else with_numbers(found, {})


def with_numbers(item: Any, numbers: Numbers) -> Any:
    """Anything with numbers in the place of symbols."""
    if not isinstance(item, sympy.Basic):
        return item
    value = sympy.sympify(item.xreplace(numbers))
    return plain(value) if value.is_integer else float(value)


def solved(size: sympy.Expr, symbol: sympy.Symbol, found: Any) -> Any:
    """What the symbol is where a size that follows from it is `found`; None if nobody can say.

    Args:
        size: an expression over sizes.
        symbol: one of its symbols.
        found: a number, or an expression for it.
    """
    step = size.coeff(symbol)
    first = size - step * symbol
    if not (step.is_Integer and step > 0) or symbol in first.free_symbols:
        return None
    return torch_api.FloorDiv(sympy.sympify(found) - first, step)
