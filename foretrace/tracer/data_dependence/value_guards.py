"""Yes-or-no questions about values: answered, kept as guards, asserted in the graph.

An assertion is an op at the place of the question, so that every cut has it (decision 022). Where
both sides of a question are recorded, the run's `AnswerPath` answers.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import sympy
import torch

from foretrace.errors import Refusal
from foretrace.ir.program.op import Op, target_name
from foretrace.ir.program.value_guard import SymbolGuard, ValueGuard
from foretrace.ir.symbols.substitution import Numbers
from foretrace.ir.values.value import Tree, Value
from foretrace.tracer.concrete.concrete_values import Constants, Root, content
from foretrace.tracer.concrete.unknown_values import depends_on_inputs
from foretrace.tracer.data_dependence.answer_path import AnswerPath
from foretrace.tracer.data_dependence.comparison_ops import asked_by_program, condition_of
from foretrace.tracer.recorder.recorder import Recorder

aten = torch.ops.aten
ASSERT = aten._assert_async.msg

Call = tuple[Any, Tree, dict[str, Tree]]
Number = tuple[Any, bool]
"""A number that is read, and whether inputs decide it"""


class ValueGuards:
    """Answers the questions of one run, and keeps those whose answers later calls have to give."""

    def __init__(self, constants: Constants) -> None:
        self.constants = constants
        self.path: AnswerPath | None = None
        """the answers of this run, where both sides are recorded"""
        self.answered: list[ValueGuard] = []
        self._calls: dict[ValueGuard, Call] = {}
        self._inputs: dict[Value, int] = {}
        self._known: dict[Any, ValueGuard] = {}
        self._asserted: set[Any] = set()

    def follow(self, path: AnswerPath | None, recorder: Recorder) -> None:
        """Answer this run's questions by a path; None: by the example."""
        self.path = path
        if path is not None:
            path.begin()
            recorder.types.symbols.compare_by(partial(self.compared, recorder))

    def finish(self, recorder: Recorder) -> list[ValueGuard]:
        """Release the values of the run; returns the guards."""
        self.constants.finish(recorder.scope.log)
        return self.answered

    def answer(
        self, recorder: Recorder, func: Any, args: Tree, kwargs: dict[str, Tree], *,
        sides: bool = True, said: str = "",
    ) -> Any:  # fmt: skip
        """What a call returns whose operands are constants, or follow from inputs.

        `sides`: whether both sides of it may be recorded, where that is wanted. `said`: the text of
        the question, if not the operator's name.

        Raises:
            Refusal: an operand has no value, or a number depends on an input.
        """
        constants, call = self.constants, (func, args, kwargs)
        constants.follow(recorder.scope.log, recorder.scope.bodies)
        if sides and self.path is not None and self._has_sides(self.path, recorder, call):
            return self._answer_on_path(self.path, recorder, call)
        answer = constants.run(*call)
        if _of_other_sizes(recorder, *call[:2]):
            return answer
        roots = constants.roots_of(call[1:])
        inputs = any(not isinstance(root, sympy.Symbol) for root in roots)
        if inputs and (not isinstance(answer, bool) or None in recorder.scope.bodies):
            raise depends_on_inputs(func)
        if roots:
            form = constants.numbers.call(func, call[1:])
            known = self._known.get(form) or self._guard(recorder, call, roots, answer, said)
            self._known[form] = known
            if inputs and form not in self._asserted:
                self._assert(recorder, call, known)
                if not recorder.scope.bodies:
                    self._asserted.add(form)
        return answer

    def number(self, recorder: Recorder, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Number:
        """What a call gives that reads a number, and whether inputs or random numbers decide it.

        Raises:
            Refusal: an operand has no value.
        """
        found = self.example(recorder, func, args, kwargs)
        roots = self.constants.roots_of((args, kwargs))
        return found, any(not isinstance(root, sympy.Symbol) for root in roots)

    def of_numbers(
        self, recorder: Recorder, call: Call, numbers: Sequence[Any], answer: bool, said: str
    ) -> bool:
        """Guard a known answer about numbers that data decides.

        Args:
            recorder: what records the program.
            call: the question, as it is asked of a tensor of the graph.
            numbers: its operands in their order: symbols, and numbers of Python's.
            answer: its answer.
            said: the text of the question.

        Returns:
            Whether the guard suffices: else the graph computes the answer.
        """
        constants, roots = self.constants, frozenset[Root]()
        if self.path is not None or recorder.scope.bodies:
            return False
        constants.follow(recorder.scope.log, ())
        for number in (each for each in numbers if isinstance(each, sympy.Symbol)):
            of = constants.roots_of_number(number)
            if not of:
                return False
            roots |= of
        form = said, *numbers
        if form not in self._known:
            self._known[form] = known = self._guard(recorder, call, roots, answer, said)
            if any(not isinstance(root, sympy.Symbol) for root in roots):
                self._assert(recorder, call, known)
        return True

    def example(self, recorder: Recorder, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Any:
        """What a call gives of the example's values.

        Raises:
            Refusal: an operand has no value.
        """
        self.constants.follow(recorder.scope.log, recorder.scope.bodies)
        found = self.constants.run(func, args, kwargs)
        self._note_inputs(self.constants.roots_of((args, kwargs)))
        return found

    def _has_sides(self, path: AnswerPath, recorder: Recorder, call: Call) -> bool:
        """Whether a call asks yes or no of data in the program's own code.

        What a kernel or a program that an op holds asks has no place of its own for two sides.
        """
        func, args, _ = call
        number = func in ASKED[1:] and args[0].type.dtype is not torch.bool
        own = not (recorder.scope.bodies or recorder.scope.in_subgraph or number)
        return (
            own
            and can_assert(func)
            and path.asks_data(self.constants, recorder, func, args)
            and not _of_other_sizes(recorder, func, args)
        )

    def compared(self, recorder: Recorder, relation: Any) -> bool | None:
        """The path's answer to a comparison of numbers, where both sides are recorded.

        None: the ShapeEnv answers.
        """
        path, symbols = self.path, recorder.types.symbols
        if path is None or recorder.inside or recorder.scope.in_subgraph:
            return None
        if not asked_by_program(relation, symbols):
            return None
        call: Call = (ASKED[0], (condition_of(relation, recorder),), {})
        self.constants.follow(recorder.scope.log, recorder.scope.bodies)
        path.asks_data(self.constants, recorder, *call[:2])
        return self._answer_on_path(path, recorder, call)

    def _answer_on_path(self, path: AnswerPath, recorder: Recorder, call: Call) -> bool:
        """The answer of this run; records the condition and a marker op."""
        example = None if path.prefix else self._of_example(call)
        answer, asked = path.answer(self.constants, recorder, call, example)
        if asked is not None:
            mark = (_condition(recorder, *call),)
            recorder.append(Op(asked, mark, {}, None, (), origin=recorder.origin()))
            recorder.types.symbols.count_from(path.names_from)
        return answer

    def _of_example(self, call: Call) -> bool | None:
        """What the example says; None where it has no data."""
        try:
            return bool(self.constants.run(*call))
        except Refusal:
            return None

    def _guard(
        self, recorder: Recorder, call: Call, roots: frozenset[Root], answer: Any, said: str
    ) -> ValueGuard:
        index = self.constants.inputs
        inputs = sorted((r for r in roots if isinstance(r, Value)), key=lambda v: index[v][0])
        answered = ValueGuard(
            said or target_name(call[0]),
            tuple(value.hint for value in inputs),
            any(isinstance(root, Op) for root in roots),
            answer,
            frozenset(root for root in roots if isinstance(root, sympy.Symbol)),
            recorder.sources.here(),
            self.again,
            can_assert(call[0]),
            len(self.answered),
        )
        self._note_inputs(roots)
        self._calls[answered] = call
        self.answered.append(answered)
        return answered

    def again(
        self, sizes: Numbers, tensors: Sequence[torch.Tensor] = ()
    ) -> Callable[[ValueGuard], bool]:
        """A check of guards for another call; values that guards share are computed once."""
        values = {value: content(tensors[index]) for value, index in self._inputs.items()}
        return partial(self._holds, self.constants.at(sizes, values))

    def _note_inputs(self, roots: frozenset[Root]) -> None:
        inputs = self.constants.inputs
        self._inputs |= {root: inputs[root][0] for root in roots if isinstance(root, Value)}

    def _holds(self, now: Constants, answered: ValueGuard) -> bool:
        if isinstance(answered, SymbolGuard):
            return now.holds(answered.of)
        return _same_answer(now.run(*self._calls[answered]), answered.answer)

    def _assert(self, recorder: Recorder, call: Call, answered: ValueGuard) -> None:
        """Record an op that raises where the answer differs."""
        condition = _condition(recorder, *call)
        if condition is None:
            return
        if not answered.answer:
            condition = recorder.computed(aten.logical_not.default, condition)
        check = (condition, answered.text)
        recorder.append(Op(ASSERT, check, {}, None, (), origin=recorder.origin()))


def _same_answer(now: Any, then: Any) -> bool:
    """Whether an operator gave the same: a number, a tensor, or several of them."""
    if isinstance(then, (tuple, list)):
        return len(now) == len(then) and all(map(_same_answer, now, then))
    return torch.equal(now, then) if isinstance(then, torch.Tensor) else bool(now == then)


def _of_other_sizes(recorder: Recorder, func: Any, args: Tree) -> bool:
    """Whether a comparison is answered by its operands' numbers of sizes, or by fixed sizes."""
    if func not in COMPARES_SIZES:
        return False
    one, other = (value.type.shape for value in args)
    pairs = list(zip(one, other, strict=False))
    fixed = [pair for pair in pairs if all(isinstance(n, int) for n in pair)]
    return len(one) != len(other) or any(a != b for a, b in fixed)


def can_assert(func: Any) -> bool:
    """Whether the answer can be computed as a tensor."""
    return func in CONDITIONS


def _condition(recorder: Recorder, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Value | None:
    """What the answer is, as a tensor of the graph."""
    condition = CONDITIONS.get(func)
    return None if condition is None else condition(recorder, args, kwargs)


def _is_nonzero(recorder: Recorder, args: Tree, kwargs: dict[str, Tree]) -> Value:
    asked: Value = args[0]
    if asked.type.dtype is torch.bool:
        return asked
    return recorder.computed(aten.ne.Scalar, asked, 0)


def _all_equal(recorder: Recorder, args: Tree, kwargs: dict[str, Tree]) -> Value:
    return recorder.computed(aten.all.default, recorder.computed(aten.eq.Tensor, *args))


def _all_close(recorder: Recorder, args: Tree, kwargs: dict[str, Tree]) -> Value:
    close = recorder.computed(aten.isclose.default, *args, **kwargs)
    return recorder.computed(aten.all.default, close)


ASKED = (aten.is_nonzero.default, aten.item.default, aten._local_scalar_dense.default)
COMPARES_SIZES = frozenset({aten.equal.default})
"""Operators that return False where sizes differ, and do not raise"""
CONDITIONS: Final[Mapping[Any, Callable[[Recorder, Tree, dict[str, Tree]], Value]]] = (
    MappingProxyType(
        {
            **dict.fromkeys(ASKED, _is_nonzero),
            aten.equal.default: _all_equal,
            aten.allclose.default: _all_close,
        }
    )
)
"""Operators that answer yes or no about data, and what computes the answer as a tensor"""
