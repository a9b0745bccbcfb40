"""A ShapeEnv of our own, and what it was asked: the same may be asked of another one."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sympy
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from foretrace import torch_api
from foretrace.errors import Frame
from foretrace.forks import cached_property

PLAIN = frozenset({int, float, bool, str, type(None)})
"""Types of what has no symbols"""


@dataclass(frozen=True)
class Question:
    """What a ShapeEnv was asked, and what it said."""

    method: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]
    answer: Any

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.method, self.args, self.kwargs))

    @cached_property
    def symbols(self) -> frozenset[sympy.Symbol]:
        """The symbols that it speaks of."""
        return frozenset(free_symbols((self.args, dict(self.kwargs))))

    def asked_again(self, env: ShapeEnv) -> bool:
        """Whether another ShapeEnv, asked now, says the same; it makes the same guards."""
        try:
            answer = getattr(env, self.method)(*self.args, **dict(self.kwargs))
        except (RuntimeError, ValueError):
            return False
        return bool(answer == self.answer)


class NotingShapeEnv(torch_api.RecordedShapeEnv):
    """A ShapeEnv that notes the user's line of each guard at the moment it arises.

    It reports every question to its listeners.
    """

    def __init__(
        self,
        where: Callable[[], Frame | None],
        compared: Callable[[sympy.Basic], bool | None] = lambda relation: None,
    ) -> None:
        super().__init__(duck_shape=False, specialize_zero_one=True)
        self.compared = compared
        self.where, self.frames = where, list[Frame | None]()
        self.asserted: dict[sympy.Basic, Frame | None] = {}
        """conditions on what depends on data, with the line that was running"""
        self.listeners: list[dict[Question, None]] = []
        self.settled: set[Question] = set()
        """asked again, with the same answer: what is known of symbols only grows"""

    def answered(self, relation: Any) -> Any:
        """The answer to what the program itself compares; None: the ShapeEnv has one."""
        return self.compared(relation)

    def report(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any
    ) -> None:
        """Let the listeners know; a guard that was added gets the line that is running."""
        self.note()
        if self.listeners and free_symbols((args, kwargs)):
            self.notify([Question(method, args, tuple(kwargs.items()), answer)])

    def note(self) -> None:
        """Give every guard without a line the line that is running."""
        while len(self.frames) < len(self.guards):
            self.frames.append(self.where())
        if self.num_deferred_runtime_asserts > len(self.asserted):
            for each in torch_api.assertions_of(self):
                if each.expr not in self.asserted:
                    self.asserted[each.expr] = self.where()

    @contextmanager
    def listening(self) -> Iterator[dict[Question, None]]:
        """Collect what is asked inside."""
        questions: dict[Question, None] = {}
        self.listeners.append(questions)
        try:
            yield questions
        finally:
            self.listeners.pop()

    def notify(self, questions: Iterable[Question]) -> None:
        """Let those who listen know of questions that were asked."""
        for listener in self.listeners:
            listener.update(dict.fromkeys(questions))

    def asked_again(self, questions: Iterable[Question], answered: set[Any]) -> bool:
        """Ask the same questions, in order; whether every answer is the same as then.

        Args:
            questions: what another ShapeEnv was asked.
            answered: questions with all that was known when the answer followed from it, so that
                no guard arose. Where the same is known, they need not be asked.
        """
        for question in questions:
            if question not in self.settled:
                known = question, self.known_of(question.symbols), self._assumed()
                if known not in answered:
                    if not question.asked_again(self):
                        return False
                    if self._assumed() == known[2]:
                        answered.add(known)
                self.settled.add(question)
        return True

    def _assumed(self) -> tuple[Any, ...]:
        """The conditions that it has taken for granted so far."""
        return (*(guard.expr for guard in self.guards), self.num_deferred_runtime_asserts)

    def known_of(self, symbols: Iterable[sympy.Symbol]) -> tuple[Any, ...]:
        """All that is known of symbols, and of what they were found equal to."""
        found: dict[sympy.Symbol, tuple[Any, ...]] = {}
        pending = list(symbols)
        while pending:
            symbol = pending.pop()
            if symbol not in found:
                found[symbol] = torch_api.symbol_state(self, symbol)
                equal = found[symbol][-1]
                pending += equal.free_symbols if isinstance(equal, sympy.Basic) else ()
        return tuple(sorted(found.values(), key=lambda state: str(state[0].name)))


def free_symbols(tree: Any) -> set[sympy.Symbol]:
    """The symbols in a nested structure."""
    found = set[sympy.Symbol]()
    _collect(tree, found)
    return found


def _collect(tree: Any, found: set[sympy.Symbol]) -> None:
    kind = tree.__class__
    if kind is sympy.Symbol:
        found.add(tree)
    elif kind in PLAIN:
        return
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            if item.__class__ not in PLAIN:
                _collect(item, found)
    elif isinstance(tree, dict):
        for item in tree.values():
            _collect(item, found)
    elif isinstance(tree, sympy.Basic):
        found.update(tree.free_symbols)
