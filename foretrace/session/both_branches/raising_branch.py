"""A question of which one answer raises: the graph asserts the other answer."""

from collections.abc import Iterable
from dataclasses import replace
from traceback import walk_tb

import torch

from foretrace.errors import Refusal, is_library
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import ModuleCall
from foretrace.ir.program.recording import Recording
from foretrace.ir.program.value_guard import WRITTEN
from foretrace.ir.source.call_site import LIBRARY_DIRS
from foretrace.ir.values.value import Value
from foretrace.tracer.data_dependence.answer_path import BranchMarker
from foretrace.tracer.data_dependence.value_guards import ASSERT

NOT = torch.ops.aten.logical_not.default


def said_by_program(refusal: Refusal) -> bool:
    """Whether the program's own `raise` or `assert` is what was refused, and no call of torch's."""
    error = refusal.__cause__
    if refusal.kind != "program raised" or error is None:
        return False
    codes = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
    return bool(codes) and not is_library(codes[-1], LIBRARY_DIRS)


def asserted(recorded: Recording, number: int, holds: bool, raised: Refusal) -> Recording:
    """The record with an assertion in place of a question's mark.

    Args:
        recorded: the path that does not raise.
        number: the question's.
        holds: its answer on that path.
        raised: what the program raises on the other.
    """
    text = f"{raised.what}, where the answer is {not holds}; question {number + 1}, at {raised.at}"
    ops = _asserting(recorded.ops, number, holds, text.translate(WRITTEN))
    return replace(recorded, ops=ops)


def _asserting(ops: Iterable[Op], number: int, holds: bool, text: str) -> list[Op]:
    found = list[Op]()
    for op in ops:
        if isinstance(op.target, BranchMarker) and op.target.number == number:
            found += _assertion(op, holds, text)
        elif isinstance(op.target, ModuleCall):
            found.append(op.but(below=_asserting(op.own or (), number, holds, text)))
        else:
            found.append(op)
    return found


def _assertion(mark: Op, holds: bool, text: str) -> list[Op]:
    (condition,), origin = mark.args, mark.origin
    if holds:
        return [Op(ASSERT, (condition, text), {}, None, (), origin=origin)]
    denied = Value(condition.type.with_grad(False).contiguous())
    return [
        Op(NOT, (condition,), {}, denied, (denied,), origin=origin),
        Op(ASSERT, (denied, text), {}, None, (), origin=origin),
    ]
