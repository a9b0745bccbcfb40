"""Expressions over sizes as JSON: a tree of function names, numbers and symbols."""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import sympy

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.serialization.schema.errors import PROGRAM, damaged

FUNCTIONS: Mapping[str, type[sympy.Basic]] = MappingProxyType({
    **{each.__name__: each for each in (
        sympy.Add, sympy.Mul, sympy.Pow, sympy.Max, sympy.Min, sympy.Abs, sympy.Mod, sympy.floor,
        sympy.ceiling, sympy.Eq, sympy.Ne, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge, sympy.And,
        sympy.Or, sympy.Not, sympy.Xor, sympy.Piecewise,
    )},
    **{f"torch.{name}": each for name, each in torch_api.size_functions().items()},
})  # fmt: skip
"""By the name in a file"""
NAMES: Mapping[type[sympy.Basic], str] = MappingProxyType(
    {each: name for name, each in FUNCTIONS.items()}
)
SINGLE: Mapping[str, Any] = MappingProxyType({
    "true": sympy.true, "false": sympy.false, "int_oo": torch_api.int_oo, "-int_oo":
    -torch_api.int_oo, "oo": sympy.oo, "-oo": -sympy.oo,
})  # fmt: skip
SYMBOL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""A symbol's name is an identifier: generated code uses it"""


def number_json(item: sympy.Basic) -> list[Any]:
    """An expression as JSON.

    Raises:
        Refusal: a function in it has no form in a file.
    """
    found = _json(item)
    if number_of(found) != item:
        raise _unknown(item)
    return found


def _json(item: Any) -> list[Any]:
    if isinstance(item, sympy.Symbol):
        known = {name: each for name, each in item.assumptions0.items() if each is not None}
        return ["symbol", item.name, known]
    if isinstance(item, sympy.Integer):
        return ["int", str(item)]
    if isinstance(item, sympy.Rational):
        return ["rational", str(item.p), str(item.q)]
    if isinstance(item, sympy.Float):
        return ["float", float(item).hex()]
    for name, each in SINGLE.items():
        if item == each:
            return ["single", name]
    if type(item) not in NAMES:
        raise _unknown(item)
    args = [_json(arg) for arg in item.args]
    kept = type(item)(*item.args) == item
    return ["call" if kept else "unevaluated", NAMES[type(item)], *args]


def _unknown(item: Any) -> Refusal:
    return Refusal(
        f"a size is {item}, and {type(item).__name__} has no form in a file",
        kind="not saved",
        do="let the size be fixed: capture without dynamic_shapes for it",
    )


def number_of(found: Any) -> Any:
    """The expression of JSON.

    Raises:
        Refusal: the JSON is malformed.
    """
    match found:
        case ["symbol", str(name), dict(known)] if SYMBOL.fullmatch(name):
            if all(type(each) is bool for each in known.values()):
                return sympy.Symbol(name, **known)
        case ["int", str(digits)]:
            return sympy.Integer(int(digits))
        case ["rational", str(top), str(below)]:
            return sympy.Rational(int(top), int(below))
        case ["float", str(digits)]:
            return sympy.Float(float.fromhex(digits))
        case ["single", str(name)] if name in SINGLE:
            return SINGLE[name]
        case ["call" | "unevaluated" as how, str(name), *args] if name in FUNCTIONS:
            more = {} if how == "call" else {"evaluate": False}
            return FUNCTIONS[name](*map(number_of, args), **more)
    raise damaged(PROGRAM, f"{found!r:.60} is no expression")
