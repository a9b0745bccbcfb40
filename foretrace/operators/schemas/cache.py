"""Answers about operators: those of this capture, and those of every capture of the process.

What torch answers about its own operators (types of results, bodies, derivatives) holds in the next
capture. An answer about symbolic sizes depends on questions to the ShapeEnv of its capture; another
ShapeEnv is asked them again first.

`Cache.learn` asks in `torch_api.CleanRoom`: hooks and modes around a capture, or around a cut, do
not change what other captures get.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import sympy
import torch

from foretrace import forks, torch_api
from foretrace.ir.symbols.shape_env import NotingShapeEnv, Question
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree

T = TypeVar("T")

ONE_AT_A_TIME = forks.Lock()
"""Taken by a capture, and where torch is asked: both change state that all threads share."""

PLAIN = frozenset({
    int, bool, str, type(None), complex, torch.dtype, torch.device, torch.layout,
    torch.memory_format,
})  # fmt: skip
"""Types of constants that are their own key; the key of a float is its hexadecimal form."""


OWN = frozenset({"aten", "prims"})
"""Namespaces of torch's own operators; operators of others may be registered again."""

MOST = 30_000
"""How much of one kind is kept, in parts of keys; 30,000 are about 5 MB."""


class Lasting:
    """Answers by key; the least recently used are dropped first.

    The size of the keys is the bound: an answer is about as large as its key.

    Args:
        switches: torch's switches under which answers hold; one found under others is not kept.
    """

    __slots__ = ("_answers", "_size", "_switches")

    def __init__(self, switches: Any = None) -> None:
        self._answers: OrderedDict[Any, Any] = OrderedDict()
        self._size, self._switches = 0, switches

    def get(self, key: Any) -> Any:
        """The answer, or None."""
        found = self._answers.get(key)
        if found is not None:
            self._answers.move_to_end(key)
        return found

    def keep(self, key: Any, answer: Any) -> None:
        """Remember an answer."""
        if self._switches is not None and self._switches != torch_api.switches():
            return
        self._size += 0 if key in self._answers else _parts(key)
        self._answers[key] = answer
        while self._size > MOST:
            self._size -= _parts(self._answers.popitem(last=False)[0])


def _parts(key: Any) -> int:
    return 1 + sum(map(_parts, key)) if type(key) in (tuple, frozenset) else 1


class Learned:
    """The answers that hold for all captures under the same switches of torch, by kind.

    Args:
        switches: the state of torch's switches, as `torch_api.switches` has it; None: any.
    """

    def __init__(self, switches: Any = None) -> None:
        self.outcomes = Lasting(switches)
        self.formulas = Lasting(switches)
        """outcomes inside derivatives"""
        self.results, self.followed, self.rules = (Lasting(switches) for _ in range(3))
        self.slots = Lasting(switches)
        """what autograd passes to saved-tensor hooks"""
        self.raising = Lasting(switches)
        """whether a call may raise when it runs"""
        self.settled = set[Any]()
        """questions about sizes, each with the facts from which its answer followed"""
        self.below_autograd = set[Any]()
        """factories that Python calls below autograd, which follows none of their results"""


@dataclass(frozen=True, slots=True, eq=False)
class Conditional(Generic[T]):
    """An answer about symbolic sizes, and the questions to their ShapeEnv that it depends on."""

    answer: T
    questions: tuple[Question, ...]


class Cache(Generic[T]):
    """Answers of one kind by key: those of this capture, then those of all."""

    __slots__ = ("_asked", "_here", "_lasting", "_settled", "_symbols")

    def __init__(self, lasting: Lasting, settled: set[Any], symbols: Symbols) -> None:
        self._lasting, self._settled, self._symbols = lasting, settled, symbols
        self._here: dict[Any, T] = {}
        self._asked: dict[Any, tuple[Question, ...]] = {}

    def get(self, key: Any) -> T | None:
        """The answer, if it is known.

        One about symbolic sizes holds if the ShapeEnv answers its questions in the same way. Asking
        them creates the guards that finding the answer would create.
        """
        found = self._here.get(key)
        if found is not None:
            if self._asked and key in self._asked:
                self._report(self._asked[key])
            return found
        found = self._lasting.get(key)
        if found is not None:
            self._here[key] = found  # a key with this capture's own types is found faster
            return found
        return self._conditional(key, self._symbols.noting) if self._symbols.noting else None

    def _report(self, questions: tuple[Question, ...]) -> None:
        """Report questions to the listeners of the ShapeEnv, as if they were asked now."""
        if self._symbols.noting is not None:
            self._symbols.noting.notify(questions)

    def _conditional(self, key: Any, env: NotingShapeEnv) -> T | None:
        known = env.known_of(symbols_of(key))
        found: Conditional[T] | None = self._lasting.get((key, known)) if known else None
        if found is None:
            return None
        with env.listening():  # the program does not ask
            same = env.asked_again(found.questions, self._settled)
        if not same:
            return None
        self._here[key], self._asked[key] = found.answer, found.questions
        return found.answer

    def learn(self, key: Any, ask: Callable[[], T], lasting: Callable[[T], bool]) -> T:
        """Find the answer in the clean room, and store it.

        Args:
            key: what the answer depends on.
            ask: finds it.
            lasting: whether the answer holds in other captures, if its key does.
        """
        symbols = symbols_of(key) if self._symbols.env else None
        with torch_api.CleanRoom():
            if symbols:
                answer = self._learn_of_sizes(key, symbols, ask, lasting)
            else:
                answer = ask()
                if lasts(key) and lasting(answer):
                    self._store(key, answer)
        self._here[key] = answer
        return answer

    def _learn_of_sizes(
        self,
        key: Any,
        symbols: Iterable[sympy.Symbol],
        ask: Callable[[], T],
        lasting: Callable[[T], bool],
    ) -> T:
        env = self._symbols.noting
        if env is None:  # a front end's ShapeEnv
            return ask()
        known = env.known_of(symbols)
        with env.listening() as questions:
            answer = ask()
        self._asked[key] = tuple(questions)
        there = {state[0] for state in known}  # another capture has no other symbols
        own = all(question.symbols <= there for question in questions)
        if own and lasts(key) and lasting(answer):
            self._store((key, known), Conditional(answer, tuple(questions)))
        return answer

    def _store(self, key: Any, answer: Any) -> None:
        if len(self._settled) > MOST:
            self._settled.clear()
        self._lasting.keep(key, answer)


def lasts(key: Any) -> bool:
    """Whether a key means the same in every capture in which its symbols do."""
    kind = type(key)
    if kind is tuple or kind is frozenset:
        return all(map(lasts, key))
    if kind is torch_api.OpOverload:
        return key.namespace in OWN
    if isinstance(key, sympy.Basic):
        return not torch_api.is_float_from_data(key)
    return kind in PLAIN or kind is TensorType or kind is type


def symbols_of(key: Any) -> frozenset[sympy.Symbol]:
    """The symbols in a key."""
    if type(key) is TensorType:
        return key.symbols
    if type(key) is tuple:
        return frozenset().union(*map(symbols_of, key))
    return frozenset(key.free_symbols) if isinstance(key, sympy.Basic) else frozenset()


def frozen(tree: Tree, *, followed: bool = True) -> Any:
    """The structure as a key: numbers of different types, and zeros of different sign, differ.

    Without `followed`, the key does not depend on `requires_grad`.
    """
    if isinstance(tree, TensorType):
        return tree if followed else tree.with_grad(False)
    if isinstance(tree, (tuple, list)):
        return tuple([frozen(item, followed=followed) for item in tree])
    if isinstance(tree, dict):
        pairs = tree.items()
        return tuple([(name, frozen(item, followed=followed)) for name, item in pairs])
    if isinstance(tree, float):
        return tree.hex()
    return (type(tree), tree) if isinstance(tree, (int, bool)) else tree
