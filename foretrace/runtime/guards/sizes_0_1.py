"""Sizes 0 and 1 of a record whose sizes are open: let through where the record is shown to hold.

Torch takes an open size for 2 or more: 1 is expanded, and of 0 there is nothing. So what was
recorded need not be what eager does with them. It is inferred once more, with the number in the
place of the size, and holds where the program could not have told. The graph holds, too, where
nothing is another in it: no op, no choice, no derivative. Else there is another for these sizes.
"""

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from foretrace import torch_api
from foretrace.autograd.derivatives.target_semantics import Captured, TargetSemantics
from foretrace.errors import Frame, Refusal
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.symbols.symbols import MANY, Guard, Numbers, put_in
from foretrace.lowering.specialize.equivalence import Differs, Unlike
from foretrace.lowering.specialize.specialize import TAKEN, Specializer
from foretrace.operators.schemas.cache import ONE_AT_A_TIME
from foretrace.session.run.torch_patches import UNCOLLECTED, running

Make = Callable[[Recording, TargetSemantics, Callable[[Any], Any]], Graph]
"""Makes the graph of a record; the last puts numbers in for symbols"""

DO = "capture with an example of this size"


@dataclass(frozen=True, slots=True)
class _Shown:
    """What was found for some numbers; it holds where the guards do."""

    differs: Differs | None
    """how the graph does, if it does"""
    guards: tuple[Guard, ...]
    there: Captured | None = None
    """the record with the numbers put in; None: it is another program"""


class SmallSizes:
    """Whether one graph holds where open sizes are 0 or 1; for each of them it is found once.

    Where it does not and the record does, that has a graph of its own there.

    Args:
        recorded: the record with open sizes.
        semantics: what its ops mean.
        graph: the graph that is called.
        make: makes it anew, of a record at other sizes.
    """

    def __init__(
        self, recorded: Recording, semantics: TargetSemantics, graph: Graph, make: Make
    ) -> None:
        self.recorded, self.semantics, self.graph, self.make = recorded, semantics, graph, make
        self._known = dict[frozenset[tuple[Any, int]], list[_Shown]]()

    def holds(self, numbers: Numbers) -> bool:
        """Whether the graph does for a call."""
        shown = self._shown(numbers)
        return shown is None or shown.differs is None

    def everywhere(self, small: Numbers) -> bool:
        """Whether the graph does with some sizes that are 0 or 1, whatever the others are."""
        symbols = self.recorded.symbols
        shown = self._shown({**symbols.numbers(), **small})
        if shown is None or shown.differs is not None:
            return shown is None
        known = set[Any]()
        for guard in symbols.guards():
            with suppress(ZeroDivisionError):
                known.add(put_in(guard.condition, small))
        return {guard.condition for guard in shown.guards} <= known

    def there(self, numbers: Numbers, *, anyhow: bool = False) -> Captured | None:
        """The record that a call is to be made by; None: the graph itself holds.

        Args:
            numbers: the sizes of the call.
            anyhow: whether to give that record where the graph holds, too.

        Raises:
            Refusal: the program is another with these sizes; it has the line that shows it.
        """
        shown = self._shown(numbers)
        if shown is None or (shown.differs is None and not anyhow):
            return None
        if shown.there is None:
            words, at = self.tell(numbers)
            raise Refusal(f"guard broken: {words}", kind="guard broken", at=at, do=DO)
        return shown.there

    def tell(self, numbers: Numbers) -> tuple[str, Frame | None]:
        """Why it does not, in words, and the line that shows it."""
        shown = self._shown(numbers)
        differs = shown.differs if shown is not None else None
        small = ", ".join(f"{s} = {n}" for s, n in sorted(numbers.items(), key=str) if n < MANY)
        return (
            f"a dynamic size is 0 or 1 ({small}), and {differs.what if differs else ''}",
            differs.at if differs else None,
        )

    def _shown(self, numbers: Numbers) -> _Shown | None:
        """What was found for a call's sizes; None: none is small."""
        small = {symbol: n for symbol, n in numbers.items() if n < MANY}
        least = self.recorded.symbols.reaches_down()
        small = {symbol: n for symbol, n in small.items() if symbol in least}
        if not small:
            return None
        shown = self._known.setdefault(frozenset(small.items()), [])
        for each in shown:
            if all(_true(guard, numbers) for guard in each.guards):
                return each
        shown.append(self._find(numbers, small))
        return shown[-1]

    def _find(self, numbers: Numbers, small: Numbers) -> _Shown:
        symbols = self.recorded.symbols
        every = {**symbols.numbers(), **numbers}
        every = {symbol: n for symbol, n in every.items() if symbol not in symbols.data}
        quiet = warnings.catch_warnings(action="ignore")
        with ONE_AT_A_TIME, UNCOLLECTED, torch.inference_mode(mode=False), quiet:
            try:
                put, graph = self._put_in(every, small)
            except Unlike as unlike:
                return _Shown(unlike.differs, ())
            differs = put.alike.differs(self.graph, graph)
        there = Captured(put.recorded, put.semantics)
        return _Shown(differs, put.symbols.guards(), there)

    def _put_in(self, numbers: Numbers, small: Numbers) -> tuple[Specializer, Graph]:
        """The record with numbers put in, and its graph.

        Raises:
            Unlike: it is another program then.
        """
        put = Specializer(self.recorded, self.semantics, numbers, small)
        absent = self.semantics.target.device.type not in torch_api.device_types_here()
        with running(put.recorder, {}, absent):
            put.run()
        if self.graph.kind == "joint" and put.functions:
            raise Unlike("a Function's backward, or a hook, may ask for the size", put.functions[0])
        try:
            return put, self.make(put.recorded, put.semantics, put.put)
        except TAKEN as error:
            at = getattr(error, "at", None)
            words = error.what if isinstance(error, Refusal) else error
            raise Unlike(f"{words}", None, at) from error


def _true(guard: Guard, numbers: Numbers) -> bool:
    try:
        return bool(put_in(guard.condition, numbers))
    except (ArithmeticError, TypeError):
        return False
