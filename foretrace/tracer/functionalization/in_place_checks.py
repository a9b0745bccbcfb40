"""Operators in place: what autograd refuses of them, and those that change a shape alone."""

from typing import Any, cast

from foretrace import torch_api
from foretrace.errors import Refusal, Remedy
from foretrace.ir.program.op import Op, ViewStep
from foretrace.ir.program.origin import Origin
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract, become_like, follow
from foretrace.operators.schemas.schema import schema_of
from foretrace.tracer.functionalization.alias import Alias, StorageAliases, alias_of, cut_off
from foretrace.tracer.functionalization.autograd_leaves import value_of
from foretrace.tracer.functionalization.builder import DETACH, RecorderBase
from foretrace.tracer.functionalization.current_value import current, not_tracked, rewrite
from foretrace.tracer.functionalization.op_call import Call


def check_leaves(func: Any, targets: list[Abstract], out_variant: bool) -> None:
    """Refuse to follow a write that autograd refuses, too: of a leaf, of one view of several."""
    if out_variant:
        raise Refusal(
            f"{func} has no derivative: out= does not work on tensors that require grad",
            kind="no derivative",
            do="leave `out` away, or call it under torch.no_grad()",
        )
    for target in targets:
        alias = alias_of(target)
        if alias.untracked:
            raise not_tracked(alias.untracked, f"written in place by {func}")
        owner = alias.up_to_history()[0].tensor()
        if owner is not None and owner.ft_leaf and owner.requires_grad:
            raise Refusal(
                f"{func} writes in place to a leaf that requires grad, as eager refuses too",
                kind="in-place on leaf",
                do="write under torch.no_grad(), or to a clone",
            )


def check_not_wrapped(targets: list[Abstract]) -> None:
    """Refuse a write to what shares memory with a tensor that wraps others, by what its class does.

    Raises:
        Refusal: the program still has such a tensor.
    """
    for target in targets:
        root = target.ft_alias.root if isinstance(target.ft_alias, Alias) else None
        for member in root.members() if root is not None else ():
            if member.last.type.wrapped and member.tensor() is not None:
                raise Refusal(
                    "the program writes to memory that a tensor class of its own holds",
                    kind="unsupported tensor",
                    do=("write to a clone", "or do it outside of the captured program"),
                )


COMPILED = Remedy("or let foretrace.compile capture the function", ("dynamo",))


def reshape(call: Call) -> Abstract:
    """Record `t_`, `unsqueeze_` and their like: the tensor has another shape from now on."""
    recorder, func, args, (tensor, *_) = call.recorder, call.func, call.args, call.tensors
    leaf = tensor.ft_leaf and args[0].type.requires_grad
    if leaf and recorder.grad_mode():
        check_leaves(func, [tensor], out_variant=False)
    functional = call.functional if call.schema.functional is not None else None
    other = functional and not schema_of(functional[0]).view_positions(args, call.kwargs, 1)
    if functional is None or (leaf and not other):
        raise Refusal(
            f"{func} changes the shape of a leaf that requires grad in place",
            kind="side effect",
            do="use the operator that returns a new tensor, such as reshape() or transpose()",
        )
    if other:
        raise _sees_another(func)
    _check_not_put_off(func, args[0].type.lazy)
    cut_off(tensor)
    parent, grad = alias_of(tensor), recorder.grad_mode()
    if args[0].type.requires_grad:
        if not grad:
            raise Refusal(
                f"{func} under no_grad leaves a tensor with a history of another shape",
                kind="unsupported",
                do="use the operator that returns a new tensor, such as transpose()",
            )
        check_leaves(func, [tensor], out_variant=False)
    op = recorder.call(*call.functional, grad=grad)
    (new,) = op.outs
    step = ViewStep(op.target, op.args, op.kwargs, args[0], 0, grad, followed=True)
    _note(parent, op, recorder)
    parent.tensor = lambda: None  # no Python object stands for it any more
    become_like(tensor, recorder.abstract(new))
    tensor.ft_value = new
    tensor.ft_alias = Alias(tensor, parent, step)
    parent.moved = tensor.ft_alias
    parent.children.append(parent.moved)
    return tensor


def _sees_another(func: Any) -> Refusal:
    return Refusal(
        f"{func} lets a tensor see the memory of another",
        kind="no functional form",
        do=("use the other tensor, or copy_ it into this one", COMPILED),
    )


def _check_not_put_off(func: Any, lazy: str) -> None:
    """Refuse a call that torch makes of a copy, to write that back over what has another shape."""
    if torch_api.resolved_below(func, lazy):
        raise Refusal(
            f"{func} of a conjugation or negation that was put off writes to its memory in torch",
            kind="unsupported",
            do="use the operator that returns a new tensor, such as squeeze()",
        )


def _note(alias: Alias, op: Op, recorder: RecorderBase) -> None:
    """Count a write that changes a shape alone, as autograd does; there is no new value.

    A value that is saved afterwards is found unchanged.
    """
    version = alias.version
    for member in alias.root.members():
        if member.value is not None:  # one that has a counter of its own is found as it was
            overwritten = StorageAliases(member, member.version.count, recorder.origin(), None, op)
            recorder.aliasing.overwritten.setdefault(member.value, overwritten)
            if member.version is version and member is not alias and member.is_view:
                member.become(None)
    alias.count_write()


def detach(call: Call) -> Abstract:
    """`detach_`: the same memory, which autograd follows no further; nothing in inference mode."""
    recorder, tensor = call.recorder, call.tensors[0]
    if recorder.origin().inference:
        return tensor
    alias = alias_of(tensor)
    gradient = tensor.ft_gradient  # of an input; a later call's may be a view
    if alias.before_moving.is_view or (gradient is not None and not gradient[0].is_whole(tensor)):
        raise Refusal(
            "detach_() of a view, as eager refuses too", kind="in-place on view", do="use detach()"
        )
    old, origin = current(alias, recorder), recorder.origin()
    if old.type.requires_grad:
        _check_not_seen(alias)
    op = recorder.call(DETACH, (old,))
    alias.become(op.outs[0])
    if old in recorder.autograd.fresh:  # `torch.tensor` sets the flag after this
        recorder.autograd.fresh.update(op.outs)
    if old.type.requires_grad and not tensor.ft_leaf:
        step = ViewStep(op.target, op.outs, {}, op.outs[0], 0, origin.grad_mode, followed=False)
        saved = Alias(recorder.abstract(old), alias, step)  # what sees the writes that follow, too
        alias.children.append(saved)
        recorder.aliasing.overwritten.setdefault(
            old, StorageAliases(saved, alias.since, origin, None, detached=True)
        )
    follow(tensor, requires_grad=False)
    return tensor


def _check_not_seen(alias: Alias) -> None:
    """Refuse to detach what operators in place gave another shape, and views see as it was."""
    members = alias.root.members() if alias.before_moving is not alias else ()
    if any(each is not alias and each.tensor() is not None for each in members):
        raise Refusal(
            "detach_() of a tensor that has another shape now than its views have seen",
            kind="in-place on view",
            do="use detach()",
        )


def take(call: Call) -> Abstract:
    """`set_` of another tensor: `tensor.data = other`, counted as a write.

    Raises:
        Refusal: autograd follows one of them, as in eager; or the memory is that of no tensor that
            each call has.
    """
    tensor, other = call.tensors
    if call.recorder.grad_mode() and any(value.type.requires_grad for value in call.values):
        raise Refusal(
            f"{call.func} has no derivative, and autograd follows one of the tensors",
            kind="no derivative",
            do="call it under torch.no_grad()",
        )
    answers = tensor.ft_queries.answers
    if other is not tensor and not answers.set_data(tensor, other):
        raise _sees_another(call.func)
    alias_of(tensor).count_write()
    return tensor


def take_memory(recorder: RecorderBase, tensor: Abstract, other: Abstract) -> Abstract:
    """`tensor.data = other`: it sees the memory of the other from now on, and keeps its history.

    What a backward has saved of the tensor itself it reads there, too; views see what they saw.
    Source: VariableHooks::set_data in torch/csrc/autograd/variable.cpp.

    Returns:
        What else sees that memory so.

    Raises:
        Refusal: the other is of another dtype or device, or autograd follows the tensor there.
    """
    old, before, its = alias_of(tensor), value_of(tensor, recorder), value_of(other, recorder)
    _check_takes(tensor, before, its.type)
    seen: Any = recorder.again(DETACH, (other,))
    like = alias_of(seen)
    value, tensor.ft_value = seen.ft_value, seen.ft_value
    tensor.ft_alias = new = Alias(tensor, like.parent, like.step)
    if like.parent is not None:
        like.parent.children.append(new)
    if (before.type.shape, before.type.stride) != (its.type.shape, its.type.stride):
        become_like(tensor, seen)
    old.tensor = lambda: None  # views of it see what they saw
    new.version = old.version
    if before.type.requires_grad:
        value = rewrite(recorder, before, (), value, lambda: seen.ft_value)
    new.become(value)
    overwritten = StorageAliases(new, new.since, recorder.origin(), None, alone=True)
    recorder.aliasing.overwritten.setdefault(before, overwritten)
    return cast("Abstract", seen)


def _check_takes(tensor: Abstract, before: Value, its: TensorType) -> None:
    mine = before.type
    special = mine.wrapped or its.wrapped or mine.sparse or its.sparse or mine.lazy or its.lazy
    same = (mine.dtype, mine.device) == (its.dtype, its.device)
    same = same and (mine.shape == its.shape or not mine.requires_grad)  # a history has a shape
    inside = mine.requires_grad and not (tensor.ft_leaf or _from_outside(tensor, before))
    if special or not same or inside:
        raise Refusal(
            f"the program gives {mine!r} the memory of {its!r}",
            kind="side effect",
            do="use copy_, or a new tensor",
        )


def _from_outside(tensor: Abstract, value: Value) -> bool:
    """Whether its history is all the caller's: it is an input, in later calls no view, too."""
    own = tensor.ft_gradient is not None and value is alias_of(tensor).initial
    return own and bool(tensor.ft_gradient[0].is_whole(tensor))


def note_overwritten(alias: Alias, recorder: RecorderBase, origin: Origin | None = None) -> None:
    """Note that a tensor's memory was written over, and the value that it had.

    `origin`: that of the write, if known.
    """
    if alias.value is not None:
        before = recorder.aliasing.overwritten.get(alias.value)
        if before is None or before.detached or before.before is not None:
            origin = origin or recorder.origin()
            overwritten = StorageAliases(
                alias, alias.since, origin, recorder.aliasing.functional_form
            )
            recorder.aliasing.overwritten[alias.value] = overwritten
