"""Functionalize writes to tensor subclasses that autograd follows.

The derivative is that of the operator, above the class, and no graph has one in place. So the write
is recorded as its functional form, if the class does the same for both: each is run, and the
wrapped results are compared, operator by operator. Sizes of such tensors are fixed.
"""

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.equality import ValueNumbers
from foretrace.ir.program.op import Op
from foretrace.ir.values.nested import map_tree
from foretrace.ir.values.value import Value, map_values
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.subclass_types import Unwrap, Wrap
from foretrace.operators.inference.cpu_kernels import RAISED, draws_undone, filled
from foretrace.tracer.functionalization.alias import alias_of
from foretrace.tracer.functionalization.autograd_leaves import value_of
from foretrace.tracer.functionalization.builder import RecorderBase
from foretrace.tracer.functionalization.in_place_checks import check_leaves
from foretrace.tracer.functionalization.op_call import Call
from foretrace.tracer.subclasses.dispatch import (
    FLAGGED,
    SubclassKernel,
    as_program_has,
    instance,
    known_as,
)
from foretrace.tracer.subclasses.writes import (
    check_alone,
    check_not_saved,
    refused,
    renew,
    target_of,
    wrapped_again,
    write,
)


def write_to_wrapping(call: Call) -> Any:
    """Record a write to a wrapping tensor, and answer it.

    Raises:
        Refusal: no graph can do it.
    """
    target, old, followed = target_of(call)
    if followed:
        check_leaves(call.func, [target], out_variant=False)
    return write_followed(call, target, old) if followed else write(call)


def write_followed(call: Call, target: Abstract, old: Value) -> Any:
    """Record a followed write as its functional form: the tensor stands for what that gives.

    Raises:
        Refusal: the class does another thing for that; or a backward may need what is written over.
    """
    recorder, kind, form = call.recorder, old.type.wrapped, call.schema.functional
    maker = next((op for op in reversed(recorder.scope.log) if old in op.outs), None)
    if form is None or recorder.scope.checkpoint is not None or recorder.scope.in_subgraph:
        raise refused(f"{call.func} writes to a {kind}, and autograd follows")
    alias = alias_of(target)
    check_alone(alias, call)
    check_not_saved({old}, call)
    if maker is not None and _keeps_results(maker):
        raise refused(f"{call.func} writes to a {kind} that {maker.target} may have saved")
    if not _same_derivative(call):
        raise refused(f"{call.func} writes to a {kind}, and has a derivative of its own in place")
    tensor, seen = instance(target, recorder), Seen()
    saved = _saves_written(call)
    if saved and call.values.count(old) > 1:  # eager's backward finds the other written, and raises
        raise refused(f"{call.func} writes to a {kind} that it reads, too")
    copied = _copied(target, recorder) if saved and maker is None else target
    by_value = {**call.by_value, old: copied}
    for each in by_value.values():  # what they hold is known outside of what the class does
        as_program_has(each, recorder)
        seen.note(each)
    in_place = _done_in_place(call, value_of(copied, recorder), seen, by_value)
    new = _functional(call, by_value)
    formed = next((op for op in reversed(recorder.scope.log) if new in op.outs), None)
    known = seen.of(formed.body or () if formed is not None else ())
    asked = new.type.but(requires_grad=old.type.requires_grad, wrapped=kind)
    same = asked == old.type and new.type.wrapped.from_start == kind.from_start
    if not same or formed is None or known.get(new) != in_place:
        raise refused(f"the class {kind} does another thing for {call.func} than for {form.call}")
    alias.count_write()
    renew(recorder, target, new)
    FLAGGED(tensor, new.type.requires_grad)
    return tensor


def _copied(target: Abstract, recorder: RecorderBase) -> Abstract:
    """A copy of an input: the call writes to that, so a backward would find it written."""
    copy = recorder.again(torch.ops.aten.clone.default, (instance(target, recorder),))
    return known_as(copy, recorder)


def _functional(call: Call, by_value: dict[Value, Any]) -> Value:
    recorder, (func, args, kwargs) = call.recorder, call.functional
    positional, named = recorder.concrete((args, kwargs), by_value)
    try:
        result = recorder.again(func, tuple(positional), dict(named))
    except RAISED as error:
        if isinstance(error, Refusal):
            raise
        kinds = ", ".join(dict.fromkeys(str(v.type.wrapped) for v in call.written))
        raise refused(f"{call.func} writes to a {kinds}, which has no {func}: {error}") from error
    return value_of(known_as(result, recorder), recorder)


def _done_in_place(call: Call, old: Value, seen: "Seen", by_value: dict[Value, Any]) -> Any:
    """The number of the result in place, on a twin of the tensor; its ops are dropped."""
    recorder, twin = call.recorder, call.recorder.abstract(old)
    scope = recorder.scope.inner(recorder.origin().frame)
    with scope as body, recorder.listening(), recorder.aliasing.of_body():
        tensor = as_program_has(twin, recorder)
        on_twin = {**by_value, call.written[0]: twin}
        args, kwargs = recorder.concrete((call.args, call.kwargs), on_twin)
        SubclassKernel(call.func, recorder, written=twin)(*args, **kwargs)
        new = wrapped_again(recorder, tensor, twin, old)
    return seen.of(body).get(new)


class Seen:
    """Numbers of values: equal where the same operators compute them of equal operands."""

    def __init__(self) -> None:
        self._numbers = ValueNumbers()
        self._parts: dict[int, tuple[Any, ...]] = {}
        """by the number of a wrapping tensor, what it wraps"""

    def note(self, tensor: Abstract) -> None:
        """Number what a tensor of the program's wraps."""
        value = tensor.ft_value
        if value is None or not value.type.wrapped:
            return
        for place, (each, part) in enumerate(tensor.ft_wrapped[1]):
            if part is not None:
                self._numbers.known[part] = self._part(self._numbers.of(value), place)
            self.note(each)

    def of(self, ops: Iterable[Op]) -> dict[Value, int]:
        """The number of each value that the ops make."""
        found: dict[Value, int] = {}
        for op in ops:  # below a write is what returns the new value
            found |= self.of(op.body or ()) if op.writes else dict(self._outs(op))
            self._numbers.known |= found
        return found

    def _outs(self, op: Op) -> Iterator[tuple[Value, int]]:
        numbers = self._numbers
        if isinstance(op.target, Wrap):
            parts = tuple(map_values(op.args, numbers.of))
            number = numbers.number(("wraps", parts))
            self._parts[number] = parts
            yield op.outs[0], number
        elif isinstance(op.target, Unwrap):
            of = numbers.of(op.args[0])
            yield from ((out, self._part(of, place)) for place, out in enumerate(op.outs))
        else:
            call = numbers.call(str(op.target), (op.args, op.kwargs))
            yield from ((out, numbers.number((call, place))) for place, out in enumerate(op.outs))

    def _part(self, of: int, place: int) -> int:
        """The number of what a tensor holds."""
        known = self._parts.get(of)
        return self._numbers.number(("part", of, place)) if known is None else known[place]


def _keeps_results(op: Op) -> bool:
    """Whether autograd saves what an op gave, which a write spoils: torch is asked, over zeros."""
    if not any(out.type.requires_grad for out in op.outs):
        return False
    results, _ = _over_zeros(op.target, op.args, op.kwargs)
    saved = [each for out in results for each in torch_api.saved_tensors(out)]
    places = {each.data_ptr() for each in results if each.requires_grad}
    return not places or 0 in places or any(each.data_ptr() in places for each in saved)


def _same_derivative(call: Call) -> bool:
    """Whether autograd has the same node for a call in place and not: `elu_` has its own."""
    forms = (call.func, call.args, call.kwargs), call.functional
    nodes = [[torch_api.node_name(each) for each in _over_zeros(*form)[0]] for form in forms]
    return bool(nodes[0]) and nodes[0] == nodes[1]


def _saves_written(call: Call) -> bool:
    """Whether autograd saves what is written to, for its own backward: torch is asked, over zeros.

    What it cannot be asked of counts as saved.
    """
    results, operands = _over_zeros(*call.functional)
    saved = {each.data_ptr() for result in results for each in torch_api.saved_tensors(result)}
    written = {each.data_ptr() for value, each in operands if value in call.written}
    return not results or 0 in written or not saved.isdisjoint(written)


Operands: TypeAlias = list[tuple[Value, torch.Tensor]]
"""What stands for each occurrence of a value among arguments"""


def _over_zeros(func: Any, args: Any, kwargs: Any) -> tuple[list[torch.Tensor], Operands]:
    """The results of an operator over zeros, with the same requires_grad, and its operands.

    No results if it raises.
    """
    operands: Operands = []
    if not isinstance(func, torch_api.OpOverload):
        return [], operands

    def zeros(leaf: Any) -> Any:
        if not isinstance(leaf, Value):
            return leaf
        zero = filled(0, leaf.type.but(wrapped=None))
        operands.append((leaf, zero.requires_grad_(leaf.type.requires_grad).clone()))
        return operands[-1][1]  # no leaf, which none writes

    try:
        with torch_api.plain_torch(), torch.enable_grad(), draws_undone():
            positional, named = map_tree((args, kwargs), zeros)
            result = func(*positional, **named)
    except RAISED:
        return [], operands
    return [x for x in torch_api.tree_leaves(result) if isinstance(x, torch.Tensor)], operands
