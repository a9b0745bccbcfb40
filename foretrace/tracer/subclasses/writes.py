"""Functionalize writes to tensor subclasses: the body is what their class does.

The functional operator does not replace one in place, as a class may handle the two differently. So
the body of the write is what `__torch_dispatch__` did: it unwraps the tensor, and wraps the new
parts. That is below autograd: a write that autograd follows is refused.
"""

from collections.abc import Collection, Iterator
from typing import Any

from foretrace.errors import Refusal
from foretrace.ir.program.op import GradientCall, Op
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.subclass_types import (
    Metadata,
    Wrap,
    Wrapping,
    dispatched,
    flattened,
)
from foretrace.operators.schemas.schema import schema_of
from foretrace.tracer.functionalization.alias import Alias, alias_of
from foretrace.tracer.functionalization.builder import RecorderBase
from foretrace.tracer.functionalization.current_value import current
from foretrace.tracer.functionalization.in_place_checks import note_overwritten
from foretrace.tracer.functionalization.op_call import Call
from foretrace.tracer.subclasses.dispatch import (
    SubclassKernel,
    as_program_has,
    changed,
    instance,
    now_holds,
    unwrap,
)


def write(call: Call) -> Any:
    """Record a write to a wrapping tensor, and answer it.

    Raises:
        Refusal: autograd follows what the tensor was; or it reaches more than the tensor.
    """
    recorder, (target, old, _) = call.recorder, target_of(call)
    if old.type.requires_grad and not target.ft_leaf:
        raise refused(f"{call.func} writes to a {old.type.wrapped} that has a history, unseen")
    origin = recorder.origin()
    for each in call.tensors:  # what they hold is known outside of the body
        as_program_has(each, recorder)
    tensor = instance(target, recorder)
    within = [alias_of(each) for each in _within(target)]
    before = [(each, current(each, recorder), each.since, each.version.count) for each in within]
    for alias in within:
        check_alone(alias, call)
    members = [*within[0].members()]
    check_not_saved({value for each in members for value in (each.initial, each.last)}, call)
    scope = recorder.scope.inner(origin.frame)
    with scope as body, recorder.listening(), recorder.aliasing.of_body():
        renew(recorder, target, old)
        args, kwargs = recorder.concrete((call.args, call.kwargs), call.by_value)
        SubclassKernel(call.func, recorder, written=target)(*args, **kwargs)
        new = wrapped_again(recorder, tensor, target, old)
    op = Op(call.func, call.args, call.kwargs, new, (new,), origin=origin, below=body, writes=True)
    recorder.append(op)
    for alias, value, since, count in before:
        counted = alias.version.count != count
        alias.value, alias.since, alias.version.count = value, since, count  # as before
        if counted or alias is within[0]:
            note_overwritten(alias, recorder)
    within[0].count_write()
    renew(recorder, target, new)
    if old.type.requires_grad:
        recorder.aliasing.rewritten_leaves.add(new)
    return tensor


def target_of(call: Call) -> tuple[Abstract, Value, bool]:
    """What is written to, its value, and whether autograd follows the write.

    Raises:
        Refusal: that is no single tensor of such a class.
    """
    (target, *more), (old, *_) = call.targets, call.written
    kind, whole = old.type.wrapped, call.schema.returns.written and not call.schema.outs
    if kind is None or more or not whole or call.schema.reshapes_in_place:
        kinds = ", ".join(dict.fromkeys(str(v.type.wrapped) for v in call.values if v.type.wrapped))
        raise refused(f"{call.func} writes in place, with a {kinds} among its operands")
    grad = call.recorder.grad_mode() and any(v.type.requires_grad for v in call.values)
    return target, old, grad


def _within(tensor: Abstract) -> Iterator[Abstract]:
    """A tensor, what it holds where the program has it, and what these hold."""
    yield tensor
    if tensor.ft_value is not None and tensor.ft_value.type.wrapped and _has(tensor):
        for each, _ in tensor.ft_wrapped[1]:
            yield from _within(each)


def _has(tensor: Abstract) -> bool:
    """Whether the program has the tensor that this one stands for."""
    return tensor.ft_instance is not None and tensor.ft_instance() is not None


def check_alone(alias: Alias, call: Call) -> None:
    """Refuse a write that other tensors would see."""
    others = (each for each in alias.root.members() if each is not alias)
    if alias.parent is not None or any(each.tensor() is not None for each in others):
        kind = call.written[0].type.wrapped
        raise refused(f"{call.func} writes to a {kind} whose memory other tensors share")


def check_not_saved(old: Collection[Value], call: Call) -> None:
    """Refuse a write over what autograd may have saved, which no graph shows."""
    log = call.recorder.scope.log
    backwards = [op.target for op in log if isinstance(op.target, GradientCall)]
    freed = frozenset[Op]().union(*(each.freed for each in backwards))
    for op in log:
        if (
            op.followed
            and any(value in old for value in op.operands)
            and not _let_go(op, old, freed)
        ):
            kind = call.written[0].type.wrapped
            raise refused(f"{call.func} writes to a {kind} after {op.target} used it")


def _let_go(op: Op, old: Collection[Value], freed: Collection[Op]) -> bool:
    """Whether a backward of the program's has freed what autograd saved of some values."""
    if not any(value in old for value in op.operands) or op in freed:
        return True
    if op.leaf or dispatched(op):
        operator = hasattr(op.target, "overloadpacket")
        return operator and bool(schema_of(op.target).viewed)
    return all(_let_go(inner, old, freed) for inner in op.body or ())


def renew(recorder: RecorderBase, tensor: Abstract, value: Value) -> None:
    """Give a tensor a value, and the tensors that it wraps the parts of the value."""
    alias_of(tensor).become(value)
    if not value.type.wrapped or not _has(tensor):
        return
    for (each, _), part in zip(tensor.ft_wrapped[1], unwrap(recorder, value), strict=True):
        renew(recorder, each, part)
    now_holds(tensor)


def wrapped_again(recorder: RecorderBase, tensor: Any, known: Abstract, old: Value) -> Value:
    """Wrap what a tensor wraps after the write; of the type that it had, in memory of its own."""
    before, wrapped = known.ft_wrapped
    if any(vars(tensor).get(name) is not item for name, item in before.items()):
        raise changed(tensor, "sets an attribute of")
    parts = tuple(current(alias_of(each), recorder) for each, _ in wrapped)
    names, context = flattened(tensor)
    inner = tuple(part.type.with_grad(False) for part in parts)
    followed = old.type.wrapped.followed
    wrapped_now = Wrapping(type(tensor), names, inner, Metadata(context), followed)
    if wrapped_now.from_start != old.type.wrapped.from_start:
        raise refused(f"a write in place makes another {old.type.wrapped} of it")
    new = Value(recorder.types.intern(old.type.but(wrapped=wrapped_now)), old.hint)
    recorder.append(Op(Wrap(new.type), parts, {}, new, (new,), origin=recorder.origin()))
    return new


def refused(what: str) -> Refusal:
    """The refusal of a write that no graph can do."""
    return Refusal(
        what,
        kind="unsupported tensor",
        do=(
            "use the operator that returns a new tensor",
            "or do it outside of the captured program",
        ),
    )
