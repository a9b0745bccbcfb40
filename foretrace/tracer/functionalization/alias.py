"""Tensors that share memory: each is a view of its parent, and may be stale after a write."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn
from weakref import ref

from foretrace.errors import Frame, Refusal
from foretrace.ir.program.interface import Input
from foretrace.ir.program.op import Op, ViewStep
from foretrace.ir.program.origin import Origin
from foretrace.ir.program.walk import every_op
from foretrace.ir.source.call_site import asking_line
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract, follow
from foretrace.operators.abstract_tensors.tensor_queries import view_unknown
from foretrace.operators.schemas.dispatch_result import Share


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
        "based", "children", "counted", "distance", "initial", "last", "leaf_view", "mixed",
        "moved", "parent", "since", "step", "tensor", "twins", "value", "version",
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
        self.leaf_view = False
        """whether it is a view, and a leaf since `requires_grad_()`"""
        self.moved: Alias | None = None
        """the member that its tensor is since `t_()` or its like gave that another shape"""
        self.mixed = False
        """of an owner: whether sparse tensors and dense ones share its memory, or may share it"""
        self.twins: list[Alias] = []
        """its places in other memory, where it is stored in several"""
        self.distance: Any = 0
        if step is not None and tensor.ft_value is not None:
            self.distance = tensor.ft_value.type.begins - step.base.type.begins
        """how many bytes behind its parent's first element its own is, in memory"""
        self.version: Version = parent.version if parent is not None else Version()
        self.since = self.version.count
        """the version at which its last value became current"""
        self.counted = 0
        """writes through it, and through what was derived from it, that its counter counts"""

    @property
    def root(self) -> "Alias":
        """The tensor that owns the memory."""
        return self if self.parent is None else self.parent.root

    @property
    def is_view(self) -> bool:
        """Whether autograd has it as a view of the tensor that owns the memory."""
        return self.parent is not None and self.step is not None and self.step.followed

    @property
    def share(self) -> Share:
        """What it shares with the tensor that owns the memory."""
        if self.version is not self.root.version:
            return Share.MEMORY
        return Share(self.up_to_history()[0] is not self.root)

    @property
    def rewritten(self) -> bool:
        """Whether its version counter has changed since it had a value."""
        return self.version.count != self.since

    def count_alone(self) -> None:
        """Take a new version counter, as `.data` does."""
        self.version, self.since = Version(), 0

    def count_write(self) -> None:
        """Let the version counter count one write that goes through this tensor."""
        version = self.version
        version.count += 1
        member: Alias | None = self
        while member is not None and member.version is version:
            member.counted += 1
            member = member.parent

    def up_to_history(self) -> tuple["Alias", list["Alias"]]:
        """The member that carries autograd's history of this one, and the way down from it."""
        if self.parent is None:  # nearly always
            return self, []
        at, path = self, list[Alias]()
        while at.parent is not None and at.step is not None and at.step.followed:
            path.append(at)
            at = at.parent
        return at, path[::-1]

    @property
    def base(self) -> "Alias":
        """The member of which autograd views this one again after a write."""
        at = self.up_to_history()[0]
        while at.moved is not None and at.moved is not self:
            at = at.moved
        return at

    @property
    def before_moving(self) -> "Alias":
        """The member that its tensor was before in-place operators gave it another shape."""
        at = self
        while at.parent is not None and at.parent.moved is at:
            at = at.parent
        return at

    def members(self) -> Iterator["Alias"]:
        """This one and all views of it."""
        yield self
        yield from self.views()

    def views(self) -> Iterator["Alias"]:
        """All views of it."""
        for child in self.children:
            yield from child.members()

    def leave_history(self) -> None:
        """Become a leaf: its history is no longer that of what it is a view of."""
        if self.is_view and self.step is not None:
            self.step, self.leaf_view = replace(self.step, followed=False), True

    @property
    def own_history(self) -> bool:
        """Whether its history is not that of the memory's owner, or ends before it is."""
        history, path = self.up_to_history()
        own = any(member.step is not None and member.step.own for member in path)
        return own or history is not self.root or any(member.loose for member in path[:-1])

    @property
    def loose(self) -> bool:
        """Whether it is a view taken under no_grad, without a history of its own."""
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
        """Take another value from now on; None: stale."""
        self.value = value
        if value is not None:
            self.last, self.since = value, self.version.count
        tensor = self.tensor()
        if tensor is not None:
            tensor.ft_value = value


@dataclass(frozen=True, slots=True, eq=False)
class StorageAliases:
    """A value whose memory was written over: which tensor had it, and since which version."""

    alias: Alias
    since: int
    origin: Origin  # of the write
    form: Op | None
    """the functional form of the op that wrote: of what it writes to, autograd saves a copy"""
    before: Op | None = None
    detached: bool = False
    """it was not written to, but `detach_` took its history"""
    alone: bool = False
    """it was not written to, but its tensor got other memory: views of it see what they saw"""

    @property
    def seen(self) -> bool:
        """Whether autograd finds at the backward that the memory was written to."""
        return self.detached or self.alias.version.count != self.since


def cut_off(tensor: Abstract) -> None:
    """Separate a tensor that is written to from those that share its memory across a sparse one.

    No schema says which operators write to the values that a sparse tensor stores and which give it
    others, nor which views of one are copies. So a later use of what may see the write is refused.
    """
    alias = tensor.ft_alias
    for each in () if alias is None else (alias, *alias.twins):
        if each.root.mixed:
            _cut_off(each, asking_line())


def _cut_off(alias: Alias, at: Frame | None) -> None:
    root, top = alias.root, alias
    while top.parent is not None and not (top.last.type.sparse or top.parent.last.type.sparse):
        top = top.parent
    kept = [top, *_dense_below(top)]
    lost = [each for each in root.members() if all(each is not member for member in kept)]
    for member in kept:
        member.children = [child for child in member.children if any(child is k for k in kept)]
    if top.parent is not None:
        top.parent.children.remove(top)
        top.parent = top.step = None
    top.mixed = False
    alive = (each.tensor() for each in lost)
    Stranded(
        "the program writes to memory that a sparse tensor shares, or may share, with another",
        ("write to a clone", "or make a new tensor of it: a * 2"),
        at,
    ).strand(tensor for tensor in alive if tensor is not None)


def _dense_below(alias: Alias) -> Iterator[Alias]:
    """The dense members below a dense one, on ways that lead over no sparse one."""
    for child in alias.children if not alias.last.type.sparse else ():
        if not child.last.type.sparse:
            yield child
            yield from _dense_below(child)


def written(tensor: Abstract, ops: Sequence[Op], inputs: Iterable[Input]) -> int:
    """Torch's version counter of memory that the program has created.

    Args:
        tensor: what is asked; one in inference mode, or of another's memory, is refused.
        ops: the program's, as written, so far.
        inputs: those of its run, with constants from Python numbers.

    Raises:
        Refusal: it is of a call, or an op with a body has written to it inside.
    """
    alias = alias_of(tensor)
    first = alias.root.initial
    constants = (item.value for item in inputs if item.role.kind == "constant")
    maker = next((op for op in reversed(ops) if first in op.outs), None)
    plain = maker is not None and not (
        maker.writes or any(each.writes for each in every_op(maker.region or ()))
    )
    if not (plain or any(value is first for value in constants)):
        raise view_unknown()
    return alias.version.count


class Stranded:
    """Replaces the alias of a tensor without a value; raises where that is used.

    Args:
        what: why it is refused.
        do: what to do.
        at: the line that is to blame, if it is not the one that uses it.
    """

    def __init__(self, what: str, do: str | tuple[str, ...], at: Frame | None = None) -> None:
        self.what, self.do, self.at = what, do, at

    @property
    def value(self) -> NoReturn:
        """Asked for when the tensor is used."""
        raise Refusal(self.what, kind="escaped", do=self.do, at=self.at)

    root = before_moving = value

    def strand(self, tensors: Iterable[Abstract]) -> None:
        """Take the values of tensors away: a use is refused."""
        for tensor in tensors:
            tensor.ft_value, tensor.ft_alias = None, self


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
    alias = Alias(view, parent, step)
    if share is Share.MEMORY:
        alias.count_alone()
    parent.children.append(alias)
    if op.outs[position].type.sparse or parent.last.type.sparse:
        parent.root.mixed = True
    if isinstance(view.ft_alias, Alias):  # indices of what has its place by its values
        view.ft_alias.twins.append(alias)
        return
    view.ft_alias = alias
    if followed and not grad_mode and not parent.up_to_history()[0].based:
        op.outs[position].type = op.outs[position].type.with_grad(False)
        follow(view, requires_grad=False)  # under no_grad a view has it of the base of all
