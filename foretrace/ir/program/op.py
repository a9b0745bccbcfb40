"""Values, ops and regions: the nodes of the tree.

A parent and its children share the same values, so a cut is a flattening without renaming.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from foretrace.errors import Frame
from foretrace.ir.program.nested import CONTAINERS, map_tree
from foretrace.ir.program.tensor_type import TensorType

Target: TypeAlias = Any
"""What an op calls: an OpOverload, a ModuleCall, a Backward, or a Python operator."""
Tree: TypeAlias = Any
"""Values and constants, nested in tuples, lists and dicts (`nested.py`), as the call had them."""

NESTED = frozenset(CONTAINERS)
ATOMS = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})
"""Types of arguments in which no value is"""
AS_STRIDED = torch.ops.aten.as_strided.default
STRIDED = ("self", "size", "stride", "storage_offset")


class Value:
    """One tensor, known by identity."""

    __slots__ = ("hint", "type")

    def __init__(self, type: TensorType, hint: str = "") -> None:
        self.type, self.hint = type, hint

    def __repr__(self) -> str:
        return f"%{self.hint or format(id(self), 'x')[-5:]}: {self.type!r}"


@dataclass(slots=True, eq=False)  # not frozen: a capture makes hundreds
class ModuleCall:
    """One call of an nn.Module; `path` is "" for the program's own module."""

    path: str
    class_name: str
    qualified_class: str
    outer: "ModuleCall | None" = None
    training: bool | None = None
    """the module's mode when it was called; None where a front end does not say"""

    def stack(self) -> tuple["ModuleCall", ...]:
        """The calls from the outermost to this one."""
        return (*(self.outer.stack() if self.outer else ()), self)

    def __str__(self) -> str:
        return self.path or self.class_name


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """A decision about one op: what was taken, why, and what was not and why not."""

    what: str
    value: str
    reason: str
    rejected: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Checkpoint:
    """One call of `torch.utils.checkpoint`: what is computed inside is recomputed in the backward.

    `saves` is the policy of a selective one: torch's own function of a context, an operator and
    its arguments, which names those that are saved all the same. `inputs` are the tensors among the
    arguments: autograd saves them, and finds whether they were written to.
    """

    saves: Callable[..., Any] | None = None
    inputs: tuple["Value", ...] = ()


@dataclass(slots=True, eq=False)  # not frozen: a capture makes hundreds
class Origin:
    """Where an op comes from: the user's line, the module call, the grad mode it ran under."""

    frame: Frame | None
    module: ModuleCall | None
    grad_mode: bool = True
    checkpoint: Checkpoint | None = None
    """the outermost one that was running"""
    inference: bool = False
    """whether it was in torch.inference_mode()"""


@dataclass(frozen=True, slots=True, eq=False)
class RuleName:
    """The derivative that a backward op is of: the autograd node's name, or our rule's place."""

    name: str
    kind: str
    """"derived" (asked of torch), "registered" (ours or the user's), "engine", "hook"."""


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
    def absolute(self) -> bool:
        """Whether it counts from the start of the memory, whatever of it the base sees."""
        named = dict(zip(STRIDED, self.args, strict=False)) | self.kwargs
        return self.func is AS_STRIDED and named.get("storage_offset") is not None

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
    )  # fmt: skip

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
            shared = self.below
            self.below = InstantiatedBody(shared, Instantiation.of(shared, self).ops(shared.ops))
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


def values_in(tree: Tree) -> list[Value]:
    """The values of a nested structure, left to right."""
    found: list[Value] = []
    _collect(tree, found)
    return found


def _collect(tree: Tree, found: list[Value]) -> None:
    kind = tree.__class__
    if kind is Value:
        found.append(tree)
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            kind = item.__class__
            if kind is Value:
                found.append(item)
            elif kind in NESTED or (kind not in ATOMS and isinstance(item, CONTAINERS)):
                _collect(item, found)
    elif isinstance(tree, dict):
        for item in tree.values():
            _collect(item, found)


def map_values(tree: Tree, change: Callable[[Value], Tree]) -> Tree:
    """The structure with every value replaced by `change(value)`."""
    return map_tree(tree, lambda leaf: change(leaf) if isinstance(leaf, Value) else leaf)


def substitute(tree: Tree, env: dict[Value, Any]) -> Tree:
    """The structure with every value that `env` knows replaced."""
    kind = type(tree)
    if kind is Value:
        return env.get(tree, tree)
    if kind in ATOMS:
        return tree
    if isinstance(tree, (tuple, list)):
        found = [item if type(item) in ATOMS else substitute(item, env) for item in tree]
        return found if isinstance(tree, list) else tuple(found)
    if isinstance(tree, dict):
        return {key: substitute(item, env) for key, item in tree.items()} if tree else tree
    return tree


class Rewriter:
    """Copies ops with other values; a subclass says what else is another in the copies.

    The values that the ops make are new ones in the copies, unless `env` says what stands for them.
    A body that an op shares with other calls is shared, and a subgraph is the same. `walk.py`
    has the rewriters that several rooms need.

    Args:
        env: what stands for each value. It learns the values that the copies make.
    """

    def __init__(self, env: dict[Value, Any] | None = None) -> None:
        self.env: dict[Value, Any] = {} if env is None else env

    def ops(self, ops: Iterable[Op]) -> list[Op]:
        """Copies of ops, in order."""
        return [self.op(op) for op in ops]

    def op(self, op: Op) -> Op:
        """The copy of one op; its arguments are rewritten before what it makes."""
        args, kwargs, target = self.tree(op.args), self.tree(op.kwargs), self.target(op.target)
        outs = tuple([self.out(out) for out in op.outs])
        return Op(
            target, args, kwargs, self.tree(op.result), outs, origin=self.origin(op.origin),
            below=self.below(op), because=op.because, rule=op.rule, choice=op.choice,
            writes=op.writes, piece_of=op.piece_of, operands=self.operands(op), asked=op.asked,
        )  # fmt: skip

    def below(self, op: Op) -> "list[Op] | SharedBody | None":
        """The body of the copy."""
        own = op.own
        return op.definition if own is None else self.ops(own)

    def operands(self, op: Op) -> tuple[Value, ...] | None:
        """The values among the arguments of the copy; None: they are looked for when asked."""
        return None

    def tree(self, tree: Tree) -> Any:
        """Nested arguments with each leaf rewritten."""
        return map_tree(tree, self._leaf)

    def _leaf(self, leaf: Any) -> Any:
        kind = type(leaf)
        if kind is Value:
            return self.value(leaf)
        return self.subgraph(leaf) if kind is Subgraph else self.leaf(leaf)

    def step(self, step: ViewStep) -> ViewStep:
        """A view of a rewritten base."""
        base, args, kwargs = self.value(step.base), self.tree(step.args), self.tree(step.kwargs)
        return replace(step, base=base, args=args, kwargs=kwargs)

    # ---- what a subclass may say ---------------------------------------------------------------

    def value(self, value: Value) -> Tree:
        """What stands for a value that an op reads."""
        return self.env.get(value, value)

    def out(self, value: Value) -> Value:
        """What stands for a value that an op makes."""
        found = self.env.get(value)
        if found is None:
            found = self.env[value] = Value(self.type(value.type), value.hint)
        return found

    def type(self, type: TensorType) -> TensorType:
        """The type of a new value."""
        return type

    def leaf(self, leaf: Any) -> Any:
        """An argument that is no value."""
        return leaf

    def subgraph(self, subgraph: Subgraph) -> Subgraph:
        """A program that an op holds."""
        return subgraph

    def target(self, target: Target) -> Target:
        """What the copy calls."""
        return target

    def origin(self, origin: Origin) -> Origin:
        """Where the copy comes from."""
        return origin


class Substitution(Rewriter):
    """Copies ops with other values, and nothing else; quick, as each body of a call is one."""

    def tree(self, tree: Tree) -> Any:
        """Nested arguments with other values."""
        return substitute(tree, self.env)


class Instantiation(Substitution):
    """Copies ops as the body of a call.

    Each copy has the line, the reason and the rule of the call, unless it has its own.
    """

    def __init__(self, env: dict[Value, Any], call: Op) -> None:
        super().__init__(env)
        self.call = call

    @classmethod
    def of(cls, shared: SharedBody, call: Op) -> "Instantiation":
        """For a body that a call shares with others: its params are the operands of the call."""
        env: dict[Value, Any] = dict(zip(shared.params, call.operands, strict=True))
        env.update(zip(shared.outs, call.outs, strict=True))
        return cls(env, call)

    def op(self, op: Op) -> Op:
        """The copy of one op, whose operands are of the same types."""
        new, call = super().op(op), self.call
        new.outcome, new.asked = op.outcome, op.asked or call.asked
        new.because, new.rule = op.because or call.because, op.rule or call.rule
        return new

    def operands(self, op: Op) -> tuple[Value, ...]:
        """Map the operands of the op, of which each has a value in `env`."""
        env = self.env
        return tuple(dict.fromkeys([env.get(value, value) for value in op.operands]))

    def origin(self, origin: Origin) -> Origin:
        """Return the origin of the call in the grad mode of the op, nearly always its own."""
        whole = self.call.origin
        if whole.grad_mode == origin.grad_mode:
            return whole
        return replace(whole, grad_mode=origin.grad_mode)


def copy_ops(ops: Iterable[Op], env: dict[Value, Any], call: Op) -> list[Op]:
    """Copies of ops with values replaced by `env`, which learns the copies' own outs.

    Each copy has the origin, `because` and `rule` of `call`, unless it has its own.
    """
    return Instantiation(env, call).ops(ops)


def target_name(target: Target) -> str:
    """A readable name: "mm" for aten.mm.default, "getitem" for operator.getitem."""
    schema = getattr(target, "_schema", None)
    if schema is not None:
        return str(schema.name).rpartition("::")[2]
    return str(getattr(target, "__name__", target))
