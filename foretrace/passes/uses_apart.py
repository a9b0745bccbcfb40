"""Give each use of what is returned and was written without autograd a copy of its own.

The gradient of a tensor that is returned itself begins with that of the output; autograd adds those
of its uses one by one, the last use first. The copy that stands for the new content (`history`)
would add up its uses before. So there is one for each use, made right before it.
"""

from collections.abc import Collection, Iterable, Iterator

import torch

from foretrace.ir.op import Op, Value, map_values, values_in
from foretrace.ir.program import Recorded
from foretrace.passes.history import UNSEEN
from foretrace.passes.history_ops import called, copied, renamed

aten = torch.ops.aten

WHY = "each use gives its gradient to the tensor itself, which is returned"


def returned(recorded: Recorded) -> set[Value]:
    """The inputs that autograd follows and the program returns themselves, written or not."""
    places = {output.same_as for output in recorded.outputs}
    values = (item.value for index, item in enumerate(recorded.inputs) if index in places)
    return {value for value in values if value.type.requires_grad}


def uses_apart(ops: Iterable[Op], given: Collection[Value]) -> tuple[list[Op], dict[Value, Value]]:
    """The ops, where each use of a copy of `given` but the first is of another copy; these copies.

    Args:
        ops: those of a forward cut with its history.
        given: see `returned`.
    """
    stands, used = dict[Value, Value](), set[Value]()
    apart, copies = list[Op](), dict[Value, Value]()
    if not given:
        return list(ops), copies
    for op in ops:
        old = _overwritten(op)
        if old is not None and (root := stands.get(old, old)) in given:
            stands[op.outs[0]] = root
            apart.append(renamed(op, {old: root}))
            continue
        mine = op
        for value in op.operands if any(out.type.requires_grad for out in op.outs) else ():
            if value not in stands:
                continue
            count = values_in((op.args, op.kwargs)).count(value)
            places = [Value(value.type) for _ in range(count)]
            if value not in used:
                places[-1] = value
                used.add(value)
            for copy in reversed(places):
                if copy is not value:
                    copies[copy] = value
                    apart += _copy(op, stands[value], value, copy)
            mine = _with_each(mine, value, places)
        apart.append(mine)
    return apart, copies


def _overwritten(op: Op) -> Value | None:
    """What a copy is of that stands for it with new content, and has its history."""
    made = op.choice is not None and op.choice.reason == UNSEEN and op.outs[0].type.requires_grad
    return op.operands[-1] if made else None


def _copy(op: Op, root: Value, value: Value, copy: Value) -> Iterator[Op]:
    """The content of `value` with the history of `root`."""
    content, view, done = (Value(value.type.with_grad(False)) for _ in range(3))
    yield from copied(op, root, copy, WHY)
    yield called(op, aten.detach.default, (value,), content, WHY)
    yield called(op, aten.detach.default, (copy,), view, WHY)
    yield called(op, aten.copy_.default, (view, content), done, WHY)


def _with_each(op: Op, value: Value, copies: list[Value]) -> Op:
    """The op with a copy for each place where it takes the value."""
    if copies == [value]:
        return op
    left = iter(copies)
    args, kwargs = map_values((op.args, op.kwargs), lambda v: next(left) if v is value else v)
    inside = renamed(op, {value: copies[0]})
    return inside.but(args=args, kwargs=kwargs, piece_of=op)
