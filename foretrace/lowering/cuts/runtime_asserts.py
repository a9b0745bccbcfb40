"""What a program assumed of numbers that data decides, asserted in the graph where they are known.

A size of a result (of `nonzero`, of a mask as an index) is a number only when the graph runs. What
the program asked of it was answered from the example; on other data the graph raises. A number that
a program makes which an operator holds is known there alone.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import sympy
import torch

from foretrace.ir.program.op import Op, Subgraph
from foretrace.ir.program.origin import Origin
from foretrace.ir.program.recording import Recording
from foretrace.ir.program.value_guard import SymbolGuard
from foretrace.ir.program.walk import binds, with_subgraphs
from foretrace.ir.symbols.symbols import Guard

ASSERT_NUMBER = torch.ops.aten._assert_scalar.default


def with_assertions(ops: list[Op], recorded: Recording) -> list[Op]:
    """The ops with an assertion after the one that computes the last number of a condition."""
    if not recorded.asked_of_numbers:
        return ops
    return list(_Asserting(recorded.symbols.data, recorded.asked_of_numbers).ops(ops))


class _Asserting:
    """The conditions that are not asserted yet, and the numbers that are not known yet."""

    def __init__(
        self, missing: set[sympy.Symbol], waiting: Iterable[tuple[Guard, SymbolGuard]]
    ) -> None:
        self.missing, self.waiting = missing, list(waiting)

    def ops(self, ops: Iterable[Op]) -> Iterator[Op]:
        """The ops, each followed by the conditions whose last number it computes."""
        for op in ops:
            yield with_subgraphs(op, self._subgraph)
            found = self.missing & binds(op)
            self.missing = self.missing - found
            for guard, asked in [w for w in self.waiting if found and self._known(w[0])]:
                self.waiting.remove((guard, asked))
                check = (guard.condition, asked.text)
                origin = Origin(guard.frame, op.origin.module)  # it reads what this module computes
                yield Op(ASSERT_NUMBER, check, {}, None, (), origin=origin)

    def _subgraph(self, subgraph: Subgraph) -> Subgraph:
        """A subgraph of an op: its numbers are known in it alone."""
        inside = _Asserting(self.missing, self.waiting)
        ops = tuple(inside.ops(subgraph.ops))
        self.waiting = inside.waiting
        return replace(subgraph, ops=ops)

    def _known(self, guard: Guard) -> bool:
        return self.missing.isdisjoint(guard.symbols)
