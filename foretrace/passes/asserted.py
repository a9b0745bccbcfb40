"""What a program assumed of numbers that data decides, asserted in the graph where they are known.

A size of a result (of `nonzero`, of a mask as an index) is a number only when the graph runs. What
the program asked of it was answered from the example; on other data the graph raises.
"""

from collections.abc import Iterator

import torch

from foretrace.ir.op import Op, Origin
from foretrace.ir.walk import binds
from foretrace.symbols.sizes import Guard, Symbols

ASSERT = torch.ops.aten._assert_scalar.default


def with_assertions(ops: list[Op], symbols: Symbols) -> list[Op]:
    """The ops with an assertion after the one that makes the last number of each condition."""
    waiting = symbols.assertions()
    return list(_asserting(ops, list(waiting), symbols)) if waiting else ops


def _asserting(ops: list[Op], waiting: list[Guard], symbols: Symbols) -> Iterator[Op]:
    missing = set(symbols.data)
    for op in ops:
        yield op
        found = missing & binds(op)
        missing -= found
        for guard in [g for g in waiting if found and missing.isdisjoint(g.symbols)]:
            waiting.remove(guard)
            yield _assertion(guard)


def _assertion(guard: Guard) -> Op:
    at = f"{guard.frame}: " if guard.frame is not None else ""
    words = f"{at}in the capture {guard.condition} held, which depends on data; it does not now"
    return Op(ASSERT, (guard.condition, words), {}, None, (), origin=Origin(guard.frame, None))
