"""Sizes 0 and 1 of a graph whose sizes are open: let through where the graph is shown to hold.

Torch takes an open size for 2 or more: 1 is expanded, and of 0 there is nothing. So what was
recorded need not be what eager does with them. It is inferred once more, with the number in the
place of the size, and holds where nothing is another: no op, no choice, no derivative.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from foretrace import torch_api
from foretrace.errors import Frame, Refusal
from foretrace.ir.program import Graph, Recorded
from foretrace.ops.cache import ONE_AT_A_TIME
from foretrace.passes.alike import Differs, Unlike
from foretrace.passes.put_in import TAKEN, PutIn
from foretrace.recording.torch_state import running, uncollected
from foretrace.symbols.sizes import MANY, Guard, Numbers, put_in
from foretrace.targets.semantics import TargetSemantics

Make = Callable[[Recorded, TargetSemantics, Callable[[Any], Any]], Graph]
"""Makes the graph of a record; the last puts numbers in for symbols"""

DO = "capture with an example of this size"


@dataclass(frozen=True, slots=True)
class _Shown:
    """What was found for some numbers; it holds where the guards do."""

    differs: Differs | None
    guards: tuple[Guard, ...]


class SmallSizes:
    """Whether one graph holds where open sizes are 0 or 1; for each of them it is found once.

    Args:
        recorded: the record with open sizes.
        semantics: what its ops mean.
        graph: the graph that is called.
        make: makes it anew, of a record at other sizes.
    """

    def __init__(
        self, recorded: Recorded, semantics: TargetSemantics, graph: Graph, make: Make
    ) -> None:
        self.recorded, self.semantics, self.graph, self.make = recorded, semantics, graph, make
        self._known = dict[frozenset[tuple[Any, int]], list[_Shown]]()

    def holds(self, numbers: Numbers) -> bool:
        """Whether it does for a call."""
        return self._differs(numbers) is None

    def check(self, numbers: Numbers) -> None:
        """Refuse a call for which it does not.

        Raises:
            Refusal: with the line of what is another.
        """
        if not self.holds(numbers):
            words, at = self.tell(numbers)
            raise Refusal(f"guard broken: {words}", kind="guard broken", at=at, do=DO)

    def tell(self, numbers: Numbers) -> tuple[str, Frame | None]:
        """Why it does not, in words, and the line that shows it."""
        differs = self._differs(numbers)
        small = ", ".join(f"{s} = {n}" for s, n in sorted(numbers.items(), key=str) if n < MANY)
        return (
            f"a dynamic size is 0 or 1 ({small}), and {differs.what if differs else ''}",
            differs.at if differs else None,
        )

    def _differs(self, numbers: Numbers) -> Differs | None:
        small = {symbol: n for symbol, n in numbers.items() if n < MANY}
        least = self.recorded.symbols.reaches_down()
        small = {symbol: n for symbol, n in small.items() if symbol in least}
        if not small:
            return None
        shown = self._known.setdefault(frozenset(small.items()), [])
        for each in shown:
            if all(_true(guard, numbers) for guard in each.guards):
                return each.differs
        shown.append(self._find(numbers, small))
        return shown[-1].differs

    def _find(self, numbers: Numbers, small: Numbers) -> _Shown:
        symbols = self.recorded.symbols
        every = {**symbols.numbers(), **numbers}
        count = len(symbols.guards())
        quiet = warnings.catch_warnings(action="ignore")
        with ONE_AT_A_TIME, uncollected(), torch.inference_mode(mode=False), quiet:
            try:
                put = self._put_in(every, small)
                differs = None
            except Unlike as unlike:
                return _Shown(unlike.differs, ())
        return _Shown(differs, put.symbols.guards()[count:])

    def _put_in(self, numbers: Numbers, small: Numbers) -> PutIn:
        put = PutIn(self.recorded, self.semantics, numbers, small)
        absent = self.semantics.target.device.type not in torch_api.device_types_here()
        with running(put.recorder, {}, absent):
            put.run()
        if self.graph.kind == "joint" and put.functions:
            raise Unlike("a Function's own backward may ask for the size", put.functions[0])
        try:
            graph = self.make(put.recorded, put.semantics, put.put)
        except TAKEN as error:
            at = getattr(error, "at", None)
            words = error.what if isinstance(error, Refusal) else error
            raise Unlike(f"{words}", None, at) from error
        put.alike.strict = False
        put.alike.graphs(self.graph, graph)
        return put


def _true(guard: Guard, numbers: Numbers) -> bool:
    try:
        return bool(put_in(guard.condition, numbers))
    except (ArithmeticError, TypeError):
        return False
