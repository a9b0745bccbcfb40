"""Floats that data decides: each is a symbol, and what is computed of them is computed in steps.

Python's own operators take such a number as they take a float. Each step is one op of the record
and has a symbol of its own, so that no expression of floats ever arises, and none simplified.
"""

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, Final, NoReturn, Protocol

import sympy
import torch

from foretrace import torch_api
from foretrace.arrays import numpy
from foretrace.errors import Frame, Refusal

EXACT: Final = frozenset({int, float, bool})
"""Python's own numbers; what else is one (numpy's) has operators of its own"""
ARITHMETIC: Final[dict[str, Callable[..., Any]]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "mod": operator.mod,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "pow": operator.pow,
}
ALONE: Final[dict[str, Callable[..., Any]]] = {
    "neg": operator.neg,
    "abs": operator.abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "round": round,
    "sym_int": math.trunc,
}
COMPARED: Final[dict[str, Callable[..., Any]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


ASKED_NUMBER: Final = "data-dependent"


def asked_number(symbol: sympy.Symbol) -> NoReturn:
    """Refuse to show a derivative the number."""
    raise Refusal(
        "a derivative depends on a number that data decides",
        kind=ASKED_NUMBER,
        do="compute with the tensor itself, not with its number",
    )


class Steps(Protocol):
    """What records the steps, and answers what Python asks."""

    fixed: set[Any]
    """symbols of which the number itself was asked"""

    def step(self, function: Callable[..., Any], *args: Any) -> Any:
        """What the function gives, as a number that the graph computes."""
        raise NotImplementedError

    def number(self, symbol: sympy.Symbol) -> float:
        """The number itself; that it is the same is a guard."""
        raise NotImplementedError

    def begin(self) -> None:
        """Data has decided a number: from here on what is computed of it is followed."""


class Float(torch.SymFloat):
    """A float that data decides, while a program is recorded."""

    node: torch_api.FloatNode

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # the program sees a float, as eager does
        return float

    def __float__(self) -> float:
        return self.node.guard_float("", 0)

    def __int__(self) -> int:
        return int(self.node.compute(ALONE["trunc"], self))

    def __bool__(self) -> bool:
        return bool(self.node.compute(operator.ne, self, 0))

    def __hash__(self) -> int:
        return hash(float(self))

    def __repr__(self) -> str:
        return repr(float(self))

    def __format__(self, spec: str) -> str:
        return format(float(self), spec)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return numpy().asarray(float(self), dtype)  # numpy alone calls it

    def __divmod__(self, other: Any) -> Any:
        return (self // other, self % other) if _takes(other) else NotImplemented

    def __rdivmod__(self, other: Any) -> Any:
        return (other // self, other % self) if _takes(other) else NotImplemented

    def __pos__(self) -> "Float":
        return self

    def __sym_float__(self) -> "Float":
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return float(self).__reduce_ex__(protocol)

    def __copy__(self) -> "Float":
        return self

    def __deepcopy__(self, memo: Any) -> "Float":
        return self

    def conjugate(self) -> "Float":
        """Itself."""
        return self

    @property
    def real(self) -> "Float":
        """Itself."""
        return self

    @property
    def imag(self) -> float:
        """None of it."""
        return 0.0

    def is_integer(self) -> bool:
        """Whether nothing is behind the point."""
        return float(self).is_integer()

    def as_integer_ratio(self) -> tuple[int, int]:
        """The number as a fraction."""
        return float(self).as_integer_ratio()

    def hex(self) -> str:
        """The number to the last bit."""
        return float(self).hex()


def _takes(other: Any) -> bool:
    numbers = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return type(other) in EXACT or issubclass(type(other), numbers)


def _left(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Float, other: Any) -> Any:
        if type(other) in EXACT or _takes(other):
            return self.node.compute(function, self, other)
        return function(float(self), other) if type(other) is complex else NotImplemented

    return method


def _right(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Float, other: Any) -> Any:
        if type(other) in EXACT or _takes(other):
            return self.node.compute(function, other, self)
        return function(other, float(self)) if type(other) is complex else NotImplemented

    return method


def _alone(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Float, *digits: Any) -> Any:
        return self.node.compute(function, self, *digits)

    return method


for _name, _function in ARITHMETIC.items():
    setattr(Float, f"__{_name}__", _left(_function))
    setattr(Float, f"__r{_name}__", _right(_function))
for _name, _function in COMPARED.items():
    setattr(Float, f"__{_name}__", _left(_function))
for _name, _function in ALONE.items():
    setattr(Float, f"__{_name}__", _alone(_function))
for _name, _function in {"sym_min": torch.sym_min, "sym_max": torch.sym_max}.items():
    setattr(Float, f"__{_name}__", _left(_function))
for _name, _function in torch_api.MATH.items():
    setattr(Float, f"__sym_{_name}__", _alone(_function))


class Floats:
    """The floats of one program that data decides."""

    def __init__(self) -> None:
        self.known: dict[sympy.Symbol, float] = {}
        """what each was in the captured run"""
        self.steps: Steps | None = None
        """what records, while the program runs"""
        self.conditions: dict[sympy.Basic, Frame | None] = {}
        """what derivatives rely on, with the line that was running"""
        self._floats: dict[sympy.Symbol, torch.SymFloat] = {}

    def begin(self) -> None:
        """A number is there that data decides."""
        if self.steps is not None:
            self.steps.begin()

    def ended(self) -> None:
        """The program has run."""
        self.steps = None
        self._floats.clear()

    def new(self, env: Any, number: float) -> sympy.Symbol:
        """A new symbol for a float, which it was in the captured run."""
        symbol: sympy.Symbol = torch_api.new_float(env)
        self.known[symbol] = number
        return symbol

    def fix(self, symbol: sympy.Symbol, frame: Frame | None) -> float:
        """What a float was, on which a derivative relies.

        Raises:
            Refusal: it is zero, infinite or no number, which no condition separates from others.
        """
        number = self.known[symbol]
        if number == 0 or not math.isfinite(number):
            asked_number(symbol)
        self.conditions.setdefault(sympy.Eq(symbol, number), frame)
        return number

    def symbolic(self, symbol: sympy.Symbol, env: Any) -> torch.SymFloat:
        """The float as torch takes it: one that records what is done with it, while one may."""
        if self.steps is None:
            return torch_api.plain_float(env, symbol)
        if symbol not in self._floats:
            self._floats[symbol] = self._float(symbol, env, self.steps.step, self.steps.number)
        return self._floats[symbol]

    def in_rule(self, symbol: sympy.Symbol, env: Any, ask: Callable[[Any], float]) -> Float:
        """The float as a derivative takes it, which may ask for the number, and cannot compute."""

        def compute(function: Callable[..., Any], *args: Any) -> Any:
            return function(*(float(a) if issubclass(type(a), Float) else a for a in args))

        return self._float(symbol, env, compute, ask)

    def _float(self, symbol: sympy.Symbol, env: Any, compute: Any, ask: Any) -> Float:
        node = torch_api.FloatNode(Float, symbol, env, self.known[symbol], compute, ask)
        return Float(node)  # type: ignore[no-untyped-call]

    def in_key(self, key: Iterable[Any]) -> tuple[Any, ...] | None:
        """The key of a call without these floats; None where there are none."""
        known = self.known
        if not any(item.__class__ is sympy.Symbol and item in known for item in key):
            return None
        return tuple(
            [None if item.__class__ is sympy.Symbol and item in known else item for item in key]
        )

    def any_fixed(self, key: Iterable[Any]) -> bool:
        """Whether the program needs one in the key of a call as it is."""
        fixed = self.steps.fixed if self.steps is not None else set()
        return any(item.__class__ is sympy.Symbol and item in fixed for item in key)

    def among(self, tree: Any) -> list[sympy.Symbol]:
        """The symbols of floats in a structure."""
        if not self.known:
            return []
        leaves = torch_api.tree_leaves(tree)
        found = (leaf for leaf in leaves if isinstance(leaf, sympy.Symbol) and leaf in self.known)
        return list(dict.fromkeys(found))
