"""The current value of a tensor: a stale view is taken again, as autograd does.

Where autograd has lost the view at a write, a use of it is refused, as eager refuses it.
"""

from collections.abc import Callable, Sequence

import torch

from foretrace.errors import Frame, Refusal
from foretrace.ir.program.op import AS_STRIDED, Op, ViewStep, Write
from foretrace.ir.source.call_site import asking_line
from foretrace.ir.values.value import Value
from foretrace.tracer.functionalization.alias import Alias
from foretrace.tracer.functionalization.builder import RecorderBase

aten = torch.ops.aten
KIND = "in-place on view"


def current(alias: Alias, recorder: RecorderBase, *, content: bool = False) -> Value:
    """The member's value now; a stale one is viewed again. `content`: no history is asked for."""
    if alias.value is None:
        if alias.parent is None or alias.step is None:
            raise AssertionError("the owner of memory is never stale")
        above = alias.base if alias.is_view and alias.rewritten else alias.parent
        base = current(above, recorder, content=content or not alias.step.followed)
        tensor = alias.tensor()
        followed = base.type.requires_grad or (tensor is not None and tensor.requires_grad)
        new_history = followed and alias.rewritten
        if alias.leaf_view and alias.rewritten and base.type.requires_grad:
            raise of_leaf()
        if new_history and alias.is_view and not content:
            check_based(alias)
        lost = bool(new_history and alias.untracked)
        if lost and torch.is_grad_enabled() and not content:
            raise not_tracked(alias.untracked, "used after a write to what it is a view of")
        if new_history and alias.is_view and not (content or lost or base.type.requires_grad):
            raise of_detached()
        again = _viewed_again(alias, alias.step, base, recorder, content=content)
        if lost or (new_history and content):
            alias.last = again
            return again
        linked = alias.step.followed and (alias.rewritten or not alias.step.own)
        alias.become(again if linked else _of_history(alias.last, again, recorder))
    if alias.value is None:
        raise AssertionError("a view that was read again is not stale")
    return alias.value


def check_based(alias: Alias, at: Frame | None = None) -> None:
    """Refuse a view of an input whose new history is not the input's.

    Raises:
        Refusal: autograd takes it from what the input itself is a view of.
    """
    if not alias.up_to_history()[0].based:
        raise of_another(at)


def _viewed_again(
    alias: Alias, step: ViewStep, base: Value, recorder: RecorderBase, *, content: bool
) -> Value:
    """The same view of new content; `base`: what has its history, where that is a new one.

    Where the version counter shows the write, autograd gives it a new history in any grad mode:
    one by strides, but for another dtype, by which gradients lie as their owner and are summed in
    another order. Else it has what it had.
    Source: VariableHooks::grad_fn in torch/csrc/autograd/variable.cpp.
    """
    like, grad = alias.last.type, alias.rewritten or step.grad_mode
    history, path = alias.up_to_history()
    read_as = {(m.last.type.dtype, m.last.type.lazy) for m in (history, *path)}
    new_history = (
        base.type.requires_grad and step.followed and alias.rewritten and len(read_as) == 1
    )
    if not new_history and alias.parent is not None:
        base = current(alias.parent, recorder, content=content or not step.followed)
    with torch.inference_mode(mode=False), torch.set_grad_enabled(grad):
        if not new_history:
            again = recorder.call(step.func, *step.of(base), grad=grad).outs[step.position]
            if step.followed and not (grad or history.based):
                again.type = again.type.with_grad(False)
            return again
        offset = base.type.offset + sum(m.distance for m in path) // base.type.dtype.itemsize
        if (owner := alias.root.tensor()) is not None:
            owner.ft_viewed = asking_line()
        layout = (list(like.shape), list(like.stride), offset)
        return recorder.call(AS_STRIDED, (base, *layout), grad=grad).outs[0]


def _of_history(last: Value, content: Value, recorder: RecorderBase) -> Value:
    """New content of a tensor that keeps the history that it had, whatever wrote its memory."""
    if recorder.begun_leaf(last):
        return recorder.leaf_again(last, content)
    if last.type.requires_grad:
        return rewrite(recorder, last, (), content, lambda: content)
    if content.type.requires_grad:
        return recorder.call(aten.detach.default, (content,)).outs[0]
    return content


def rewrite(
    recorder: RecorderBase,
    old: Value,
    path: Sequence[Alias],
    new: Value,
    whole: Callable[[], Value],
) -> Value:
    """`old` with the history that it has, after the view at the end of `path` got content `new`.

    `whole` records what makes the content of all of it.
    """
    origin = recorder.origin()
    with recorder.scope.inner(origin.frame) as body:
        content, lost = whole(), new.type.requires_grad and not old.type.requires_grad
        if content is new or lost:
            func = aten.detach.default if lost else aten.alias.default
            content = recorder.call(func, (content,)).outs[0]
    content.type = content.type.with_grad(old.type.requires_grad)
    steps = tuple(member.step for member in path if member.step is not None)
    op = Op(
        Write(aten.copy_.default, steps, followed=False), (old, (new,)), {}, content, (content,),
        origin=origin, below=body, writes=True,
    )  # fmt: skip
    recorder.append(op)
    return content


def not_tracked(why: str, what: str) -> Refusal:
    """The refusal of a view that autograd cannot follow through a write; eager raises, too."""
    return Refusal(
        f"{why} is {what}, which eager refuses too",
        kind=KIND,
        do="write to a clone, or to the tensor that it is a view of; select or slice, not unbind",
    )


def of_another(at: Frame | None) -> Refusal:
    """The refusal of a view of an input that is itself a view of what does not require grad."""
    return Refusal(
        "a view is used after a write to its memory, and eager gives it the history of what"
        " an input is a view of, which does not require grad",
        kind=KIND,
        at=at,
        do=("take the view after the write", "or write to a clone"),
    )


def of_detached() -> Refusal:
    """The refusal of a view whose base was detached."""
    return Refusal(
        "a view is used after a write to its memory and detach_() of what it is a view of: eager"
        " gives it a history that leads nowhere",
        kind=KIND,
        do="take the view after the detach_(), or use detach()",
    )


def of_leaf() -> Refusal:
    """The refusal of a view that is a leaf, and has got the history of what it is a view of."""
    return Refusal(
        "a view that the program has made a leaf is used after a write that requires grad to its"
        " memory: eager takes it for a leaf no longer",
        kind=KIND,
        do="call requires_grad_() on a clone() of the view",
    )
