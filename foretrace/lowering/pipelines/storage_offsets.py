"""Count `as_strided` from where the memory of a copy begins.

A scatter keeps where its operand begins in memory, and so may new content of an input. A copy that
stands for it in a cut that trains begins at its own first element, and so do its views.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from foretrace import torch_api
from foretrace.autograd.eager_history.history_ops import HISTORY
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import Choice
from foretrace.ir.values.nested import leaves
from foretrace.ir.values.tensor_type import Size, TensorType
from foretrace.ir.values.value import Value, map_values
from foretrace.operators.schemas.dispatch_result import ReturnedOperand
from foretrace.operators.schemas.schema import schema_of
from foretrace.tracer.functionalization.storage_offsets import FROM_START

WHY = "the copy that stands for what is viewed begins where its memory does"

Infer = Callable[[Any, Any, Any], Any]
Early = dict[Value, Size]
"""how many elements before its noted place a value begins"""


def placed(ops: Iterable[Op], infer: Infer) -> Iterator[Op]:
    """The ops of a cut; what is viewed by strides is where the record has it.

    Args:
        ops: those of a forward cut with its history.
        infer: the types of an op's results, of its arguments with types in the place of tensors.
    """
    early = Early()
    for op in ops:
        copies = op.choice is not None and op.choice.what == HISTORY
        if not copies and early.keys().isdisjoint(op.operands):
            yield op
            continue
        counted = _counted(op, early)
        if isinstance(op.target, torch_api.OpOverload) and any(out.type.offset for out in op.outs):
            early.update(_early(counted, early, infer))
        yield counted


def _counted(op: Op, early: Early) -> Op:
    """The op; one that counts from the start of the memory does so from that of the copy's."""
    shift = early.get(op.args[0], 0) if op.target in FROM_START else 0
    if shift == 0:
        return op
    schema = schema_of(op.target)
    named = schema.bind(op.args, op.kwargs)
    if named.get("storage_offset") is None:
        return op
    named["storage_offset"] -= shift
    args = tuple(named[name] for name in schema.arguments if name in named)
    choice = Choice(HISTORY, "spelled out", WHY)
    return op.but(args=args, kwargs={}, choice=choice, piece_of=op.piece_of or op)


def _early(op: Op, early: Early, infer: Infer) -> Early:
    """How far before their noted places the results of an op begin, where they do."""

    def really(value: Value) -> TensorType:
        type = value.type.with_grad(False)
        return type.but(offset=type.offset - early.get(value, 0))

    args, kwargs = (map_values(tree, really) for tree in (op.args, op.kwargs))
    found = dict[Value, Size]()
    for value, type in zip(leaves(op.result), leaves(infer(op.target, args, kwargs)), strict=True):
        if isinstance(type, ReturnedOperand):
            found[value] = early.get(op.operands[type.operand], 0)
        elif isinstance(value, Value):
            found[value] = value.type.offset - type.offset
    return {value: shift for value, shift in found.items() if shift != 0}
