"""Sizes that are not yet known, and what the program assumed of them, over torch's ShapeEnv."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy
import torch
from sympy.logic.boolalg import Boolean
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from foretrace import torch_api
from foretrace.errors import Frame

Size: TypeAlias = int | sympy.Expr
Numbers: TypeAlias = dict[sympy.Symbol, int]
"""what the symbols are in one run"""


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition on the symbols that the program relied on, and the user's line that asked."""

    condition: sympy.Basic
    frame: Frame | None

    @property
    def symbols(self) -> frozenset[sympy.Symbol]:
        """The symbols that it speaks of."""
        return frozenset(self.condition.free_symbols)

    def holds(self, sizes: dict[sympy.Symbol, int], _tensors: Sequence[Any] = ()) -> bool:
        """Whether the condition is true of these sizes; a guard on values looks at tensors."""
        return bool(self.condition.subs(sizes))


@dataclass(frozen=True, slots=True)
class Question:
    """What a ShapeEnv was asked, and what it said."""

    method: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    answer: Any

    def asked_again(self, env: ShapeEnv) -> bool:
        """Whether another ShapeEnv, asked now, says the same; it makes the same guards."""
        try:
            answer = getattr(env, self.method)(*self.args, **dict(self.kwargs))
        except (RuntimeError, ValueError):
            return False
        return bool(answer == self.answer)


class NotingShapeEnv(torch_api.ToldShapeEnv):
    """A ShapeEnv that notes the user's line of each guard at the moment it is made.

    `listeners` are told every question.
    """

    def __init__(self, where: Callable[[], Frame | None]) -> None:
        super().__init__(duck_shape=False, specialize_zero_one=True)
        self.where, self.frames = where, list[Frame | None]()
        self.listeners: list[dict[Question, None]] = []

    def told(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any) -> None:
        """Let the listeners know; a guard that was added gets the line that is running."""
        self.note()
        if self.listeners:
            question = Question(method, args, tuple(kwargs.items()), answer)
            for questions in self.listeners:
                questions[question] = None

    def note(self) -> None:
        """Give every guard without a line the line that is running."""
        while len(self.frames) < len(self.guards):
            self.frames.append(self.where())


class Symbols:
    """Numbers of the program as torch has them, and as types have them."""

    def __init__(
        self, where: Callable[[], Frame | None] = lambda: None, env: ShapeEnv | None = None
    ) -> None:
        self._where = where
        self.env = env
        self._declared: list[tuple[Size, tuple[int, Any] | None]] = []
        self._numbers: dict[sympy.Expr, torch.SymInt] = {}
        """one for each expression: to make one, sympy has to find its hint"""

    def start(self) -> ShapeEnv:
        """The ShapeEnv, made at the first symbolic size; a front end's, where there is one."""
        self.env = self.env or NotingShapeEnv(self._where)
        return self.env

    @contextmanager
    def listening(self) -> Iterator[dict[Question, None]]:
        """Collect what the ShapeEnv is asked inside."""
        questions: dict[Question, None] = {}
        env = self.env
        if not isinstance(env, NotingShapeEnv):
            yield questions
            return
        env.listeners.append(questions)
        try:
            yield questions
        finally:
            env.listeners.pop()

    def tell(self, questions: Iterable[Question]) -> None:
        """Let those who listen know of questions that were asked before."""
        if isinstance(self.env, NotingShapeEnv):
            for listener in self.env.listeners:
                listener.update(dict.fromkeys(questions))

    def asked_again(self, questions: Iterable[Question]) -> bool:
        """Ask the same questions, in order; whether every answer is the same as then."""
        env = self.env
        return env is not None and all(question.asked_again(env) for question in questions)

    def known_of(self, symbols: Iterable[sympy.Symbol]) -> tuple[Any, ...] | None:
        """All that is known of symbols and of what they were found equal to.

        None for a front end's ShapeEnv, which may know more.
        """
        if not isinstance(self.env, NotingShapeEnv):
            return None
        found: dict[sympy.Symbol, tuple[Any, ...]] = {}
        pending = list(symbols)
        while pending:
            symbol = pending.pop()
            if symbol not in found:
                found[symbol] = torch_api.symbol_state(self.env, symbol)
                equal = found[symbol][-1]
                pending += equal.free_symbols if isinstance(equal, sympy.Basic) else ()
        return tuple(sorted(found.values(), key=lambda state: str(state[0])))

    def size(self, number: int | torch.SymInt) -> Size:
        """A torch number as an int or an expression."""
        if type(number) is int:
            return number
        if isinstance(number, torch.SymInt):
            return plain(torch_api.expression(number))
        return int(number)

    def scalar(self, number: torch.SymInt | torch.SymFloat | torch.SymBool) -> Any:
        """A symbolic number as an expression, or a Python number where it is one."""
        expr = torch_api.expression(number)
        if isinstance(number, torch.SymInt):
            return plain(expr)
        return float(expr) if isinstance(expr, sympy.Float) else expr

    def sizes(self, numbers: Any) -> tuple[Size, ...]:
        """Each of the torch numbers as an int or an expression."""
        size = self.size
        return tuple([n if type(n) is int else size(n) for n in numbers])

    def number(self, size: Size) -> int | torch.SymInt:
        """An int or an expression as torch takes it."""
        if isinstance(size, int):
            return size
        if self.env is None:
            raise AssertionError("an expression without symbols")
        known = self._numbers.get(size)
        if known is None:
            made: Any = self.env.create_symintnode(size, hint=self.hint(size))
            known = self._numbers[size] = made
        return known

    def symbolic(self, item: Any) -> Any:
        """Anything as torch takes it: expressions become symbolic numbers."""
        if not isinstance(item, sympy.Basic) or self.env is None:
            return item
        if item.is_integer:
            return self.number(item)
        if isinstance(item, Boolean):  # a Symbol is one too, to sympy
            return self.env.create_symboolnode(item)
        return self.env.create_symfloatnode(item, hint=float(self.concrete(item)))

    def concrete(self, item: Any) -> Any:
        """Anything with the numbers of the captured run put in for symbols."""
        return with_numbers(item, torch_api.symbol_values(self.env)) if self.env else item

    def fixed(self, size: Size) -> int:
        """The size as a number, which becomes a guard."""
        return int(self.number(size))

    def ranges(self) -> dict[sympy.Symbol, tuple[int, int]]:
        """From where to where each symbol may be, by the user's Dim and by torch's own rule.

        Nothing for a front end's ShapeEnv, as for `guards`.
        """
        noting = isinstance(self.env, NotingShapeEnv)
        return torch_api.symbol_ranges(self.env) if self.env and noting else {}

    def declare(self, size: Size, bounds: tuple[int, Any] | None) -> None:
        """Note a size of an input that may vary, and between what the user said, if at all."""
        self._declared.append((size, bounds))

    def constraints(self) -> dict[sympy.Expr, Any]:
        """The range of each size of an input, and of the symbols in it, as torch.export has it."""
        found: dict[sympy.Expr, Any] = {}
        for size, bounds in self._declared:
            expr = size if isinstance(size, int) else self.simplify(size)
            if self.env is not None and isinstance(expr, sympy.Expr) and expr.free_symbols:
                limits = torch_api.ValueRanges(*bounds) if bounds else self.env.bound_sympy(expr)
                found[expr] = found[expr] & limits if expr in found else limits
        for symbol in set().union(*(expr.free_symbols for expr in found)) - found.keys():
            found[symbol] = self.start().bound_sympy(symbol)
        return found

    def forget(self, symbols: list[sympy.Symbol]) -> None:
        """Leave out symbols that another stands for, which torch's tools would list as sizes."""
        for symbol in symbols:
            self.start().var_to_range.pop(symbol, None)

    def decide(self, relation: sympy.Basic) -> bool:
        """Whether a relation between sizes holds in the captured run; it becomes a guard."""
        return bool(self.symbolic(relation))

    def numbers(self) -> dict[sympy.Symbol, int]:
        """The number that each symbol had in the captured run."""
        values = torch_api.symbol_values(self.env) if self.env else {}
        return {symbol: int(value) for symbol, value in values.items()}

    def hint(self, size: Size) -> int:
        """The number that the size had in the captured run."""
        if isinstance(size, int) or self.env is None:
            return int(size)
        return int(size.xreplace(torch_api.symbol_values(self.env)))

    def unknown(self, tree: Any) -> list[sympy.Symbol]:
        """Symbols that had no number in the captured run, as they depend on data."""
        known = torch_api.symbol_values(self.env) if self.env else {}
        return sorted(free_symbols(tree) - set(known), key=str)

    def simplify(self, expr: Any) -> Any:
        """The expression, or number, with what the guards say put in."""
        return self.env.simplify(expr) if self.env and isinstance(expr, sympy.Basic) else expr

    def asked(self) -> list[sympy.Basic]:
        """Every condition so far, whoever checks it."""
        return [guard.expr for guard in self.env.guards] if self.env else []

    def equal(self, one: Size, other: Size) -> bool:
        """Whether two sizes are the same, by what the guards say."""
        both = (self.simplify(sympy.sympify(size)) for size in (one, other))
        return one == other or next(both) == next(both)

    def guards(self) -> tuple[Guard, ...]:
        """What the program has assumed of its symbols so far.

        Nothing for a front end's ShapeEnv: the front end checks its guards before it calls.
        """
        if not isinstance(self.env, NotingShapeEnv):
            return ()
        self.env.note()
        frames = self.env.frames
        return tuple(Guard(g.expr, f) for g, f in zip(self.env.guards, frames, strict=True))


def plain(expr: sympy.Basic) -> Size:
    """The expression, or an int where it is one."""
    return int(expr) if isinstance(expr, (int, sympy.Integer)) else expr


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


def free_symbols(tree: Any) -> set[sympy.Symbol]:
    """The symbols in a nested structure."""
    if isinstance(tree, (tuple, list)):
        return {symbol for item in tree for symbol in free_symbols(item)}
    if isinstance(tree, dict):
        return free_symbols(list(tree.values()))
    return set(tree.free_symbols) if isinstance(tree, sympy.Basic) else set()
