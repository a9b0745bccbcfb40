"""How a function uses `int` and `float`: called, written as a type, or as the class that it is."""

import sys
import types
from typing import Any

import pytest

from foretrace.ir.source import operand_stack as stack
from foretrace.ir.symbols.builtin_call_sites import uses_of

HARMLESS = {
    "calls": "y = float(x)",
    "asks": "y = isinstance(x, (int, float))",
    "writes a type": "y = list[float]",
    "annotates a function": "def g(a: int, *, b: float = 1) -> float: return a",
    "annotates a closure": "def g(a: int, b=2) -> 'int': return x",
    "annotates with a union": "def g(a: int | None, b: dict[str, float]) -> tuple[int, float]: ...",
    "annotates a class": "class A:\n  a: float = 0.0\n  b: int\n  def g(self, c: int = 1): ...",
    "annotates with what is not called": "def g(a: dict[str, list[int]] = {}) -> None: ...",
    "annotates a method": "class A:\n  def g(self, a: int, b: float = 1) -> int | None: ...",
    "annotates some members": "class A:\n  if x:\n    a: float = 0.0\n  b: int",
    "annotates in a loop": "for i in x:\n  def g(a: int, b=i) -> float: return i",
    "calls one of two": "y = (float if x else int)(x)",
    "calls with what is chosen": "y = float(x if x else -x)",
    "calls with keywords and stars": "y = max(*x, key=len) + int(x, **{})",
    "calls in a comprehension": "y = [float(i) for i in x if int(i)]",
    "calls where it fails": "try:\n  y = float(x)\nexcept ValueError:\n  y = int(x)",
    "calls in a context": "with open(x) as g:\n  y = float(g.read())",
    "calls in a text": "y = f'{float(x):.3f} {int(x)!r}'",
    "calls in a match": "match int(x):\n  case 1: y = float(x)\n  case _: y = 0",
    "asks issubclass": "y = issubclass(type(x), int | float)",
    "asks for one of two": "y = isinstance(x, int if x else float)",
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
    "is an item of a tuple": "y = (int, 1)",
    "is asked for in a tuple": "y = type(x) in (int, float)",
    "is asked of another": "y = check(isinstance(x, str), float)",
    "is a message": "assert x, float",
    "is one of two": "y = x or float",
    "is chosen": "y = float if x else int",
    "is named": "y = (z := float)(x)",
    "is a base": "class A(float): ...",
    "is matched": "match x:\n  case float(): y = 1",
    "is an argument by keyword": "y = x.to(dtype=float)",
    "is an argument of an annotation": "def g(a: check(float)): ...",
    "is an argument of a method": "y = x.to(float)",
    "is handed over by stars": "y = check(*[float], **{'a': int})",
    "is given back": "return float",
    "is yielded": "yield float",
    "is in a text": "y = f'{float}'",
    "is raised": "raise float",
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


def test_why_it_is_otherwise() -> None:
    assert set(uses_of(function_of("y = [int]\nz = float(x)"))[1]) == {"int"}
    assert uses_of(function_of(OTHERWISE["is an item"]))[1] == {
        "int": "<string>:2 in f uses it otherwise than to call it",
    }


def test_what_is_not_known_is_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        stack, "PUSHED", {k: n for k, n in stack.PUSHED.items() if k != "BUILD_LIST"}
    )
    assert not uses_of(function_of("z = [x]\ny = float(x)"))[1]  # nothing of it is on the stack
    assert uses_of(function_of("y = [x, float]"))[1] == {
        "float": "<string>:2 in f has instructions of this Python that foretrace does not know",
    }


@pytest.mark.skipif(sys.version_info < (3, 12), reason="its syntax is of Python 3.12")
def test_a_generic_function() -> None:
    assert not uses_of(function_of("def g[T](a: float, b: T) -> int: return float(a)"))[1]
    assert uses_of(function_of("def g[T](a: float, b: T) -> int: return float"))[1]
