"""One path through a program: answers to the yes-or-no questions that data decides.

A path is chosen without data. Each question leaves a marker op in the record, at which the runs
that differ from there on are merged (`session/both_branches/`).
"""

from collections.abc import Iterable
from typing import Any, Final

from foretrace import torch_api
from foretrace.errors import Frame, Refusal
from foretrace.ir.program.equality import ValueNumbers
from foretrace.ir.program.op import Op
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.values.value import Tree, Value, values_in
from foretrace.tracer.concrete.concrete_values import Constants
from foretrace.tracer.concrete.rng_draws import draws
from foretrace.tracer.recorder.recorder import Recorder

QUESTIONS: Final = 8
"""Limit of questions on one path through a program: each doubles the runs."""
SYMBOLS: Final = 10_000
"""More symbols than data decides between two questions"""
KIND: Final = "both sides"
ONE: Final = 'or leave branches="guard": the example answers, and the answer is guarded'


class BranchMarker:
    """Target of the op that marks a question; `number` were asked before it."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __str__(self) -> str:
        return f"question {self.number + 1}"


class AnswerPath:
    """The answers of one run to questions about data, in the order that it asks them.

    Args:
        prefix: the first answers. Without one, the example answers as far as it
            can. With one, later answers are yes.
    """

    def __init__(self, prefix: tuple[bool, ...] = ()) -> None:
        self.prefix = prefix
        self.begin()

    def begin(self) -> None:
        """Begin a run: nothing is asked yet."""
        self.answers: list[bool] = []
        self.frames: list[Frame | None] = []
        self._known: dict[Any, bool] = {}
        self._numbers = ValueNumbers()
        self._of_data: set[int] = set()
        """numbers of what data decides"""
        self._seen = 0

    @property
    def names_from(self) -> int:
        """The first number for names of symbols, unique to this row of answers."""
        row = int("1" + "".join(str(int(answer)) for answer in self.answers), 2)
        return row * SYMBOLS

    def asks_data(self, constants: Constants, recorder: Recorder, func: Any, args: Tree) -> bool:
        """Whether the answer to a call depends on what inputs hold, or on what is drawn."""
        self._follow(constants, recorder.scope.log)
        return self._call(constants, func, args, {}) in self._of_data

    def answer(
        self,
        constants: Constants,
        recorder: Recorder,
        call: tuple[Any, Tree, dict[str, Tree]],
        example: bool | None,
    ) -> tuple[bool, BranchMarker | None]:
        """The answer, and the mark of a question that was not asked before.

        Raises:
            Refusal: there are too many.
        """
        form = self._call(constants, *call)
        if form in self._known:
            return self._known[form], None
        number = len(self.answers)
        if number == QUESTIONS:
            raise self._too_many(recorder.sources.here())
        default = True if example is None or self.prefix else example
        found = self.prefix[number] if number < len(self.prefix) else default
        self.answers.append(found)
        self.frames.append(recorder.sources.here())
        self._known[form] = found
        return found, BranchMarker(number)

    def _too_many(self, at: Frame | None) -> Refusal:
        return Refusal(
            f"the program asks data more than {QUESTIONS} times on one way through it, and"
            ' branches="both" runs it once for each row of answers',
            kind=KIND,
            at=at,
            near=[f"  {so!s:<5} at {at}" for so, at in zip(self.answers, self.frames, strict=True)],
            do=("ask fewer: choose with torch.where, or write the loop with torch.while_loop", ONE),
        )

    # ---- what a value follows from --------------------------------------------------------------

    def _follow(self, constants: Constants, log: list[Op]) -> None:
        self._note(constants, log[self._seen :])
        self._seen = len(log)

    def _note(self, constants: Constants, ops: Iterable[Op]) -> None:
        for op in ops:
            self._note(constants, op.own or ())
            new = [out for out in op.outs if out not in self._numbers.known]
            if not new:
                continue
            drawn = draws(op)
            called = op if drawn else (op.target, id(op.outcome))
            form = self._call(constants, called, op.args, op.kwargs)
            if drawn:
                self._of_data.add(form)
            for place, out in enumerate(new):
                number = self._numbers.known[out] = self._numbers.number((form, place))
                self._of_data |= {number} if form in self._of_data else set()

    def _call(self, constants: Constants, func: Any, args: Tree, kwargs: Any = ()) -> int:
        """A number for a call: equal for two that compute the same."""
        arguments = (args, dict(kwargs))
        operands = {self._value(constants, value) for value in values_in(arguments)}
        number = self._numbers.call(func, arguments)
        symbols = free_symbols(arguments)
        if operands & self._of_data or any(map(torch_api.is_float_from_data, symbols)):
            self._of_data.add(number)
        return number

    def _value(self, constants: Constants, value: Value) -> int:
        """The number of a value; an input is what only a call decides."""
        new = value not in self._numbers.known
        number = self._numbers.of(value)
        if new and value not in constants.literals:
            self._of_data.add(number)
        return number
