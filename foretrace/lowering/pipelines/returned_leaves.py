"""Refuse a forward cut that would add the gradients of a returned leaf in another order than eager.

The gradient of a tensor that is returned itself begins with that of the output; autograd adds those
of its uses one by one, the last use first. The copy that stands for the new content of one that was
written without autograd (`emit_history`) would add up its uses before.
"""

from collections import Counter
from collections.abc import Collection, Iterable

from foretrace import torch_api
from foretrace.autograd.eager_history.emit_history import HIDDEN
from foretrace.autograd.eager_history.op_facts import locate
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Recording
from foretrace.ir.values.value import Value, values_in


def returned_inputs(recorded: Recording) -> set[Value]:
    """The inputs that autograd follows and the program returns themselves, written or not."""
    places = {output.same_as for output in recorded.outputs}
    values = (item.value for index, item in enumerate(recorded.inputs) if index in places)
    return {value for value in values if value.type.requires_grad}


def check_used_once(ops: Iterable[Op], returned: Collection[Value]) -> None:
    """Refuse more than one use of the copies that stand for what is returned.

    Args:
        ops: those of a forward cut with its history.
        returned: see `returned_inputs`.

    Raises:
        Refusal: at the second use.
    """
    stands, counts = dict[Value, Value](), Counter[Value]()
    for op in ops if returned else ():
        old = _overwritten(op)
        if old is not None and (root := stands.get(old, old)) in returned:
            stands[op.outs[0]] = root
        elif any(out.type.requires_grad for out in op.outs):
            for value in op.operands:
                if value in stands:
                    counts[stands[value]] += _uses(op, value)
                    _check(op, counts[stands[value]])


def _check(op: Op, count: int) -> None:
    if count > 1:
        raise locate(
            Refusal(
                "the program writes to a leaf of autograd unseen, uses it more than once and"
                " returns it: a forward cut would add the gradients in another order than eager",
                kind="unsupported",
                do=("return a clone of it", 'or use cut("joint"), which adds them as eager does'),
            ),
            op,
        )


def _uses(op: Op, value: Value) -> int:
    """How often autograd has a gradient of the value from an op, or from what is below it."""
    if op.leaf or not isinstance(op.target, torch_api.OpOverload):
        return values_in((op.args, op.kwargs)).count(value) or 1
    return max(1, sum(_uses(each, value) for each in op.body or () if value in each.operands))


def _overwritten(op: Op) -> Value | None:
    """What a copy is of that stands for it with new content, and has its history."""
    stands = op.choice is not None and op.choice.reason == HIDDEN and op.outs[0].type.requires_grad
    return op.operands[-1] if stands else None
