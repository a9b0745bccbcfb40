"""Functionalize writes while a program is recorded.

Tensors that share memory form a tree: each is a view of its parent. A write gives the tree's root
a new value and makes every other member stale; a stale member that is read again is the same view
of the root's new value. So the recorded program never mutates anything.

The new value has the history that autograd gives it in eager mode: a write to a view rebases the
history of its base (CopySlices); a write under no_grad, or through detach(), changes the content
and leaves the history.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op, Write
from foretrace.ir.program.origin import Origin
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value, values_in
from foretrace.operators.abstract_tensors.abstract_tensor import FLAG, Abstract, become_like, follow
from foretrace.operators.schemas.schema import schema_of
from foretrace.operators.schemas.view_inverse import put_back
from foretrace.tracer.functionalization.alias import Alias, alias_of, cut_off
from foretrace.tracer.functionalization.builder import RecorderBase
from foretrace.tracer.functionalization.current_value import current, rewrite
from foretrace.tracer.functionalization.in_place_checks import (
    check_leaves,
    check_not_wrapped,
    detach,
    note_overwritten,
    reshape,
    take,
)
from foretrace.tracer.functionalization.inner_view_base import note_written, open_to_base
from foretrace.tracer.functionalization.op_call import Call, form_of
from foretrace.tracer.functionalization.out_variants import (
    RESIZES,
    contents,
    resize,
    write_one_by_one,
)
from foretrace.tracer.functionalization.self_overlap import (
    check_disjoint,
    meet,
    overlapping,
    overlaps,
    place,
    within,
)
from foretrace.tracer.functionalization.storage_offsets import FROM_START
from foretrace.tracer.functionalization.written_layout import (
    OwnResults,
    check_fits,
    check_not_resized,
    copy_content,
    draw,
    draws_same,
    in_layout,
    lay_out,
)

aten = torch.ops.aten


def functionalize(call: Call) -> Any:
    """Record an op that writes to operands, and answer it as eager would."""
    recorder, func, schema = call.recorder, call.func, call.schema
    own = OWN_WRITES.get(func)
    if own is not None and (answer := own(call)) is not NotImplemented:
        return answer
    if schema.reshapes_in_place and schema.functional is not None:
        return reshape(call)
    if schema.functional is None:
        raise Refusal(
            f"{func} writes in place and has no form that returns the new value",
            kind="no functional form",
            do="register an operator that returns the new value, and copy_ that",
        )
    targets = call.targets
    check_disjoint(call)
    check_not_wrapped(targets)
    for target in targets:
        cut_off(target)
    grad = recorder.grad_mode() and not call.foreign  # autograd sees no write of another library's
    followed = grad and any(v.type.requires_grad for v in call.values)
    if followed:
        check_leaves(func, targets, out_variant=bool(schema.outs))
    if not call.foreign and write_one_by_one(call, followed=followed):
        return None
    if len(targets) == 1 and schema.returns.written:
        _write_one(call, followed)
        return targets[0]
    each = schema.outs or schema.returns.written or not schema.returns.something
    if each and not call.foreign:
        return _write_each(call)
    return _write_many(call)


def _fill(call: Call) -> Any:
    """Fill by `copy_` of a number; NotImplemented: it copies a tensor."""
    if isinstance(call.args[1], Value):
        return NotImplemented
    (tensor,), number = call.tensors, call.args[1]
    if isinstance(number, complex) and not (tensor.is_complex() or tensor.dtype is torch.bool):
        number = number.real
    args = [call.args[0], number]
    filled = call.recorder, aten.fill_.Scalar, args, call.kwargs, call.tensors, call.values
    return functionalize(Call(*filled))


OWN_WRITES: Final[Mapping[Any, Callable[[Call], Any]]] = MappingProxyType(
    {
        aten.detach_.default: detach,
        aten.copy_.default: _fill,
        aten.set_.source_Tensor: take,
        **dict.fromkeys(RESIZES, resize),
    }
)
"""Operators that change a tensor by no functional form"""


def _write_one(call: Call, followed: bool) -> None:
    recorder, func, (target,) = call.recorder, call.func, call.targets
    followed = followed and (target.dtype.is_floating_point or target.dtype.is_complex)
    alias = alias_of(target)
    open_to_base(recorder, alias)
    history, path = holder(recorder, alias, followed=followed)
    for member in path:
        _check_seen(recorder, member, history)
    old = current(history, recorder)
    origin = recorder.origin()
    with recorder.scope.inner(origin.frame) as body:
        (new,) = _new_contents(call)
        new = _scatter(recorder, history, path, new)
    new.type = new.type.with_grad(followed or old.type.requires_grad)
    args: Tree = call.args
    if path or (old.type.requires_grad and not followed):
        steps = tuple(member.step for member in path if member.step is not None)
        func, args = Write(func, steps, followed), (old, args)
    op = Op(func, args, call.kwargs, new, (new,), origin=origin, below=body, writes=True)
    recorder.append(op)
    note_written(recorder, old, op)
    if not call.unseen:
        alias.count_write()
    _spread(recorder, history, new, origin)
    if followed and alias.is_view and alias.up_to_history()[0].based and not recorder.inside:
        recorder.aliasing.rebased.append(alias)


def holder(
    recorder: RecorderBase, alias: Alias, *, followed: bool = False
) -> tuple[Alias, list[Alias]]:
    """The member whose content a write replaces, and the path down from it.

    It is the one that carries the history that the write changes, or that is kept. One without a
    history, a leaf, and one of which several elements are one place have what their owner has.

    Raises:
        Refusal: autograd is to follow what is written to part of what overlaps itself.
    """
    owner, path = alias.up_to_history()
    while owner.parent is not None:
        type = current(owner, recorder).type
        if followed and overlaps(recorder, type):
            raise overlapping("autograd is to follow a write to part of what overlaps itself")
        leaf = owner.last in recorder.autograd.program_leaves
        if followed or (type.requires_grad and not (leaf or overlaps(recorder, type))):
            break
        above, way = owner.parent.up_to_history()
        owner, path = above, [*way, owner, *path]
    return owner, path


def _spread(recorder: RecorderBase, history: Alias, new: Value, origin: Origin) -> None:
    """Give a member that carries history a new value, and make the others stale."""
    root = history.root
    if root is not history:
        path = [history]
        while path[-1].parent is not root:
            path.append(path[-1].parent)  # type: ignore[arg-type]
        path.reverse()
        old = current(root, recorder)
        content = rewrite(recorder, old, path, new, lambda: _scatter(recorder, root, path, new))
        _renew(recorder, root, content, origin, place(history, history.last))
    _renew(recorder, history, new, origin)


def _renew(
    recorder: RecorderBase,
    owner: Alias,
    value: Value,
    origin: Origin,
    part: TensorType | None = None,
) -> None:
    """Give the owner a new value, and make the members that see the part stale."""
    if recorder.begun_leaf(owner.last):
        value = recorder.leaf_again(owner.last, value)
    for member in list(_reached(recorder, owner, part)):
        _check_seen(recorder, member, member.root)
        note_overwritten(member, recorder, origin)
        old = member.last.type
        member.become(value if member is owner else None)
        tensor = member.tensor()
        resized = member is owner and old.shape is not value.type.shape  # nearly always it is
        if resized and tensor is not None and tuple(tensor.shape) != value.type.shape:
            become_like(tensor, recorder.abstract(value))
        if tensor is not None and value.type.requires_grad:
            _be_followed(tensor, member, owner)


def _check_seen(recorder: RecorderBase, member: Alias, owner: Alias) -> None:
    """Refuse new content of a tensor whose view sees more memory than the tensor.

    Raises:
        Refusal: an `as_strided` that is alive sees elements between the owner's, or behind.
    """
    func = None if member.step is None else member.step.func
    if func not in FROM_START or not any(each.tensor() is not None for each in member.members()):
        return
    if not within(recorder, place(member, member.last), place(owner, owner.initial)):
        raise Refusal(
            f"{func} sees memory beside that of the tensor, which the program writes to",
            kind="overlapping memory",
            do=("take the view of a clone", "or write to a clone"),
        )


def _reached(recorder: RecorderBase, owner: Alias, part: TensorType | None) -> Iterator[Alias]:
    """The members of a memory but those with a history of their own that lie beside the part."""
    yield owner
    for child in owner.children:
        linked = child.is_view or child.value is None or not child.value.type.requires_grad
        if part is None or linked or meet(recorder, place(child, child.last), part):
            yield from _reached(recorder, child, part)


def _be_followed(tensor: Abstract, member: Alias, owner: Alias) -> None:
    """Mark a tensor as requiring grad, if its history is the owner's."""
    history, path = member.up_to_history()
    unbased = not history.based and any(each.loose for each in path)
    same = history is owner.up_to_history()[0] and not unbased
    followed = same and tensor.dtype.is_floating_point | tensor.dtype.is_complex
    if followed and not FLAG(tensor):
        tensor.ft_leaf = False
        follow(tensor, requires_grad=True)


def _new_contents(call: Call) -> list[Value]:
    """The new content of each target, in its layout, in memory of its own."""
    recorder, func, args, targets = call.recorder, call.func, call.args, call.targets
    if func is aten.copy_.default:
        old = current(alias_of(targets[0]), recorder)
        return [copy_content(recorder, old, args[1], whole=not alias_of(targets[0]).is_view)]
    schema = call.schema
    if schema.outs:
        (new,) = filter(None, contents(call))
        return [in_layout(recorder, alias_of(targets[0]), new)]
    for chance in values_in(args[1:]) if schema.draws_over else ():  # torch's meta kernels ask not
        recorder.semantics.infer(aten.expand.default, (chance.type, [*args[0].type.shape]), {})
    if schema.draws_over and not draws_same(func, args[0].type):
        return [in_layout(recorder, alias_of(targets[0]), draw(call))]
    op = form_of(call)
    results = values_in(op.result)
    news = results[len(results) - len(targets) :]
    check_fits(call, targets, news)
    kept = [
        recorder.call(aten.clone.default, (v,)).outs[0] if v in op.operands else v for v in news
    ]
    return [
        in_layout(recorder, alias_of(target), new)
        for target, new in zip(targets, kept, strict=True)
    ]


def _write_each(call: Call) -> Any:
    """Record an op that writes to several operands: its results, and a copy into each."""
    recorder, schema, tensors = call.recorder, call.schema, call.by_value
    values, news = call.written, list[Value | None]()
    formed: Op | None = None
    if schema.outs:
        news = contents(call)
    else:
        form, *arguments = call.functional
        returned = recorder.again(form, *(recorder.concrete(tree, tensors) for tree in arguments))
        done = schema_of(form).written_now(*arguments)
        values = [value for value in values if value not in done]
        found = (t for t in torch_api.tree_leaves(returned) if isinstance(t, Abstract))
        news = [current(alias_of(each), recorder) for each in found]
        formed = recorder.scope.ops[-1]
    targets = [tensors[value] for value in values]
    if not schema.outs:
        check_fits(call, targets, news)
    copy, unseen = aten.copy_.default, not call.counts_writes
    with recorder.aliasing.writing_results(formed):
        for target, new in zip(targets, news, strict=True):
            if new is not None:  # a gradient that its mask leaves out
                over, each = (current(alias_of(target), recorder), new), recorder.abstract(new)
                into = [target, each]
                functionalize(Call(recorder, copy, over, {}, into, [*over], unseen=unseen))
    if not (schema.returns.something and schema.returns.several):
        return targets[0] if schema.returns.something else None
    return tuple(targets[: len(values_in([call.kwargs[name] for name in schema.outs]))]) or targets


def _write_many(call: Call) -> Any:
    """Record an op that writes to operands beside its results, such as batch norm's statistics."""
    recorder, schema, targets = call.recorder, call.schema, call.targets
    origin = recorder.origin()
    check_not_resized(call)
    grad = recorder.grad_mode()
    followed = recorder.semantics.followed(call.func, *call.types) if grad else ()
    own = OwnResults.of(call)
    with recorder.scope.inner(origin.frame) as body:
        contents = _new_contents(call)
        computed = body[0].outs[: len(body[0].outs) - len(targets)]
        results = own.laid_out(computed)
    for value, on in zip(results, followed, strict=False):
        value.type = value.type.with_grad(on)
    result = tuple(targets) if schema.returns.written else own.tensors(results)
    outs, what = (*results, *contents), (call.func, call.args, call.kwargs)
    recorder.append(Op(*what, results, outs, origin=origin, below=body, writes=True))
    for target, new in zip(targets, contents, strict=True):
        if call.counts_writes:
            alias_of(target).count_write()
        owner, path = holder(recorder, alias_of(target))
        old, whole = current(owner, recorder), partial(_scatter, recorder, owner, path, new)
        kept = path or old.type.requires_grad
        content = rewrite(recorder, old, path, new, whole) if kept else new
        _spread(recorder, owner, content, origin)
    if not (schema.returns.tensors and results):
        return None
    return result if schema.returns.several else result[0]


def _scatter(recorder: RecorderBase, owner: Alias, path: list[Alias], new: Value) -> Value:
    """The owner's content after the view at the end of `path` got the content `new`."""
    if not path:
        return new
    bases = [current(parent, recorder) for parent in (owner, *path[:-1])]
    steps = [member.step for member in path if member.step is not None]

    new, like = put_back(steps, bases, new, recorder.call), bases[0].type
    return new if new.type.same_layout(like) else lay_out(recorder, like, new)
