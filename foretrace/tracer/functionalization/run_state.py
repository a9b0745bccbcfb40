"""The state of a run in parts, each complete when constructed; only its methods change it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

from foretrace import torch_api
from foretrace.errors import Frame, Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import Checkpoint, ModuleCall, Origin
from foretrace.ir.values.tensor_type import Size
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.tracer.functionalization.alias import Alias, StorageAliases


class _InnerScope:
    """Context of a body. It is a class, as each write enters it: a generator is 3 times slower."""

    __slots__ = ("frame", "outer", "scope", "shared")

    def __init__(self, scope: "Scope", frame: Frame | None, shared: bool) -> None:
        self.scope, self.frame, self.shared = scope, frame, shared

    def __enter__(self) -> list[Op]:
        scope, inner = self.scope, list[Op]()
        self.outer = scope.ops, scope.frame
        scope.enter(inner, self.frame, shared=self.shared)
        return inner

    def __exit__(self, *error: object) -> None:
        self.scope.leave(*self.outer)


@dataclass(slots=True, eq=False)
class Scope:
    """Where ops are recorded, and which calls are running."""

    ops: list[Op] = field(default_factory=list)
    """the list that the next op goes to"""
    root: list[Op] = field(init=False)
    """that of the program"""
    outermost: list[Op] = field(init=False)
    """the list of the outermost op whose body is being recorded"""
    log: list[Op] = field(default_factory=list)
    """the program's own ops so far, of all module calls"""
    depth: int = 0
    """how many bodies are being recorded, each inside of the one before"""
    bodies: list[list[Op] | None] = field(default_factory=list)
    """these; None for one that calls will share"""
    frame: Frame | None = None
    """the line of the op whose body is being recorded"""
    in_subgraph: bool = False
    """whether the program of a higher-order operator is being recorded"""
    module: ModuleCall | None = None
    checkpoint: Checkpoint | None = None
    called_modules: bool = False
    """whether it called a module, or an operator for which eager makes modules"""
    lifts: bool = False
    """whether what a program reads from around is lifted into its inputs, as by Dynamo"""
    last_origin: Origin = field(default_factory=lambda: Origin(None, None))
    """that of the op before, which the next op often shares"""

    def __post_init__(self) -> None:
        self.root = self.outermost = self.ops

    def enter(self, inner: list[Op], frame: Frame | None, *, shared: bool) -> None:
        """Record the body of an op from now on, into `inner`."""
        if not self.depth:
            self.outermost = self.ops
        self.ops, self.frame = inner, frame
        self.depth += 1
        self.bodies.append(None if shared else inner)

    def leave(self, ops: list[Op], frame: Frame | None) -> None:
        """Record after that body again."""
        self.bodies.pop()
        self.ops, self.frame = ops, frame
        self.depth -= 1

    def inner(self, frame: Frame | None = None, *, shared: bool = False) -> _InnerScope:
        """Record into a new list, which `with` gives: a body for other calls if `shared`."""
        return _InnerScope(self, frame, shared)

    @contextmanager
    def subgraph(self) -> Iterator[list[Op]]:
        """Record inside the program of a higher-order operator, whose ops have lines of their own.

        Ops that were logged before can be looked up inside.
        """
        before = self.ops, self.outermost, self.log, self.depth, self.frame, self.in_subgraph
        self.ops = self.outermost = list[Op]()
        self.log, self.depth, self.frame, self.in_subgraph = [*self.log], 0, None, True
        try:
            yield self.ops
        finally:
            self.ops, self.outermost, self.log, self.depth, self.frame, self.in_subgraph = before

    @contextmanager
    def before_bodies(self) -> Iterator[None]:
        """Record inside before the outermost op whose body is being recorded."""
        ops, depth = self.ops, self.depth
        self.ops, self.depth = self.outermost if depth else ops, 0
        try:
            yield
        finally:
            self.ops, self.depth = ops, depth

    def enter_module(self, call: ModuleCall, body: list[Op]) -> None:
        """Record the body of a module's call from now on."""
        self.ops, self.module, self.called_modules = body, call, True

    def call_compiled(self) -> None:
        """Note an operator whose call eager compiles: it makes modules of what this one calls."""
        self.called_modules = True

    def leave_module(self, ops: list[Op], module: ModuleCall | None) -> None:
        """Record after a module's call again."""
        self.ops, self.module = ops, module

    def set_module(self, call: ModuleCall | None) -> None:
        """Record ops of a module's call from now on, into the same list."""
        self.module = call

    @contextmanager
    def checkpointed(self, region: Checkpoint | None) -> Iterator[None]:
        """Record inside ops of a checkpoint, or of none."""
        before, self.checkpoint = self.checkpoint, region
        try:
            yield
        finally:
            self.checkpoint = before

    @contextmanager
    def lifting(self) -> Iterator[None]:
        """Lift what programs inside read from around."""
        before, self.lifts = self.lifts, True
        try:
            yield
        finally:
            self.lifts = before

    def origin(
        self, frame: Frame | None, grad: bool, inference: bool, recast: tuple[str, ...]
    ) -> Origin:
        """Make the origin of the next op."""
        self.last_origin = Origin(frame, self.module, grad, self.checkpoint, inference, recast)
        return self.last_origin


@dataclass(slots=True, eq=False)
class Aliasing:
    """What tensors of a run share memory, as far as a write or a view has to know."""

    overwritten: dict[Value, StorageAliases] = field(default_factory=dict)
    """values whose memory was written over"""
    seeing: dict[Value, Op] = field(default_factory=dict)
    """results of composites that are views of memory allocated inside"""
    rebased: list[Alias] = field(default_factory=list)
    """views through which the program has just written"""
    viewed: list[Alias] = field(default_factory=list)
    """tensors that have views"""
    in_subclasses: set[Value] = field(default_factory=set)
    """values of tensors that tensor subclasses wrap"""
    rewritten_leaves: set[Value] = field(default_factory=set)
    """what leaves of tensor subclasses are after writes that autograd does not follow"""
    functional_form: Op | None = None
    """the op whose results are being written over what it was computed from"""

    def take_rebased(self) -> list[Alias]:
        """The views of `rebased`, each once."""
        views, self.rebased = self.rebased, []
        return views

    @contextmanager
    def writing_results(self, form: Op | None) -> Iterator[None]:
        """Write inside the results of an op over what it was computed from."""
        before, self.functional_form = self.functional_form, form
        try:
            yield
        finally:
            self.functional_form = before

    @contextmanager
    def inside_subclass(self) -> Iterator[set[Value]]:
        """Run inside what a tensor subclass does; gives the set of what is wrapped there alone."""
        before, self.in_subclasses = self.in_subclasses, set[Value]()
        try:
            yield self.in_subclasses
        finally:
            self.in_subclasses = before

    @contextmanager
    def of_body(self) -> Iterator[None]:
        """Forget afterwards what was overwritten inside: memory of a body, which ends there."""
        count = len(self.overwritten)
        yield
        while len(self.overwritten) > count:
            self.overwritten.popitem()


@dataclass(slots=True)
class InferenceMode:
    """Inference mode, as the program has it: torch's own is off while it is recorded."""

    on: bool = False
    around: bool = False
    """whether it was on around the program"""
    seen: bool = False
    """whether it has been on"""

    def begin(self, *, on: bool) -> None:
        """Begin a run in inference mode, or out of it."""
        self.on = self.seen = self.around = on

    def switch(self, *, on: bool) -> None:
        """Enter inference mode, or leave it."""
        self.on = on
        self.seen |= on


@dataclass(slots=True, eq=False)
class AutogradState:
    """Where autograd has the values of a run, and the hooks that the program registers there."""

    places: dict[Value, Value] = field(default_factory=dict)
    """new content by a write that autograd does not see, and the value whose history it has"""
    leaves: dict[Value, ref[Abstract]] = field(default_factory=dict)
    """leaves that the program has created, and the tensor that has the gradient"""
    program_leaves: set[Value] = field(default_factory=set)
    """all leaves that the program has created"""
    fresh: set[Value] = field(default_factory=set)
    """results of factories, which torch's bindings may mark as leaves"""
    switched: dict[Value, Value] = field(default_factory=dict)
    """values of inputs since requires_grad_() switched them, and their values before"""
    parted: dict[Value, Value] = field(default_factory=dict)
    """leaves written to after a use, by their value before; the caller gets another"""
    retained: dict[Value, ref[Abstract]] = field(default_factory=dict)
    """tensors that keep their gradients, and are no leaves"""
    functions: dict[Value, Any] = field(default_factory=dict)
    """results of autograd.Functions that autograd follows, and the targets of the calls"""
    hooks: list[Op] = field(default_factory=list)
    """registrations of hooks on gradients, in order"""
    packs: dict[Value, Any] = field(default_factory=dict)
    """by the first result of a call, what pack hooks returned for its saved tensors"""
    carried: dict[Value, Value] = field(default_factory=dict)
    """what unpack hooks returned, and the value whose history that has"""
    saving: Any = None
    """what calls the program's hooks on saved tensors, where there are some"""
    inference: InferenceMode = field(default_factory=InferenceMode)

    def place(self, value: Value) -> Value:
        """The value whose history this one has."""
        return self.places.get(value, value)

    def save_by(self, saving: Any) -> None:
        """Let hooks pack what autograd saves from now on; None: no hooks."""
        self.saving = saving

    @contextmanager
    def without_hooks(self) -> Iterator[None]:
        """Let no hook pack what autograd saves inside."""
        before, self.saving = self.saving, None
        try:
            yield
        finally:
            self.saving = before


@dataclass(frozen=True, slots=True)
class Switched:
    """A row of torch's ambient state that the program has set to something else."""

    row: torch_api.Row
    before: Any
    """what it was around the program"""


@dataclass(slots=True, eq=False)
class ForwardMode:
    """What autograd's forward mode has of a run."""

    rooms: dict[Value, Size] = field(default_factory=dict)
    """the capacity of memory in elements, by its first value"""


@dataclass(slots=True, eq=False)
class Failures:
    """What went wrong in a run, in case the program catches it."""

    first: Refusal | None = None
    """the first refusal"""
    error: BaseException | None = None
    """the last exception that left a module's call"""
    path: list[str] = field(default_factory=list)
    """the module calls that were running then"""

    def note(self, refusal: Refusal) -> None:
        """Note a refusal."""
        self.first = self.first or refusal

    def note_in(self, error: BaseException, path: list[str]) -> None:
        """Note the innermost module call that an exception left."""
        if self.error is not error:
            self.error, self.path = error, path
