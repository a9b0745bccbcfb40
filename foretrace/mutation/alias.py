"""Tensors that share memory: each is a view of its parent, and may be stale after a write."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import ref

import torch

from foretrace.errors import Frame
from foretrace.frames.sources import asking_line
from foretrace.ir.op import AS_STRIDED, Op, Origin, Tree, Value, ViewStep, Write
from foretrace.mutation.lost_views import not_tracked, of_another, of_detached
from foretrace.ops.outcome import Share
from foretrace.ops.semantics import Semantics
from foretrace.tensors.abstract import Abstract, Types, follow
from foretrace.tensors.autocast import Casts

aten = torch.ops.aten


class Records(Protocol):
    """What the rest of the room asks of the recorder."""

    types: Types
    semantics: Semantics
    casts: Casts
    scope: list[Op]
    log: list[Op]
    seeing: dict[Value, Op]
    functional_form: Op | None
    overwritten: "dict[Value, Held]"
    rebased: "list[Alias]"
    fresh: set[Value]
    leaves: set[Value]
    lift: Callable[[torch.Tensor], Abstract]
    lift_constant: Callable[[torch.Tensor], Abstract]
    answer: Callable[..., Any]

    def call(
        self, func: Any, args: Tree, kwargs: dict[str, Tree] | None = None, grad: bool = False
    ) -> Op:
        """Record a call given in values."""

    def again(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """Record another call in the place of one that could not be."""

    def concrete(self, tree: Tree, env: dict[Value, Any]) -> Any:
        """Arguments as torch takes them."""

    def listening(self) -> AbstractContextManager[Any]:
        """The mode is active inside."""

    def leaf(self, value: Value, before: Value | None = None) -> Value:
        """Record that what a value has is a leaf, and was one before."""

    def append(self, op: Op) -> None:
        """Add an op to the current scope."""

    def inner_scope(self, frame: Frame | None = None) -> AbstractContextManager[list[Op]]:
        """Ops recorded inside go to the yielded list."""

    @property
    def inside(self) -> bool:
        """Whether a body is being recorded."""

    def origin(self) -> Origin:
        """The current origin."""

    def grad_mode(self) -> bool:
        """Whether autograd would follow the next op."""

    def abstract(self, value: Value) -> Abstract:
        """A new abstract tensor."""

    def followed_results(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> tuple[bool, ...]:
        """For each result of a leaf, whether autograd follows it now."""


class Version:
    """torch's version counter: how often memory was written to, as those that share it see it.

    A tensor shares it with its views, `detach()` among them; `.data` has one of its own.
    Source: Note [Version Counter] in c10/core/TensorImpl.h.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class Alias:
    """One tensor among those that share its memory."""

    __slots__ = (
        "based", "children", "distance", "initial", "last", "moved", "parent", "since", "step",
        "tensor", "value", "version",
    )  # fmt: skip

    def __init__(self, tensor: Abstract, parent: "Alias | None", step: ViewStep | None) -> None:
        self.tensor: Callable[[], Abstract | None] = ref(tensor)
        self.parent, self.step = parent, step
        self.value: Value | None = tensor.ft_value
        self.initial: Any = tensor.ft_value
        """the value that it had before the program wrote to its memory"""
        self.children: list[Alias] = []
        self.last: Any = tensor.ft_value
        """its last value; its own, or the one that became stale"""
        self.based = True
        """whether what it is a view of outside of the program requires grad, if it is one"""
        self.moved: Alias | None = None
        """the member that its tensor is since `t_()` or its like gave that another shape"""
        self.distance: Any = 0
        if step is not None and tensor.ft_value is not None:
            self.distance = tensor.ft_value.type.begins - step.base.type.begins
        """how many bytes behind its parent's first element its own is, in memory"""
        self.version: Version = parent.version if parent is not None else Version()
        self.since = self.version.count
        """the version at which its last value became current"""

    @property
    def root(self) -> "Alias":
        """The tensor that owns the memory."""
        return self if self.parent is None else self.parent.root

    @property
    def is_view(self) -> bool:
        """Whether it looks at a part of memory that another tensor owns."""
        return self.parent is not None and self.step is not None and self.step.followed

    @property
    def share(self) -> Share:
        """What it has of the tensor that owns the memory."""
        if self.version is not self.root.version:
            return Share.MEMORY
        return Share(self.up_to_history()[0] is not self.root)

    @property
    def rewritten(self) -> bool:
        """Whether its version counter tells that its memory was written since it had a value."""
        return self.version.count != self.since

    def count_alone(self) -> None:
        """Have a version counter of its own, as `.data` has."""
        self.version, self.since = Version(), 0

    def up_to_history(self) -> tuple["Alias", list["Alias"]]:
        """The member that carries autograd's history of this one, and the way down from it."""
        at, path = self, list[Alias]()
        while at.parent is not None and at.step is not None and at.step.followed:
            path.append(at)
            at = at.parent
        return at, path[::-1]

    @property
    def base(self) -> "Alias":
        """The member of which autograd views this one anew after a write."""
        at = self.up_to_history()[0]
        while at.moved is not None and at.moved is not self:
            at = at.moved
        return at

    def members(self) -> Iterator["Alias"]:
        """This one and all views of it."""
        yield self
        for child in self.children:
            yield from child.members()

    @property
    def apart(self) -> bool:
        """Whether its history is not that of the memory's owner, or ends before it is."""
        history, path = self.up_to_history()
        own = any(member.step is not None and member.step.own for member in path)
        return own or history is not self.root or any(member.loose for member in path[:-1])

    @property
    def loose(self) -> bool:
        """Whether it is a view that was taken under no_grad: it has no history of its own."""
        step = self.step
        return self.is_view and step is not None and not (step.grad_mode or step.own)

    @property
    def untracked(self) -> str:
        """Why autograd refuses to follow writes to this view, or a use of it after a write.

        Empty if it does not. Source: handle_view_on_rebase in torch/csrc/autograd/variable.cpp.
        """
        at: Alias | None = self
        while at is not None and at.step is not None and at.step.followed:
            if at.step.own:
                return "a view that an autograd.Function returned"
            if at.step.several:
                return "one of several views that one call returned"
            if not at.step.grad_mode:
                return "a view that was taken under no_grad"
            at = at.parent
        return ""

    def become(self, value: Value | None) -> None:
        """Stand for another value from now on; None: stale."""
        self.value = value
        if value is not None:
            self.last, self.since = value, self.version.count
        tensor = self.tensor()
        if tensor is not None:
            tensor.ft_value = value


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """A value whose memory was written over: which tensor had it, and since which version."""

    alias: Alias
    since: int
    origin: Origin  # of the write
    form: Op | None
    """the functional form of the op that wrote: of what it writes to, autograd saves a copy"""
    before: Op | None = None
    detached: bool = False
    """it was not written to, but `detach_` took its history"""

    @property
    def seen(self) -> bool:
        """Whether autograd finds at the backward that the memory was written to."""
        return self.detached or self.alias.version.count != self.since


def alias_of(tensor: Abstract) -> Alias:
    """The tensor's place among those that share its memory."""
    if tensor.ft_alias is None:
        tensor.ft_alias = Alias(tensor, None, None)
    alias: Alias = tensor.ft_alias
    return alias


def link(
    view: Abstract, base: Abstract, op: Op, position: int, grad_mode: bool, share: Share
) -> None:
    """Note that `view`, an out of `op`, shares the memory of `base`."""
    parent, followed = alias_of(base), share is Share.VIEW
    step = ViewStep(
        op.target, op.args, op.kwargs, parent.value or parent.last, position, grad_mode, followed,
        isinstance(op.result, (tuple, list)), definition=op.definition,
    )  # fmt: skip
    view.ft_alias = Alias(view, parent, step)
    if share is Share.MEMORY:
        view.ft_alias.count_alone()
    parent.children.append(view.ft_alias)
    if followed and not grad_mode and not parent.up_to_history()[0].based:
        op.outs[position].type = op.outs[position].type.with_grad(False)
        follow(view, requires_grad=False)  # under no_grad a view has it of the base of all


def current(alias: Alias, recorder: Records, *, content: bool = False) -> Value:
    """The member's value now; a stale one is viewed again. `content`: no history is asked for."""
    if alias.value is None:
        if alias.parent is None or alias.step is None:
            raise AssertionError("the owner of memory is never stale")
        above = alias.base if alias.is_view and alias.rewritten else alias.parent
        base = current(above, recorder, content=content or not alias.step.followed)
        tensor = alias.tensor()
        followed = base.type.requires_grad or (tensor is not None and tensor.requires_grad)
        anew = followed and alias.rewritten
        if anew and alias.is_view and not content:
            check_based(alias)
        lost = bool(anew and alias.untracked)
        if lost and torch.is_grad_enabled() and not content:
            raise not_tracked(alias.untracked, "used after a write to what it is a view of")
        if anew and alias.is_view and not (content or lost or base.type.requires_grad):
            raise of_detached()
        again = _viewed_again(alias, alias.step, base, recorder, content=content)
        if lost or (anew and content):
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
    alias: Alias, step: ViewStep, base: Value, recorder: Records, *, content: bool
) -> Value:
    """The same view of new content; `base`: what has its history, where that is a new one.

    Where the version counter tells of the write, autograd gives it a new history in any grad mode:
    one by strides, but for another dtype, by which gradients lie as their owner and are summed in
    another order. Else it has what it had.
    Source: VariableHooks::grad_fn in torch/csrc/autograd/variable.cpp.
    """
    like, grad = alias.last.type, alias.rewritten or step.grad_mode
    history, path = alias.up_to_history()
    read_as = {(m.last.type.dtype, m.last.type.lazy) for m in (history, *path)}
    anew = base.type.requires_grad and step.followed and alias.rewritten and len(read_as) == 1
    if not anew and alias.parent is not None:
        base = current(alias.parent, recorder, content=content or not step.followed)
    with torch.inference_mode(mode=False), torch.set_grad_enabled(grad):
        if not anew:
            again = recorder.call(step.func, *step.of(base), grad=grad).outs[step.position]
            if step.followed and not (grad or history.based):
                again.type = again.type.with_grad(False)
            return again
        offset = base.type.offset + sum(m.distance for m in path) // base.type.dtype.itemsize
        if (owner := alias.root.tensor()) is not None:
            owner.ft_viewed = asking_line()
        layout = (list(like.shape), list(like.stride), offset)
        return recorder.call(AS_STRIDED, (base, *layout), grad=grad).outs[0]


def _of_history(last: Value, content: Value, recorder: Records) -> Value:
    """New content of a tensor that keeps the history that it had, whatever wrote its memory."""
    if last in recorder.leaves:
        return recorder.leaf(content, last)
    if last.type.requires_grad:
        return rewritten(recorder, last, (), content, lambda: content)
    if content.type.requires_grad:
        return recorder.call(aten.detach.default, (content,)).outs[0]
    return content


def rewritten(
    recorder: Records, old: Value, path: Sequence[Alias], new: Value, whole: Callable[[], Value]
) -> Value:
    """`old` with the history that it has, after the view at the end of `path` got content `new`.

    `whole` records what makes the content of all of it.
    """
    origin = recorder.origin()
    with recorder.inner_scope(origin.frame) as body:
        content, lost = whole(), new.type.requires_grad and not old.type.requires_grad
        if content is new or lost:
            func = aten.detach.default if lost else aten.alias.default
            content = recorder.call(func, (content,)).outs[0]
    content.type = content.type.with_grad(old.type.requires_grad)
    steps = tuple(member.step for member in path if member.step is not None)
    op = Op(
        Write(aten.copy_.default, steps, followed=False), (old, (new,)), {}, content, (content,),
        origin=origin, region=body, writes=True,
    )  # fmt: skip
    recorder.append(op)
    return content
