"""How a function uses `int` and `float`: called, written as a type, or as the class that it is."""

import types
from typing import Any

import pytest

from foretrace.symbols.called import uses_of

HARMLESS = {
    "calls": "y = float(x)",
    "asks": "y = isinstance(x, (int, float))",
    "writes a type": "y = list[float]",
    "annotates a function": "def g(a: int, *, b: float = 1) -> float: return a",
    "annotates a closure": "def g(a: int, b=2) -> 'int': return x",
    "annotates with a union": "def g(a: int | None, b: dict[str, float]) -> tuple[int, float]: ...",
    "annotates a class": "class A:\n  a: float = 0.0\n  b: int\n  def g(self, c: int = 1): ...",
    "calls in a class": "class A:\n  a: float = float('inf')",
}
OTHERWISE = {
    "is a default": "def g(a=int): return a",
    "is a default of a closure": "def g(a: int, b=float): return x",
    "is a default by keyword": "def g(*, a: int = 1, b=float): return a",
    "is an item": "y = [int, 1]",
    "is a key": "y = {int: 1}",
    "is kept": "y = {}\ny['a'] = float",
    "is handed over": "y = map(float, x)",
    "is compared": "y = x is int",
    "is kept in a class": "class A:\n  a = float\n  b: int = 1",
    "has an attribute": "y = float.fromhex",
}


def function_of(lines: str) -> types.FunctionType:
    space: dict[str, Any] = {}
    body = "\n".join(f"  {line}" for line in lines.splitlines())
    exec(f"def f(x):\n{body}\n", space)  # noqa: S102
    made = space["f"]
    assert isinstance(made, types.FunctionType)
    return made


@pytest.mark.parametrize("what", HARMLESS)
def test_harmless(what: str) -> None:
    assert not uses_of(function_of(HARMLESS[what]))[1]


@pytest.mark.parametrize("what", OTHERWISE)
def test_otherwise(what: str) -> None:
    assert uses_of(function_of(OTHERWISE[what]))[1]
