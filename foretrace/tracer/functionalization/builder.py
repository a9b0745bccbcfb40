"""What a recorder keeps of a run, and how ops are added.

`tracer/recorder/recorder.py` answers the calls.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from types import CodeType
from typing import Any
from weakref import ref

import torch

from foretrace import torch_api
from foretrace.errors import Frame, Refusal
from foretrace.ir.program.nested import map_tree
from foretrace.ir.program.op import (
    Checkpoint,
    Choice,
    ModuleCall,
    Op,
    Origin,
    Target,
    Tree,
    Value,
    Write,
)
from foretrace.ir.program.tensor_type import Size
from foretrace.ir.source.call_site import Sources
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.autocast import Casts
from foretrace.operators.abstract_tensors.tensor_types import Types
from foretrace.operators.inference.semantics_protocol import Semantics
from foretrace.operators.schemas.cache import Cache
from foretrace.operators.schemas.dispatch_result import Outcome
from foretrace.tracer.functionalization.alias import Alias, StorageAliases

DETACH = torch.ops.aten.detach.default
LEAF = Choice("leaf", "whole", "the program makes it a leaf of autograd")
REQUIRES_GRAD = torch.ops.aten.requires_grad_.default


def nobody_watches() -> None:
    """Where nobody watches."""


class Unmonitored:
    """Work of ours, which nobody who watches the program has to see; here nobody watches."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass

    def rests_at(self, code: CodeType) -> None:
        """Work of ours begins where this code does, which says `__enter__` first."""

    def ended(self) -> Callable[[], Any]:
        """Work of ours has ended; its caller calls last what this gives, which watches again."""
        return nobody_watches


@dataclass(slots=True, eq=False)
class Histories:
    """Where autograd has the values of a run, and the hooks that the program registers there."""

    places: dict[Value, Value] = field(default_factory=dict)
    """new content by a write that autograd does not see, and the value whose history it has"""
    leaves: dict[Value, ref[Abstract]] = field(default_factory=dict)
    """leaves that the program has made, and what keeps its gradient"""
    switched: dict[Value, Value] = field(default_factory=dict)
    """what inputs have since they were made leaves, or none, and what they had before"""
    parted: dict[Value, Value] = field(default_factory=dict)
    """leaves that were written to after a use, of which the caller gets another; what they had"""
    retained: dict[Value, ref[Abstract]] = field(default_factory=dict)
    """tensors that keep their gradients, and are no leaves"""
    functions: dict[Value, Any] = field(default_factory=dict)
    """what calls of autograd.Functions gave that it follows, and their targets"""
    hooks: list[Op] = field(default_factory=list)
    """registrations of hooks on gradients, in order"""
    packs: dict[Value, Any] = field(default_factory=dict)
    """by the first result of a call, what hooks made of the tensors that autograd saves for it"""
    carried: dict[Value, Value] = field(default_factory=dict)
    """what such hooks gave back, and the value whose history that has"""

    def place(self, value: Value) -> Value:
        """The value whose history this one has."""
        return self.places.get(value, value)


@dataclass(slots=True, eq=False)
class ForwardMode:
    """What autograd's forward mode has of a run."""

    rooms: dict[Value, Size] = field(default_factory=dict)
    """for how many elements memory has room that it asked about, by what was first there"""


class _InnerScope:
    """A class, as a generator takes three times as long, and each write enters it."""

    __slots__ = ("builder", "frame", "outer", "shared")

    def __init__(self, builder: "RecorderBase", frame: Frame | None, shared: bool) -> None:
        self.builder, self.frame, self.shared = builder, frame, shared

    def __enter__(self) -> list[Op]:
        builder, inner = self.builder, list[Op]()
        self.outer = builder.scope, builder.frame_inside
        if not builder.depth:
            builder.outermost = builder.scope
        builder.scope, builder.frame_inside = inner, self.frame
        builder.depth += 1
        builder.bodies.append(None if self.shared else inner)
        return inner

    def __exit__(self, *error: object) -> None:
        self.builder.bodies.pop()
        self.builder.scope, self.builder.frame_inside = self.outer
        self.builder.depth -= 1


class RecorderBase(torch_api.TorchDispatchMode):
    """Holds the ops so far and adds others, as functional forms and views taken again need it."""

    saving: Any = None
    """what gives the program's hooks what autograd saves, where there are some"""

    def __init__(
        self,
        types: Types,
        semantics: Semantics,
        sources: Sources,
        lift: Callable[[torch.Tensor], Abstract],
        lift_constant: Callable[[torch.Tensor], Abstract],
        answer: Callable[..., Any],
        outcomes: Cache[Outcome],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mode_key = torch_api.FAKE_MODE_KEY
        self.types, self.semantics, self.sources = types, semantics, sources
        self.lift, self.lift_constant = lift, lift_constant
        self.answer, self.example, self.outcomes = answer, answer, outcomes
        self.of_any_float = dict[tuple[Any, ...], Outcome]()  # of leaves, which none decides
        self.casts, self.histories, self.forward = Casts(), Histories(), ForwardMode()
        self.root = self.scope = self.outermost = list[Op]()
        self.log: list[Op] = []
        self.fresh, self.leaves, self.held = set[Value](), set[Value](), set[Value]()
        """what factories have made; leaves of autograd that the program has; what others wrap"""
        self.inference = self.inferred = self.holding = False
        """in inference mode; whether it has been; in a program that an operator holds"""
        self.module: ModuleCall | None = None
        self.checkpoint: Checkpoint | None = None
        self.functional_form: Op | None = None
        """the op whose results are being written over what it was computed from"""
        self.counts: dict[Value, dict[str, Any]] = {}
        """numbers that data decides, each by what it is of a value: two calls give one symbol"""
        self.overwritten: dict[Value, StorageAliases] = {}
        """values that their memory no longer holds"""
        self.seeing = dict[Value, Op]()  # what composites gave as views of memory made inside
        self.rebased, self.viewed = list[Alias](), list[Alias]()
        """views through which the program has just written; tensors that have views"""
        self.first_refusal: Refusal | None = None
        self.unwatched = Unmonitored()  # inside is work of ours, which nobody has to see
        self._origin = Origin(None, None)  # that of the op before, which the next one often shares
        self.depth, self.bodies = 0, list[list[Op] | None]()  # None: one that calls will share
        self._failure: tuple[BaseException | None, list[str]] = (None, [])
        self.frame_inside: Frame | None = None

    def number(self, *call: Any) -> tuple[Any, bool]:
        """The number that a call reads, and whether inputs decide it: without some, none do."""
        return self.answer(*call), False

    lifts = False
    """Whether what a program reads from around is given to it, as Dynamo gives it"""

    supports_higher_order_operators = True
    """`cond` and its like come here as any operator does; Dynamo, which they run, rests then"""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not wrapped by `torch._dynamo.disable`: that imports dynamo and adds 3 us a call."""
        return False

    def emit(
        self,
        func: Target,
        args: Tree,
        kwargs: dict[str, Tree],
        outcome: Outcome,
        occurrences: list[Value],
        origin: Origin | None = None,
    ) -> Op:
        """Append the op for a call; `occurrences` are the values among its arguments."""
        raise NotImplementedError

    def call(
        self, func: Target, args: Tree, kwargs: dict[str, Tree] | None = None, grad: bool = False
    ) -> Op:
        """Record a call given in values, as views read again and functional forms are."""
        raise NotImplementedError

    def record(
        self,
        func: Any,
        args: Tree,
        kwargs: dict[str, Tree],
        outcome: Outcome,
        tensors: list[Abstract],
    ) -> Any:
        """Record a call that comes to an outcome, and answer it; `tensors` are its operands."""
        raise NotImplementedError

    def again(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """Record another call in the place of one that could not be."""
        return self.__torch_dispatch__(func, (), args, kwargs)  # type: ignore[no-untyped-call]

    def abstract(self, value: Value) -> Abstract:
        """A new abstract tensor for the value."""
        return self.types.abstract(value)

    def concrete(self, tree: Tree, env: dict[Value, Any]) -> Tree:
        """Arguments as torch takes them: `env`'s tensor for a value, a SymInt for an expression."""
        symbolic = self.types.symbols.symbolic
        return map_tree(tree, lambda leaf: env[leaf] if isinstance(leaf, Value) else symbolic(leaf))

    def listening(self) -> AbstractContextManager[Any]:
        """The mode is active inside: again, where it was popped to answer a call."""
        return nullcontext() if torch_api.is_active(self) else self

    def inner_scope(
        self, frame: Frame | None = None, *, shared: bool = False
    ) -> AbstractContextManager[list[Op]]:
        """Ops recorded inside go to the list that it gives, a body for other calls if `shared`."""
        return _InnerScope(self, frame, shared)

    @contextmanager
    def subgraph_scope(self) -> Iterator[list[Op]]:
        """Ops recorded inside are those of a program that an operator holds, with their own lines.

        What autocast casts inside is cast for it alone.
        """
        names = ("scope", "outermost", "log", "depth", "frame_inside", "holding")
        before, inner, casts = [getattr(self, name) for name in names], list[Op](), self.casts
        self.scope = self.outermost = inner
        self.log, self.depth, self.frame_inside, self.holding = [*self.log], 0, None, True
        try:
            with casts.apart():
                yield inner
        finally:
            for name, item in zip(names, before, strict=True):
                setattr(self, name, item)

    def lifting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, in whose place eager runs what Dynamo makes of it."""

        @wraps(function)
        def lifted(*args: Any, **kwargs: Any) -> Any:
            before, self.lifts = self.lifts, True
            try:
                return function(*args, **kwargs)
            finally:
                self.lifts = before

        return lifted

    def user_code(self) -> AbstractContextManager[None]:
        """Inside, the program's own code runs again, in the midst of a call."""
        return nullcontext()

    def will_run(self, function: Any) -> None:
        """Python of the program's that runs in the backward: what it reads is noted."""

    @contextmanager
    def before_bodies(self) -> Iterator[None]:
        """Ops recorded inside go before the outermost op whose body is being recorded."""
        scope, depth = self.scope, self.depth
        self.scope, self.depth = self.outermost if depth else scope, 0
        try:
            yield
        finally:
            self.scope, self.depth = scope, depth

    def append(self, op: Op) -> None:
        """Add an op to the current scope."""
        self.scope.append(op)
        if op.writes and type(op.target) is Write and not op.target.followed:
            base: Value = op.args[0]
            self.histories.places[op.outs[0]] = self.histories.place(base)
        if self.depth == 0:
            self.log.append(op)

    def origin(self, above: int = 2, grad: bool | None = None) -> Origin:
        """The user's line, module and grad mode that are current.

        `above` as `here` has it; `grad`: the mode, for one who knows it.
        """
        grad, last = self.grad_mode() if grad is None else grad, self._origin
        frame = self.frame_inside if self.depth else self.sources.here(above)
        if (
            last.frame is frame
            and last.module is self.module
            and last.grad_mode is grad
            and last.checkpoint is self.checkpoint
            and last.inference is self.inference
        ):
            return last
        self._origin = Origin(frame, self.module, grad, self.checkpoint, self.inference)
        return self._origin

    def used(self, leaf: Value) -> bool:
        """Whether autograd follows a use of a leaf that the program has made.

        What is written to it then has the history of what it was, as of an input.
        """
        uses = (op for op in self.log if leaf in op.operands and not op.writes)
        followed = (out for op in uses if op.origin.grad_mode for out in op.outs)
        return any(out.type.requires_grad for out in followed)

    def leaf(self, value: Value) -> Value:
        """Record that what a value has is a leaf of autograd."""
        if value.type.requires_grad:
            value = self.call(DETACH, (value,)).outs[0]
        leaf = Value(value.type.with_grad(True))
        self.append(
            Op(REQUIRES_GRAD, (value,), {}, leaf, (leaf,), choice=LEAF, origin=self.origin())
        )
        self.leaves.add(leaf)
        return leaf

    @property
    def inside(self) -> bool:
        """Whether a body is being recorded."""
        return self.depth > 0

    def note_failure(self, error: BaseException) -> None:
        """Remember the innermost module call that an exception left."""
        if self._failure[0] is not error:
            self._failure = (error, self.module_path())

    def module_path(self, error: BaseException | None = None) -> list[str]:
        """The module calls that are running, or that the error came from."""
        if error is not None and self._failure[0] is error:
            return self._failure[1]
        return [str(call) for call in self.module.stack()] if self.module else []

    def grad_mode(self) -> bool:
        """Whether autograd would follow the next op."""
        return torch.is_grad_enabled() and not self.inference
