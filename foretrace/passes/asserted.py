"""What a program assumed of numbers that data decides, asserted in the graph where they are known.

A size of a result (of `nonzero`, of a mask as an index) is a number only when the graph runs. What
the program asked of it was answered from the example; on other data the graph raises.
"""

from collections.abc import Iterator

import torch

from foretrace.ir.op import Op, Origin
from foretrace.ir.program import Recorded
from foretrace.ir.walk import binds

ASSERT_NUMBER = torch.ops.aten._assert_scalar.default


def with_assertions(ops: list[Op], recorded: Recorded) -> list[Op]:
    """The ops with an assertion after the one that makes the last number of each condition."""
    return list(_asserting(ops, recorded)) if recorded.asked_of_numbers else ops


def _asserting(ops: list[Op], recorded: Recorded) -> Iterator[Op]:
    missing, waiting = set(recorded.symbols.data), list(recorded.asked_of_numbers)
    for op in ops:
        yield op
        found = missing & binds(op)
        missing -= found
        for guard, asked in [w for w in waiting if found and missing.isdisjoint(w[0].symbols)]:
            waiting.remove((guard, asked))
            check = (guard.condition, asked.text)
            yield Op(ASSERT_NUMBER, check, {}, None, (), origin=Origin(guard.frame, None))
