"""Give each use of what is returned and was written without autograd a copy of its own.

The gradient of a tensor that is returned itself begins with that of the output; autograd adds those
of its uses one by one, the last use first. The copy that stands for the new content (`history`)
would add up its uses before. So there is one for each use, made right before it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import torch

from foretrace import torch_api
from foretrace.autograd.eager_history.history_ops import make_call, make_copy, rename
from foretrace.autograd.eager_history.spell_history import HIDDEN
from foretrace.ir.program.op import Op, Value, map_values, values_in
from foretrace.ir.program.recording import Recording

aten = torch.ops.aten

WHY = "each use gives its gradient to the tensor itself, which is returned"


def returned_inputs(recorded: Recording) -> set[Value]:
    """The inputs that autograd follows and the program returns themselves, written or not."""
    places = {output.same_as for output in recorded.outputs}
    values = (item.value for index, item in enumerate(recorded.inputs) if index in places)
    return {value for value in values if value.type.requires_grad}


def uses_apart(
    ops: Iterable[Op], given: Collection[Value], opened: Callable[[Op], Sequence[Op]]
) -> tuple[list[Op], dict[Value, Value]]:
    """The ops, where each use of a copy of `given` but the first is of another copy; these copies.

    What uses it several times below is opened.

    Args:
        ops: those of a forward cut with its history.
        given: see `returned`.
        opened: the ops below one, as the cut has them; none if it is to stay whole.
    """
    if not given:
        return list(ops), {}
    apart, ahead = _Apart(given), list(ops)[::-1]
    while ahead:
        op = ahead.pop()
        several = any(_uses(op, value) > 1 for value in op.operands if value in apart.stands)
        if several and (below := opened(op)):
            ahead += below[::-1]
        else:
            apart.ops += apart.of(op)
    return apart.ops, apart.copies


class _Apart:
    """The ops so far, and what stands in them for what is returned."""

    def __init__(self, given: Collection[Value]) -> None:
        self.given, self.ops = given, list[Op]()
        self.stands, self.used = dict[Value, Value](), set[Value]()
        self.copies = dict[Value, Value]()

    def of(self, op: Op) -> list[Op]:
        """The op, after the copies that it uses."""
        old = _overwritten(op)
        if old is not None and (root := self.stands.get(old, old)) in self.given:
            self.stands[op.outs[0]] = root
            return [rename(op, {old: root})]
        made, mine = list[Op](), op
        for value in op.operands if any(out.type.requires_grad for out in op.outs) else ():
            if value in self.stands:
                places = self._places(op, value)
                for copy in reversed(places):
                    if copy is not value:
                        self.copies[copy] = value
                        made += _copy(op, self.stands[value], value, copy)
                mine = _with_each(mine, value, places)
        return [*made, mine]

    def _places(self, op: Op, value: Value) -> list[Value]:
        """A value for each place where the op takes `value`; the first use has that itself."""
        count = values_in((op.args, op.kwargs)).count(value)
        places = [Value(value.type) for _ in range(count)]
        if value not in self.used:
            places[-1] = value
            self.used.add(value)
        return places


def _uses(op: Op, value: Value) -> int:
    """How often autograd has a gradient of the value from what is below an op."""
    if op.leaf or not isinstance(op.target, torch_api.OpOverload):
        return 0
    return sum(_uses(each, value) or value in each.operands for each in op.body or ())


def _overwritten(op: Op) -> Value | None:
    """What a copy is of that stands for it with new content, and has its history."""
    made = op.choice is not None and op.choice.reason == HIDDEN and op.outs[0].type.requires_grad
    return op.operands[-1] if made else None


def _copy(op: Op, root: Value, value: Value, copy: Value) -> Iterator[Op]:
    """The content of `value` with the history of `root`."""
    content, view, done = (Value(value.type.with_grad(False)) for _ in range(3))
    yield from make_copy(op, root, copy, WHY)
    yield make_call(op, aten.detach.default, (value,), content, WHY)
    yield make_call(op, aten.detach.default, (copy,), view, WHY)
    yield make_call(op, aten.copy_.default, (view, content), done, WHY)


def _with_each(op: Op, value: Value, copies: list[Value]) -> Op:
    """The op with a copy for each place where it takes the value."""
    if copies == [value]:
        return op
    left = iter(copies)
    args, kwargs = map_values((op.args, op.kwargs), lambda v: next(left) if v is value else v)
    inside = rename(op, {value: copies[0]})
    return inside.but(args=args, kwargs=kwargs, piece_of=op)
