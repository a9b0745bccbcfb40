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
            yield _assertion(guard, symbols)


def _assertion(guard: Guard, symbols: Symbols) -> Op:
    then = ", ".join(f"{s} = {symbols.hint(s)}" for s in sorted(guard.symbols, key=str))
    words = f"{guard.condition} does not hold, as it did in the capture, which had {then}"
    if guard.frame is not None:
        words += f"\n  at    {guard.frame}"
    return Op(ASSERT, (guard.condition, words), {}, None, (), origin=Origin(guard.frame, None))
