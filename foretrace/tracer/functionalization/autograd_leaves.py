"""Leaves of autograd that a program creates: by `requires_grad_()`, or `requires_grad=True`.

Each is recorded as a call, so that the graph's tensor requires grad as in eager.
"""

from collections.abc import Iterable
from weakref import ref

import torch

from foretrace.errors import Frame, Refusal
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.abstract_tensor import FLAG, Abstract, follow
from foretrace.tracer.functionalization.alias import Alias, alias_of
from foretrace.tracer.functionalization.builder import RecorderBase
from foretrace.tracer.functionalization.current_value import current
from foretrace.tracer.functionalization.op_call import Call


def require_grad(call: Call) -> Abstract:
    """Record a call of `requires_grad_`, as eager takes it."""
    tensor, (value, *rest) = call.tensors[0], call.args
    wanted = rest[0] if rest else call.kwargs.get("requires_grad", True)
    loose = tensor.ft_alias is not None and tensor.ft_alias.loose
    if wanted == value.type.requires_grad and not (wanted and loose):
        return tensor
    of_input = tensor.ft_leaf and tensor.ft_gradient is not None
    if of_input and tensor.ft_queries.answers.set_requires_grad(tensor, wanted):
        return tensor
    if not wanted or not value.type.differentiable:
        raise Refusal(
            f"requires_grad_({wanted}) on what {'requires grad' if not wanted else 'cannot'}",
            kind="autograd inside",
            do="use detach()" if not wanted else "make it of floating point numbers first",
        )
    make_leaf(call.recorder, tensor, value)
    return tensor


def make_leaf(recorder: RecorderBase, tensor: Abstract, value: Value) -> Value:
    """Record that a tensor of the program's, which may be a view, is a leaf from now on.

    Raises:
        Refusal: views of it are alive, to which a later write would give its history.
    """
    alias = tensor.ft_alias
    if alias is not None:
        if alias.loose or any(each.tensor() is not None for each in alias.views()):
            raise _viewed()
        alias.leave_history()
    leaf = recorder.leaf(value)
    if alias is not None:
        alias.become(leaf)
    tensor.ft_value, tensor.ft_leaf, tensor.ft_grad = leaf, True, None
    recorder.autograd.leaves[leaf] = ref(tensor)
    follow(tensor, True)
    return leaf


def _viewed() -> Refusal:
    return Refusal(
        "requires_grad_() on a tensor that has views, or is one of what requires grad",
        kind="unsupported",
        do="call it on a clone() of the tensor, before it is viewed",
    )


def check_unviewed(alias: Alias) -> None:
    """Refuse that an input becomes a leaf while there are views of it without a history.

    Raises:
        Refusal: eager says from then on that such a view requires grad, too, as a leaf does.
    """
    for each in alias.views():
        tensor = each.tensor()  # of an input, `check_one_history` has more to say
        own = tensor is not None and not tensor.ft_leaf
        bare = own and not each.last.type.requires_grad
        if bare and each.last.type.differentiable and each.up_to_history()[0] is alias:
            raise _viewed()


def notice_leaf(recorder: RecorderBase, tensor: Abstract, value: Value) -> Value:
    """The value of a factory's result: a leaf, if it was called with `requires_grad=True`.

    torch's bindings set the flag after the operator has answered.
    """
    flagged = FLAG(tensor) and not value.type.requires_grad
    return make_leaf(recorder, tensor, value) if flagged else value


def value_of(tensor: Abstract, recorder: RecorderBase) -> Value:
    """What the tensor stands for now."""
    value = tensor.ft_value or current(tensor.ft_alias, recorder)
    return notice_leaf(recorder, tensor, value) if value in recorder.autograd.fresh else value


def _leaf_again(recorder: RecorderBase, tensor: Abstract, value: Value) -> Value:
    """A leaf with the present content, for one that was written to after it was used."""
    was = recorder.autograd.place(value)
    if value in recorder.autograd.program_leaves or was not in recorder.autograd.program_leaves:
        return value
    recorder.autograd.parted[was] = value
    leaf = recorder.leaf(value)
    alias_of(tensor).become(leaf)
    return leaf


def check_parted(recorder: RecorderBase, returned: Iterable[Value]) -> None:
    """Refuse results whose history ends in such a leaf.

    Raises:
        Refusal: a backward of the caller's would miss the leaf that is returned.
    """
    parted = recorder.autograd.parted
    if not parted:
        return
    leaves = _as_written(recorder, parted)
    if not leaves.union(_behind(recorder, leaves)).isdisjoint(returned):
        raise Refusal(
            "the program writes to a leaf that it has made, after it used the leaf, and gives both",
            kind="unsupported",
            at=_used(recorder, leaves),
            do="write to it before it is used, or to a clone",
        )


def check_unwritten_leaves(
    recorder: RecorderBase, leaves: set[Value], returned: Iterable[Value]
) -> None:
    """Refuse results that depend on inputs which the program writes to and makes leaves.

    Raises:
        Refusal: a graph computes with another tensor, to which their gradients would go.
    """
    every = _as_written(recorder, leaves)
    if not _behind(recorder, every).isdisjoint(returned):
        raise Refusal(
            "the program writes to an input, sets its requires_grad, and gives what depends on it",
            kind="followed write",
            at=_used(recorder, every),
            do=("set `requires_grad` outside of the program", "or write to a clone"),
        )


def _as_written(recorder: RecorderBase, leaves: Iterable[Value]) -> set[Value]:
    """Leaves, and what they are once they are written to unseen."""
    known = {*leaves}
    return known.union(now for now, was in recorder.autograd.places.items() if was in known)


def _behind(recorder: RecorderBase, leaves: set[Value]) -> set[Value]:
    """What autograd computes from leaves; not these themselves."""
    reached = {*leaves}
    for op in recorder.scope.log if leaves else ():
        if op.origin.grad_mode and not reached.isdisjoint(op.operands):
            reached.update(out for out in op.outs if out.type.requires_grad)
    return reached - leaves


def _used(recorder: RecorderBase, leaves: set[Value]) -> Frame | None:
    """The line that first computes with one."""
    log = recorder.scope.log
    return next((op.origin.frame for op in log if not leaves.isdisjoint(op.operands)), None)


def returned_value(tensor: Abstract, recorder: RecorderBase) -> Value:
    """The value of what the program returns.

    A view that it took under no_grad requires grad if the mode around records gradients.

    Raises:
        Refusal: eager refuses a use of it where autograd is on, as the caller may have it.
    """
    with torch.enable_grad():
        value = value_of(tensor, recorder)
    if tensor.ft_leaf and tensor.ft_gradient is None and value.type.requires_grad:
        value = _leaf_again(recorder, tensor, value)
    alias, owner = tensor.ft_alias, tensor.ft_alias and tensor.ft_alias.root.tensor()
    from_caller = owner is not None and (owner.ft_leaf or owner.ft_gradient is not None)
    if alias is not None and alias.loose and value.type.requires_grad and not from_caller:
        tensor.ft_queries.requires_grad.append(True)
    return value
