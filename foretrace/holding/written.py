"""Writes to tensors that wrap others: what their class does, over what they hold.

No operator that returns the new tensor stands for one in place, as a class may answer both
otherwise. So the body of the write is what `__torch_dispatch__` did: it takes what the tensor
holds, and wraps what is held after. That is below autograd: no write that it follows is taken.
"""

from collections.abc import Iterator
from typing import Any

from foretrace.errors import Refusal
from foretrace.holding.wrapped import Through, as_program_has, changed, instance, now_holds
from foretrace.ir.op import Op, Value
from foretrace.mutation.alias import Alias, alias_of
from foretrace.mutation.builder import Builder
from foretrace.mutation.call import Call
from foretrace.mutation.current import current
from foretrace.mutation.in_place import note_overwritten
from foretrace.tensors.abstract import Abstract
from foretrace.tensors.wrapped import Metadata, Unwrap, Wrap, Wrapping, flattened


def write(call: Call) -> Any:
    """Record a write to a wrapping tensor, and answer it.

    Raises:
        Refusal: autograd follows it, or what the tensor was; or it reaches more than the tensor.
    """
    recorder, (target, old) = call.recorder, _target(call)
    origin = recorder.origin()
    for each in call.tensors:  # what they hold is known outside of the body
        as_program_has(each, recorder)
    tensor = instance(target, recorder)
    within = [alias_of(each) for each in _within(target)]
    before = [(each, current(each, recorder), each.since, each.version.count) for each in within]
    for alias in within:
        _check_alone(alias, call)
    _check_not_saved(within[0], call)
    with recorder.inner_scope(origin.frame) as body, recorder.listening():
        overwritten = len(recorder.overwritten)
        _renew(recorder, target, old)
        args, kwargs = recorder.concrete((call.args, call.kwargs), call.by_value)
        Through(call.func, recorder, written=target)(*args, **kwargs)
        new = _wrapped_again(recorder, tensor, target, old)
        while len(recorder.overwritten) > overwritten:  # values of the body, which ends here
            recorder.overwritten.popitem()
    op = Op(call.func, call.args, call.kwargs, new, (new,), origin=origin, below=body, writes=True)
    recorder.append(op)
    for alias, value, since, count in before:
        counted = alias.version.count != count
        alias.value, alias.since, alias.version.count = value, since, count  # none of what is held
        if counted or alias is within[0]:
            note_overwritten(alias, recorder)
    within[0].version.count += 1
    _renew(recorder, target, new)
    return tensor


def _target(call: Call) -> tuple[Abstract, Value]:
    """What is written to, and its value.

    Raises:
        Refusal: that is no single tensor of such a class, or has a history.
    """
    (target, *more), (old, *_) = call.targets, call.written
    kind, whole = old.type.wrapped, call.schema.returns_written and not call.schema.outs
    if kind is None or more or not whole or call.schema.reshapes_in_place:
        kinds = ", ".join(dict.fromkeys(str(v.type.wrapped) for v in call.values if v.type.wrapped))
        raise _refused(f"{call.func} writes in place, with a {kinds} among its operands")
    grad = call.recorder.grad_mode() and any(v.type.requires_grad for v in call.values)
    if grad or old.type.requires_grad:
        raise _refused(f"{call.func} writes to a {kind}, and autograd follows one of its operands")
    return target, old


def _within(tensor: Abstract) -> Iterator[Abstract]:
    """A tensor, what it holds where the program has it, and what these hold."""
    yield tensor
    if tensor.ft_value is not None and tensor.ft_value.type.wrapped and _has(tensor):
        for each, _ in tensor.ft_held[1]:
            yield from _within(each)


def _has(tensor: Abstract) -> bool:
    """Whether the program has the tensor that this one stands for."""
    return tensor.ft_instance is not None and tensor.ft_instance() is not None


def _check_alone(alias: Alias, call: Call) -> None:
    """Refuse a write that other tensors would see."""
    others = (each for each in alias.root.members() if each is not alias)
    if alias.parent is not None or any(each.tensor() is not None for each in others):
        kind = call.written[0].type.wrapped
        raise _refused(f"{call.func} writes to a {kind} whose memory other tensors share")


def _check_not_saved(alias: Alias, call: Call) -> None:
    """Refuse a write over what autograd may have saved, of which no graph tells."""
    old = {value for member in alias.members() for value in (member.initial, member.last)}
    for op in call.recorder.log:
        followed = op.origin.grad_mode and any(out.type.requires_grad for out in op.outs)
        if followed and not old.isdisjoint(op.operands):
            kind = call.written[0].type.wrapped
            raise _refused(f"{call.func} writes to a {kind} after {op.target} used it")


def _renew(recorder: Builder, tensor: Abstract, value: Value) -> None:
    """Let a tensor stand for a value, and what it holds for what that holds."""
    alias_of(tensor).become(value)
    if not value.type.wrapped or not _has(tensor):
        return
    parts = tuple(Value(recorder.types.intern(inner)) for inner in value.type.wrapped.inner)
    unwrap = Unwrap(value.type.wrapped.names)
    recorder.append(Op(unwrap, (value,), {}, parts, parts, origin=recorder.origin()))
    recorder.held.update(parts)
    for (each, _), part in zip(tensor.ft_held[1], parts, strict=True):
        _renew(recorder, each, part)
    now_holds(tensor)


def _wrapped_again(recorder: Builder, tensor: Any, known: Abstract, old: Value) -> Value:
    """What a tensor holds after the write, wrapped; of the type that it had."""
    before, held = known.ft_held
    if any(vars(tensor).get(name) is not item for name, item in before.items()):
        raise changed(tensor, "sets an attribute of")
    parts = tuple(current(alias_of(each), recorder) for each, _ in held)
    names, context = flattened(tensor)
    inner = tuple(part.type.with_grad(False) for part in parts)
    if Wrapping(type(tensor), names, inner, Metadata(context)) != old.type.wrapped:
        raise _refused(f"a write in place makes another {old.type.wrapped} of it")
    new = Value(old.type, old.hint)
    recorder.append(Op(Wrap(new.type), parts, {}, new, (new,), origin=recorder.origin()))
    return new


def _refused(what: str) -> Refusal:
    return Refusal(
        what, kind="unsupported tensor",
        do=("use the operator that returns a new tensor",
            "or do it outside of the captured program"),
    )  # fmt: skip
