"""Sizes that are not yet known, and what the program assumed of them, over torch's ShapeEnv."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import sympy
import torch
from sympy.logic.boolalg import Boolean
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from foretrace import torch_api
from foretrace.errors import Frame
from foretrace.ir.symbols.shape_env import NotingShapeEnv, free_symbols
from foretrace.ir.symbols.substitution import Size, plain, with_numbers
from foretrace.ir.symbols.sym_float import EXACT, Floats

MANY = 2
"""From where on one size is like another, to torch: 1 is expanded, of 0 there is nothing"""


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition on the symbols that the program relied on, and the user's line that asked."""

    condition: sympy.Basic
    frame: Frame | None

    @property
    def symbols(self) -> frozenset[sympy.Symbol]:
        """The symbols that it speaks of."""
        return frozenset(self.condition.free_symbols)

    def __str__(self) -> str:
        return f"{self.condition}" + (f"  at {self.frame}" if self.frame is not None else "")


class Symbols:
    """Numbers of the program as torch has them, and as types have them."""

    def __init__(
        self, where: Callable[[], Frame | None] = lambda: None, env: ShapeEnv | None = None
    ) -> None:
        self._where = where
        self._compared: Callable[[sympy.Basic], bool | None] = lambda relation: None
        self.env = env
        self.floats = Floats()
        self.declared: list[tuple[Size, tuple[int, Any] | None]] = []
        self.log = torch_api.CaptureLog()
        """the capture that they are of, in torch's structured log"""
        self.sequence: dict[Hashable, int] = {}
        """by what an op makes, the number that it and its backward have in each graph"""
        self._numbers: dict[sympy.Expr, torch.SymInt] = {}
        """one for each expression: to make one, sympy has to find its hint"""

    def compare_by(self, compared: Callable[[sympy.Basic], bool | None]) -> None:
        """Let what the program itself compares be answered so, where both answers are recorded."""
        self._compared = compared

    def start(self) -> ShapeEnv:
        """The ShapeEnv, created at the first symbolic size; a front end's, where there is one."""
        if self.env is None:
            self.env = NotingShapeEnv(self._where, self._compared)
        return self.env

    @property
    def noting(self) -> NotingShapeEnv | None:
        """The ShapeEnv if it is our own; a front end's may know more than it says."""
        return self.env if isinstance(self.env, NotingShapeEnv) else None

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

    def from_data(self, symbol: sympy.Symbol, number: int) -> None:
        """Note what a symbol that depends on data was in the captured run."""
        self.floats.begin()
        torch_api.note_value(self.start(), symbol, number)

    def number_from_data(self, number: float) -> sympy.Symbol:
        """A new symbol for a number that depends on data, which it was in the captured run."""
        if type(number) is float:
            self.floats.begin()
            return self.floats.new(self.start(), number)
        created = torch_api.expression(self.start().create_unbacked_symint())
        self.from_data(created, int(number))
        symbol: sympy.Symbol = created
        return symbol

    def size_from_data(self, number: int) -> Size:
        """A new symbol for a size that depends on data, which it was in the captured run."""
        size = self.size(torch_api.new_size(self.start()))
        self.from_data(size, number)
        return size

    def count_from(self, number: int) -> None:
        """Name symbols that depend on data from a number on, as no other run names its own."""
        torch_api.count_from(self.start(), number)
        torch_api.count_floats_from(self.start(), number)

    def adopt(self, other: "Symbols", symbols: Iterable[sympy.Symbol]) -> None:
        """Have symbols that depend on data as another run of the program has them."""
        for symbol in symbols:
            if symbol in other.floats.known:
                self.start()
                self.floats.known[symbol] = other.floats.known[symbol]
            elif symbol not in self.data:
                torch_api.adopt_symbol(self.start(), other.start(), symbol)

    def assume(self, guards: Iterable[Guard]) -> None:
        """Assume what another run of the program has assumed, for its lines."""
        for guard in guards:
            env: Any = self.start()
            where, env.where = env.where, partial(_same_frame, guard.frame)
            try:
                self.decide(guard.condition)
                env.note()
            finally:
                env.where = where

    @property
    def data(self) -> set[sympy.Symbol]:
        """The symbols that depend on data: an op of the program gives each its number."""
        found = set(torch_api.values_from_data(self.noting)) if self.noting else set()
        return found | self.floats.known.keys()

    def assertions(self) -> tuple[Guard, ...]:
        """What the program has assumed of symbols that depend on data: asserted where it runs."""
        if self.noting is None:
            return ()
        self.noting.note()
        floats = [Guard(*each) for each in self.floats.conditions.items()]
        known = torch_api.symbol_values(self.noting).keys()  # a kernel makes symbols that it drops
        asserted = self.noting.asserted.items()
        guards = (Guard(c, at) for c, at in asserted if c.free_symbols <= known)
        return (*guards, *floats)

    def number(self, size: Size) -> int | torch.SymInt:
        """An int or an expression as torch takes it."""
        if isinstance(size, int):
            return size
        if self.env is None:
            raise AssertionError("an expression without symbols")
        known = self._numbers.get(size)
        if known is None:
            unknown = size.free_symbols & self.data or self.unknown(size)
            hint = None if unknown else self.hint(size)
            created: Any = self.env.create_symintnode(size, hint=hint)
            known = self._numbers[size] = created
        return known

    def symbolic(self, item: Any) -> Any:
        """Anything as torch takes it: expressions become symbolic numbers."""
        if not isinstance(item, sympy.Basic) or self.env is None:
            return item
        if item in self.floats.known:
            return self.floats.symbolic(item, self.env)
        if item.is_integer:
            return self.number(item)
        if isinstance(item, Boolean):  # a Symbol is one too, to sympy
            return self.env.create_symboolnode(item)
        unknown = item.free_symbols & self.data
        hint = None if unknown else float(self.concrete(item))
        return self.env.create_symfloatnode(item, hint=hint)

    def concrete(self, item: Any) -> Any:
        """Anything with the numbers of the captured run put in for symbols."""
        if type(item) in EXACT:
            return item
        if isinstance(item, sympy.Symbol) and item in self.floats.known:
            return self.floats.known[item]
        return with_numbers(item, torch_api.symbol_values(self.env)) if self.env else item

    def fix(self, symbol: sympy.Symbol) -> float:
        """What a float of data was; that it is the same is asserted where a graph runs."""
        return self.floats.fix(symbol, self._where())

    def assume_unequal(self, symbol: sympy.Symbol, number: float) -> None:
        """A derivative relies on a float being another than that: it is asserted, too."""
        self.floats.conditions.setdefault(sympy.Ne(symbol, number), self._where())

    def fixed(self, size: Size) -> int:
        """The size as a number, which becomes a guard."""
        return int(self.number(size))

    def ranges(self) -> dict[sympy.Symbol, tuple[int, int]]:
        """From where to where each symbol may be, by the user's Dim and by torch's own rule.

        Nothing for a front end's ShapeEnv, as for `guards`.
        """
        return torch_api.symbol_ranges(self.noting) if self.noting else {}

    def reaches_down(self) -> dict[sympy.Symbol, int]:
        """The symbols that may be shown to hold for 1, or 0, too; and from where by the user's Dim.

        Torch takes every open size for 2 or more.
        """
        least = {symbol: 0 for symbol, (low, _) in self.ranges().items() if low >= MANY}
        for size, bounds in self.declared:
            for symbol in free_symbols(size) & set(least):
                low = 0 if bounds is None else bounds[0] if size == symbol else MANY
                least[symbol] = max(least[symbol], int(low))
        return {symbol: low for symbol, low in least.items() if low < MANY}

    @property
    def inside(self) -> bool:
        """Whether it is an op that asks now: somebody listens."""
        return self.noting is not None and bool(self.noting.listeners)

    def below(self) -> AbstractContextManager[Any]:
        """What is asked inside is asked by the body of an op, not by the program."""
        return self.noting.listening() if self.noting is not None else nullcontext()

    def declare(self, size: Size, bounds: tuple[int, Any] | None) -> None:
        """Note a size of an input that may vary, and between what the user said, if at all."""
        self.declared.append((size, bounds))

    def constraints(self) -> dict[sympy.Expr, Any]:
        """The range of each size of an input, and of the symbols in it, as torch.export has it."""
        found: dict[sympy.Expr, Any] = {}
        for size, bounds in self.declared:
            expr = size if isinstance(size, int) else self.simplify(size)
            if self.env is not None and isinstance(expr, sympy.Expr) and expr.free_symbols:
                limits = torch_api.ValueRanges(*bounds) if bounds else self.env.bound_sympy(expr)
                found[expr] = found[expr] & limits if expr in found else limits
        free = (self.data - self.floats.known.keys()).union(*(expr.free_symbols for expr in found))
        for symbol in free - found.keys():
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

    def other_numbers(self) -> dict[sympy.Symbol, int]:
        """Numbers unlike those, and unlike each other but where the guards say that they agree.

        A kernel that is run with them need not look whether they do.
        """
        numbers = self.numbers()
        separate = {symbol: n + 6 + 2 * i for i, (symbol, n) in enumerate(numbers.items())}
        return {symbol: int(self.simplify(symbol).xreplace(separate)) for symbol in numbers}

    def hint(self, size: Size) -> int:
        """The number that the size had in the captured run."""
        if isinstance(size, int) or self.env is None:
            return int(size)
        return int(size.xreplace(torch_api.symbol_values(self.env)))

    def unknown(self, tree: Any) -> list[sympy.Symbol]:
        """Symbols that had no number in the captured run, as they depend on data."""
        known = torch_api.symbol_values(self.env) if self.env else {}
        return sorted(free_symbols(tree) - set(known) - self.floats.known.keys(), key=str)

    def simplify(self, expr: Any) -> Any:
        """The expression, or number, with what the guards say put in.

        Not with the ranges of symbols, by which torch makes `s` of `Max(1, s)`, and from 2.15 on of
        `Max(2, s)`: a call's sizes may be 0 and 1.
        """
        if self.env is None or not isinstance(expr, sympy.Basic):
            return expr
        return self.env.simplify(expr, size_oblivious=True)

    def asked(self) -> list[sympy.Basic]:
        """Every condition so far, whoever checks it."""
        return [guard.expr for guard in self.env.guards] if self.env else []

    def settled(self, size: Size) -> Size:
        """A size as the number 0 or 1 where the guards say so: its stride does not count."""
        if isinstance(size, (int, sympy.Symbol)) or (hint := self.hint(size)) > 1:
            return size
        return hint if sympy.Eq(size, hint) in self.asked() else plain(self.simplify(size))

    def equal(self, one: Size, other: Size) -> bool:
        """Whether two sizes are the same, by what the guards say."""
        if one == other:
            return True
        first, second = (self.settled(self.simplify(sympy.sympify(n))) for n in (one, other))
        return bool(first == second)

    def same(self, one: Sequence[Size], other: Sequence[Size]) -> bool:
        """Whether two shapes are the same, by what the guards say."""
        return len(one) == len(other) and all(map(self.equal, one, other))

    def guards(self) -> tuple[Guard, ...]:
        """What the program has assumed of its symbols so far.

        Nothing for a front end's ShapeEnv: the front end checks its guards before it calls.
        """
        env = self.noting
        if env is None:
            return ()
        env.note()
        return tuple(Guard(g.expr, f) for g, f in zip(env.guards, env.frames, strict=True))


def _same_frame(frame: Frame | None) -> Frame | None:
    return frame
