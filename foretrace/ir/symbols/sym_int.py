"""Open integers as a program has them: an `int`, of which nothing is known before.

They are open sizes, and what data decides. torch's SymInt is no `int`, and its text is the name of
a symbol. Here text, a key of a dict and what C computes of an integer ask for the number, which is
a guard then.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import torch

from foretrace import torch_api
from foretrace.errors import PACKAGE_DIR
from foretrace.ir.symbols.sym_membership import asking, hash_of

NUMBERS: Final = (torch.SymInt, torch.SymFloat, torch.SymBool)
OWN: Final = frozenset({
    "__init__", "__new__", "__class__", "__init_subclass__", "__subclasshook__", "__getattribute__",
    "__setattr__", "__delattr__", "__dir__", "__reduce__", "__reduce_ex__", "__getstate__",
    "__repr__", "__str__", "__format__", "__hash__", "__sizeof__", "__getattr__",
})  # fmt: skip
"""Methods that are no arithmetic"""
BY_NUMBER: Final = (
    "bit_length", "bit_count", "to_bytes", "as_integer_ratio", "__trunc__", "__ceil__", "__floor__",
    "__invert__", "__format__", "__str__", "__repr__", "__getnewargs__",
)  # fmt: skip
"""Methods of `int` that take the number itself"""
BITS: Final = ("xor", "and", "or", "lshift", "rshift")
"""What SymInt may not have, or not in both orders"""


class Int(torch.SymInt):
    """An open integer, while a program is recorded."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # the program sees an int, as eager does
        return int

    def __hash__(self) -> int:
        return hash_of(self, asking())

    def __reduce_ex__(self, protocol: Any) -> Any:
        return int(self).__reduce_ex__(protocol)

    def __copy__(self) -> "Int":
        return self

    def __deepcopy__(self, memo: Any) -> "Int":
        return self

    def conjugate(self) -> "Int":
        """Itself."""
        return self

    @property
    def real(self) -> "Int":
        """Itself."""
        return self

    @property
    def numerator(self) -> "Int":
        """Itself."""
        return self

    @property
    def imag(self) -> int:
        """None of it."""
        return 0

    @property
    def denominator(self) -> int:
        """One."""
        return 1

    def is_integer(self) -> bool:
        """Of course."""
        return True


def as_int(number: Any) -> Any:
    """A SymInt as a program has it; anything else as it is."""
    return torch_api.as_integer(number, Int) if type(number) is torch.SymInt else number


@contextmanager
def sizes_as_integers() -> Iterator[None]:
    """Inside, an open size that the program asks for is an `int` to it, and a SymInt to torch.

    C++ makes a number each time that it is asked for a size, in the frame that asks.
    """
    before = vars(torch.SymInt)["__init__"]

    def initialize(self: torch.SymInt, node: Any) -> None:
        before(self, node)
        if type(self) is torch.SymInt and _of_program(sys._getframe(1).f_code.co_filename):
            object.__setattr__(self, "__class__", Int)

    setattr(torch.SymInt, "__init__", initialize)  # noqa: B010  (to mypy a method is no variable)
    try:
        yield
    finally:
        setattr(torch.SymInt, "__init__", before)  # noqa: B010


@cache
def _of_program(file: str) -> bool:
    return not file.startswith((torch_api.TORCH_DIR, PACKAGE_DIR))


def _plain(number: Any) -> Any:
    """As torch's own methods take it, to which an `int` is a constant."""
    if type(number) is not Int:
        return number
    plain: Any = object.__new__(torch.SymInt)
    plain.node = number.node
    return plain


def _as_torch(name: str) -> Callable[..., Any]:
    def method(self: Int, *others: Any) -> Any:
        if any(type(other) is complex for other in others):
            return getattr(complex(int(self)), name)(*others)
        computes = getattr(torch.SymInt, name)  # looked up late: a run follows some of them
        return as_int(computes(_plain(self), *map(_plain, others)))

    return method


def _by_number(name: str) -> Callable[..., Any]:
    def method(self: Int, *others: Any, **named: Any) -> Any:
        return getattr(int(self), name)(*others, **named)

    return method


def _both_by_number(name: str) -> Callable[..., Any]:
    computes = getattr(int, name)

    def method(self: Int, other: Any) -> Any:
        fits = type(other) in (int, bool) or issubclass(type(other), torch.SymInt)
        return computes(int(self), int(other)) if fits else NotImplemented

    return method


def _divmod(self: Int, other: Any) -> Any:
    return (self // other, self % other) if _counts(other) else NotImplemented


def _rdivmod(self: Int, other: Any) -> Any:
    return (other // self, other % self) if _counts(other) else NotImplemented


def _counts(other: Any) -> bool:
    return type(other) in (int, float, bool) or issubclass(type(other), NUMBERS)


def _pos(self: Int) -> Int:
    return self


def _round(self: Int, digits: Any = None) -> Any:
    return self if digits is None or digits >= 0 else round(int(self), digits)


for _name in vars(torch.SymInt).keys() - OWN:
    if callable(vars(torch.SymInt)[_name]):
        setattr(Int, _name, _as_torch(_name))
for _name in BY_NUMBER:
    setattr(Int, _name, _by_number(_name))
for _short in BITS:
    for _name in (f"__{_short}__", f"__r{_short}__"):
        setattr(Int, _name, _both_by_number(_name))
for _name, _method in (
    ("divmod", _divmod), ("rdivmod", _rdivmod), ("pos", _pos), ("round", _round)
):  # fmt: skip
    setattr(Int, f"__{_name}__", _method)
