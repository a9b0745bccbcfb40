"""Values, ops and regions: the nodes of the tree.

A parent and its children share the same values, so a cut is a flattening without renaming.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from foretrace.ir.program.origin import Choice, Origin, RuleName
from foretrace.ir.values.value import Tree, Value, substitute, values_in

Target: TypeAlias = Any
"""What an op calls: an OpOverload, a ModuleCall, a Backward, or a Python operator."""

AS_STRIDED = torch.ops.aten.as_strided.default
STRIDED = ("self", "size", "stride", "storage_offset")


@dataclass(frozen=True, slots=True, eq=False)
class Backward:
    """Target of a backward op: the derivative of `of` by the named rule."""

    of: "Op"
    rule: RuleName

    def __str__(self) -> str:
        return f"{target_name(self.of.target)}_backward"


@dataclass(frozen=True, slots=True, eq=False)
class GradientCall:
    """Target of a gradient that the program asks for, of what it has computed so far.

    The ops below are those of its walk back, each the derivative of one before.
    """

    name: str
    """"backward" or "grad", as the program has asked"""
    again: bool
    """whether it may be differentiated once more: create_graph"""
    freed: frozenset["Op"] = frozenset()
    """the ops of which it lets go what autograd had saved"""

    def __str__(self) -> str:
        return self.name


@dataclass(slots=True, eq=False)  # not frozen: a capture makes hundreds
class ViewStep:
    """How a tensor is a view of another: the call, and which of its results it is."""

    func: Target
    args: tuple[Tree, ...]
    kwargs: dict[str, Tree]
    base: Value
    position: int
    grad_mode: bool
    followed: bool
    """False where autograd does not follow the view back to its base (detach)"""
    several: bool = False
    """whether the call may return more views than this"""
    own: bool = False
    """whether an autograd.Function returned it: until it is written to, it has another history"""
    definition: "SharedBody | None" = None
    """of a composite"""

    @property
    def by_strides(self) -> bool:
        """Whether it sees memory by strides of its own."""
        return self.func is AS_STRIDED

    @property
    def absolute(self) -> bool:
        """Whether it counts from the start of the memory, whatever of it the base sees."""
        named = dict(zip(STRIDED, self.args, strict=False)) | self.kwargs
        return self.by_strides and named.get("storage_offset") is not None

    def of(self, base: Value) -> tuple[tuple[Tree, ...], dict[str, Tree]]:
        """The arguments by which the same view is taken of another base.

        `as_strided` counts from the start of the memory: its offset follows that of the base.
        """
        args, kwargs = substitute((self.args, self.kwargs), {self.base: base})
        if not self.absolute:
            return args, kwargs
        named = dict(zip(STRIDED, args, strict=False)) | kwargs
        offset = named["storage_offset"] - self.base.type.offset + base.type.offset
        return (base, named["size"], named["stride"], offset), {}


@dataclass(frozen=True, slots=True, eq=False)
class Write:
    """Target of an in-place op on a view, or of one that autograd does not see, as a value.

    The op's arguments are `(base, arguments of func)`; its out is the new content of `base`.
    `steps` lead from the base to the view that was written.
    """

    func: Target
    steps: tuple[ViewStep, ...]
    followed: bool

    def __str__(self) -> str:
        return target_name(self.func)


@dataclass(frozen=True, slots=True, eq=False)
class SharedBody:
    """The body of an op, recorded once for every call with operands of the same types.

    `ops` speak of `params` and of values of their own, among them `outs`, which stand for the outs
    of the call; `Op.body` gives a copy that speaks of the caller's values.
    """

    params: tuple[Value, ...]
    ops: tuple["Op", ...]
    outs: tuple[Value, ...]
    seen: tuple[ViewStep, ...] = ()
    """the views by which its one out sees memory that the ops make"""

    def copied_for(self, call: "Op") -> "list[Op]":
        """Copies of the ops that speak of the values of one call; a `RecordedBody` has them."""
        raise NotImplementedError


class InstantiatedBody(list["Op"]):
    """The ops of a definition in the words of one call of it."""

    __slots__ = ("definition",)

    def __init__(self, definition: SharedBody, ops: Iterable["Op"]) -> None:
        super().__init__(ops)
        self.definition = definition


class Op:
    """One call.

    `result` is what it returned (new values, operands handed back, constants), `outs` the new
    values in it. `below` is its body: ops of its own, a definition that it shares with
    other calls, or None for a leaf. An empty list is a composite that did nothing, such as dropout
    in eval mode. `writes`: the target writes in place, and the ops below are the form of it that
    returns the new value. `piece_of`: the op of the cut that a decomposition table opened into this
    one. `outcome` is one object for all calls of the operator with operands of equal types and
    equal constants, as the recorder found them; None where that is not known. `asked`: it is part
    of a gradient that the program itself asks for.
    """

    __slots__ = (
        "_operands",
        "args",
        "asked",
        "because",
        "below",
        "choice",
        "kwargs",
        "origin",
        "outcome",
        "outs",
        "piece_of",
        "result",
        "rule",
        "target",
        "writes",
    )

    def __init__(  # noqa: PLR0913 - an op is these facts; all callers use keywords
        self,
        target: Target,
        args: tuple[Tree, ...],
        kwargs: dict[str, Tree],
        result: Tree,
        outs: tuple[Value, ...],
        *,
        origin: Origin,
        below: "list[Op] | SharedBody | None" = None,
        because: "Op | None" = None,
        rule: RuleName | None = None,
        choice: Choice | None = None,
        writes: bool = False,
        piece_of: "Op | None" = None,
        operands: tuple[Value, ...] | None = None,
        outcome: object = None,
        asked: bool = False,
    ) -> None:
        self.target, self.args, self.kwargs = target, args, kwargs
        self._operands, self.outcome = operands, outcome
        self.result, self.outs = result, outs  # of four at once, Python would make a tuple
        self.origin, self.below = origin, below
        self.because, self.rule, self.choice = because, rule, choice
        self.writes, self.piece_of = writes, piece_of
        self.asked = asked

    def but(self, **facts: Any) -> "Op":
        """The op with other facts."""
        return Op(**{name: getattr(self, name) for name in FACTS} | facts)

    @property
    def leaf(self) -> bool:
        """Whether nothing lies below it."""
        return self.below is None

    @property
    def followed(self) -> bool:
        """Whether autograd follows what it gives, by the grad mode that is on around it."""
        return self.origin.grad_mode and any(out.type.requires_grad for out in self.outs)

    @property
    def late(self) -> bool:
        """Whether it is of the backward that a cut has, and not of one that the program runs."""
        return self.because is not None and not self.asked

    @property
    def body(self) -> "list[Op] | None":
        """The ops below, speaking of this op's own operands and outs; None for a leaf.

        Those of a definition are copied when they are first asked for, and kept: cuts name their
        values.
        """
        if isinstance(self.below, SharedBody):
            self.below = InstantiatedBody(self.below, self.below.copied_for(self))
        return self.below

    @property
    def own(self) -> "list[Op] | None":
        """The ops below that it shares with no other call."""
        return self.below if type(self.below) is list else None

    @property
    def region(self) -> "list[Op] | None":
        """The ops below in its own words, as far as they were asked for."""
        return None if isinstance(self.below, SharedBody) else self.below

    @property
    def definition(self) -> SharedBody | None:
        """The definition that it shares with other calls."""
        below = self.below
        if below is None or isinstance(below, SharedBody):
            return below
        return below.definition if isinstance(below, InstantiatedBody) else None

    @property
    def template(self) -> "Sequence[Op] | None":
        """The ops below as they were first written: its own, or those of the definition."""
        shared = self.definition
        return self.region if shared is None else shared.ops

    @property
    def opened(self) -> bool:
        """Whether a call of its target would not do what its body does, as a choice says."""
        return self.choice is not None and self.choice.value == "opened"

    @property
    def called(self) -> tuple[Target, Tree]:
        """The operator and its arguments; of a write as a value, those of the write."""
        target = self.target
        return (target.func, self.args[1]) if isinstance(target, Write) else (target, self.args)

    @property
    def operands(self) -> tuple[Value, ...]:
        """The values among its arguments, each once, in order."""
        if self._operands is None:
            self._operands = tuple(dict.fromkeys(values_in((self.args, self.kwargs))))
        return self._operands

    def __repr__(self) -> str:
        return f"{self.outs} = {target_name(self.target)}{self.args}"


FACTS = tuple([each for each in Op.__slots__ if each not in ("_operands", "outcome")])
"""What a copy of an op has: all but what is looked up, and what the recorder found of its call"""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Subgraph:
    """A program that an operator of torch's holds, as `torch.cond` its branches: an argument of it.

    It is closed: what its ops read is a result inside, or a param. A param may be a value of the
    program around, which stands for itself, or the symbol of a size. `result` is a flat tuple; of
    a condition, what it says.
    """

    name: str
    params: tuple[Any, ...]
    ops: tuple[Op, ...]
    result: Tree

    def __repr__(self) -> str:
        return f"<{self.name}: {len(self.ops)} ops>"

    @property
    def values(self) -> tuple[Value, ...]:
        """The params that are tensors."""
        return tuple(param for param in self.params if isinstance(param, Value))


def target_name(target: Target) -> str:
    """A readable name: "mm" for aten.mm.default, "getitem" for operator.getitem."""
    schema = getattr(target, "_schema", None)
    if schema is not None:
        return str(schema.name).rpartition("::")[2]
    return str(getattr(target, "__name__", target))
