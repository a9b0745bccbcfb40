"""What a record asked, asked again with numbers in the place of sizes that were open."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import sympy
from sympy.logic.boolalg import BooleanAtom

from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op, Origin, Tree, Value
from foretrace.ir.program.recording import Recording
from foretrace.ir.source.call_site import Sources
from foretrace.ir.symbols.shape_env import Question
from foretrace.ir.symbols.symbols import Numbers, Symbols, put_in
from foretrace.lowering.specialize.equivalence import Unlike
from foretrace.operators.abstract_tensors.abstract_tensor import Types
from foretrace.operators.schemas.cache import Cache
from foretrace.operators.schemas.dispatch_result import Outcome
from foretrace.tracer.recorder.recorder import Recorder


class Again(Recorder):
    """Infers calls again; of those whose results data sizes, it is told what they gave."""

    def __init__(
        self, types: Types, semantics: TargetSemantics, outcome: Callable[[Op], Outcome]
    ) -> None:
        learned = semantics.learned
        outcomes: Cache[Outcome] = Cache(learned.outcomes, learned.settled, types.symbols)
        made: Any = (types, semantics, Sources(), _outside, _outside, _outside, outcomes)
        super().__init__(*made)
        self._outcome = outcome
        self._sized: list[Op] = []

    @contextmanager
    def told(self, sized: Sequence[Op]) -> Iterator[None]:
        """Inside, the calls whose results data sizes are these, in order.

        Raises:
            Unlike: others are made.
        """
        self._sized = list(sized)
        yield
        if self._sized:
            raise Unlike(f"{self._sized[0].target} is not called", self._sized[0])

    def looked_up(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], key: list[Any], operands: list[Value]
    ) -> Outcome:
        """As told, or as learned."""
        shared = None in self.bodies  # of other calls, whose results have sizes of their own
        if self._sized and self._sized[0].target is func and not shared:
            return self._outcome(self._sized.pop(0))
        return super().looked_up(func, args, kwargs, key, operands)


def check_asked(before: Recording, now: Symbols, small: Numbers) -> None:
    """Hold what the program itself asked of sizes against the answers with numbers put in.

    Args:
        before: the record.
        now: its symbols, of which some are numbers.
        small: these.

    Raises:
        Unlike: an answer is another, at the line that asked.
    """
    for question, frame in before.asked_of_sizes.items():
        if not _answered_alike(question, before, now, small):
            at = Op("asked", (), {}, None, (), origin=Origin(frame, None))
            raise Unlike(_words(question), at)


def _answered_alike(question: Question, before: Recording, now: Symbols, small: Numbers) -> bool:
    if question.symbols.isdisjoint(small):
        none = 0 in small.values()
        return not (none and not question.symbols)  # sympy takes all sizes for positive
    try:
        condition = put_in(question.args[0], small)
        if question.answer is None:  # what is done then is right for all sizes, to torch
            then = put_in(question.args[0], before.symbols.numbers())
            return bool(then == put_in(condition, now.numbers() | small))
    except ArithmeticError:
        return False
    if isinstance(condition, sympy.Basic):
        return question.about(condition).asked_again(now.start())
    return question.answered_by(condition)


def _outside(*args: object, **kwargs: object) -> NoReturn:
    raise Refusal(
        "it depends on more than sizes",
        kind="data-dependent",
        do="capture with an example of this size",
    )


def _words(question: Question) -> str:
    condition = question.args[0] if question.args else question.method
    if not question.symbols:
        return "the program asks what is true of every size but 0"
    if isinstance(question.answer, (bool, BooleanAtom)) or question.answer is None:
        return f"the program asks whether {condition}"
    return f"the program fixes {condition} to {question.answer}"
