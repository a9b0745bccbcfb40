"""Base of the recorder: the state of a run, its questions to the session, and how ops are added.

`tracer/recorder/recorder.py` answers the calls.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from types import CodeType
from typing import Any, Protocol

import torch
from torch.fx import traceback

from foretrace import torch_api
from foretrace.ir.program.op import Op, Target, Write
from foretrace.ir.program.origin import Choice, Origin
from foretrace.ir.program.walk import REQUIRES_GRAD
from foretrace.ir.source.call_site import Sources
from foretrace.ir.source.graph_lines import CUSTOM, annotated
from foretrace.ir.values.nested import map_tree
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.autocast import Casts
from foretrace.operators.abstract_tensors.tensor_types import Types
from foretrace.operators.inference.semantics_protocol import Semantics
from foretrace.operators.schemas.cache import Cache
from foretrace.operators.schemas.dispatch_result import Outcome, ReturnedOperand
from foretrace.tracer.functionalization.run_state import (
    Aliasing,
    AutogradState,
    Failures,
    ForwardMode,
    Scope,
    Switched,
)

DETACH = torch.ops.aten.detach.default
LEAF = Choice("leaf", "whole", "the program makes it a leaf of autograd")


class Answers(Protocol):
    """What a recorder asks of the session whose run it records."""

    def lift(self, tensor: torch.Tensor) -> Abstract:
        """The abstract tensor for a real one that the program reached from outside."""

    def lift_constant(self, tensor: torch.Tensor) -> Abstract:
        """The abstract tensor for one that the program has just built from Python numbers."""

    def answer(self, recorder: Any, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Any:
        """The value of a call that depends on constants alone, or yes or no that is guarded."""

    def example(self, recorder: Any, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Any:
        """What a call gives of the example's values."""

    def number(
        self, recorder: Any, func: Any, args: Tree, kwargs: dict[str, Tree]
    ) -> tuple[Any, bool]:
        """The number that a call reads, and whether inputs or random numbers decide it."""


class WithoutExample:
    """Answers where no example has values: an example is asked as a constant is."""

    @abstractmethod
    def answer(self, recorder: Any, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Any:
        """The value of a call that depends on constants alone."""

    def example(self, recorder: Any, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Any:
        """As `answer`."""
        return self.answer(recorder, func, args, kwargs)

    def number(
        self, recorder: Any, func: Any, args: Tree, kwargs: dict[str, Tree]
    ) -> tuple[Any, bool]:
        """As `answer`; no input decides it."""
        return self.answer(recorder, func, args, kwargs), False


def nobody_watches() -> None:
    """Do nothing."""


class Unmonitored:
    """A context for work of ours that a monitor of the program ignores; there is none here."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass

    def rests_at(self, code: CodeType) -> None:
        """Ignore this code object, which calls `__enter__` first."""

    def ended(self) -> Callable[[], Any]:
        """End the work; its caller calls what this returns last, which monitors again."""
        return nobody_watches

    @contextmanager
    def again(self) -> Iterator[None]:
        """Monitor inside: the program's own code, in the midst of work of ours."""
        yield


class RecorderBase(torch_api.TorchDispatchMode):
    """Stores the ops of a run and adds others."""

    def __init__(
        self,
        types: Types,
        semantics: Semantics,
        sources: Sources,
        outcomes: Cache[Outcome],
        answers: Answers,
        unwatched: Unmonitored | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mode_key = torch_api.FAKE_MODE_KEY
        self.types, self.semantics, self.sources = types, semantics, sources
        self.answers, self.outcomes = answers, outcomes
        self.of_any_float = dict[tuple[Any, ...], Outcome]()  # of leaves, which none decides
        self.unwatched = unwatched or Unmonitored()  # inside is work of ours
        self.scope, self.aliasing, self.casts = Scope(), Aliasing(), Casts()
        self.autograd, self.forward, self.failures = AutogradState(), ForwardMode(), Failures()
        self.switched: dict[str, Switched] = {}
        """rows of torch's ambient state that are not as they were around the program, by name"""
        self.counts: dict[Value, dict[str, Any]] = {}
        """numbers that data decides, by value and use: two calls give one symbol"""

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
        result = outcome.result
        outs: tuple[Value, ...]
        if type(result) is TensorType:
            outs = (result := Value(result),)
        else:
            result = fill(result, occurrences, new := list[Value]())
            outs = tuple(new)
        below = outcome.definition
        op = Op(
            func, args, kwargs, result, outs,
            origin=origin or self.origin(3), below=below, choice=outcome.choice,
            operands=_each_once(occurrences, args), outcome=outcome,
        )  # fmt: skip
        if below is not None and below.seen:
            self.aliasing.seeing.update(dict.fromkeys(outs, op))
        scope = self.scope  # as `append` does; it writes nothing
        scope.ops.append(op)
        if scope.depth == 0:
            scope.log.append(op)
        return op

    @abstractmethod
    def call(
        self, func: Target, args: Tree, kwargs: dict[str, Tree] | None = None, grad: bool = False
    ) -> Op:
        """Record a call whose arguments are values, as of a view that is read again."""

    @abstractmethod
    def record(
        self,
        func: Any,
        args: Tree,
        kwargs: dict[str, Tree],
        outcome: Outcome,
        tensors: list[Abstract],
    ) -> Any:
        """Record a call that comes to an outcome, and answer it; `tensors` are its operands."""

    def again(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """Record another call in the place of one."""
        return self.__torch_dispatch__(func, (), args, kwargs)  # type: ignore[no-untyped-call]

    def abstract(self, value: Value) -> Abstract:
        """A new abstract tensor for the value."""
        return self.types.abstract(value)

    def concrete(self, tree: Tree, env: dict[Value, Any]) -> Tree:
        """Arguments as torch takes them: `env`'s tensor for a value, a SymInt for an expression."""
        symbolic = self.types.symbols.symbolic
        return map_tree(tree, lambda leaf: env[leaf] if isinstance(leaf, Value) else symbolic(leaf))

    def listening(self) -> AbstractContextManager[Any]:
        """A context in which the mode is active, also where it was popped to answer a call."""
        return nullcontext() if torch_api.is_active(self) else self

    @contextmanager
    def subgraph_scope(self) -> Iterator[list[Op]]:
        """Record inside the program of a higher-order operator.

        What autocast casts inside is cast for it alone.
        """
        with self.scope.subgraph() as inner, self.casts.separate_cache():
            yield inner

    def lifting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose closure is lifted into inputs, as Dynamo does in eager."""

        @wraps(function)
        def lifted(*args: Any, **kwargs: Any) -> Any:
            with self.scope.lifting():
                return function(*args, **kwargs)

        return lifted

    def user_code(self) -> AbstractContextManager[None]:
        """A context in which the program's own code runs inside a call."""
        return nullcontext()

    def learning(self, func: Any) -> AbstractContextManager[None]:
        """A context in which an operator is asked what it returns."""
        return nullcontext()

    def append(self, op: Op) -> None:
        """Add an op to the current scope."""
        scope = self.scope
        scope.ops.append(op)
        if op.writes and type(op.target) is Write and not op.target.followed:
            base: Value = op.args[0]
            self.autograd.places[op.outs[0]] = self.autograd.place(base)
        if scope.depth == 0:
            scope.log.append(op)

    def origin(self, above: int = 2, grad: bool | None = None) -> Origin:
        """The user's line, module and grad mode of the next op.

        `above` as `here` has it; `grad`: the mode, for one who knows it.
        """
        grad = self.grad_mode() if grad is None else grad
        scope, inference = self.scope, self.autograd.inference.on
        last, frame = scope.last_origin, scope.frame if scope.depth else self.sources.here(above)
        if frame is not None and CUSTOM in (around := traceback.get_current_meta()):
            frame = annotated(frame, around[CUSTOM])
        if (
            last.frame is frame
            and last.module is scope.module
            and last.grad_mode is grad
            and last.checkpoint is scope.checkpoint
            and last.inference is inference
            and last.recast is self.casts.regions
        ):
            return last
        return scope.origin(frame, grad, inference, self.casts.regions)

    def used(self, leaf: Value) -> bool:
        """Whether autograd follows a use of a leaf that the program has created.

        What is written to it then has the history of what it was, as of an input.
        """
        uses = (op for op in self.scope.log if leaf in op.operands and not op.writes)
        followed = (out for op in uses if op.origin.grad_mode for out in op.outs)
        return any(out.type.requires_grad for out in followed)

    def leaf(self, value: Value) -> Value:
        """Record that a value is a leaf of autograd."""
        if value.type.requires_grad:
            value = self.call(DETACH, (value,)).outs[0]
        leaf = Value(value.type.with_grad(True))
        self.append(
            Op(REQUIRES_GRAD, (value,), {}, leaf, (leaf,), choice=LEAF, origin=self.origin())
        )
        self.autograd.program_leaves.add(leaf)
        return leaf

    def begun_leaf(self, leaf: Value) -> bool:
        """Whether a value is a leaf of the program's that nothing has read, nor hooks see."""
        if leaf not in self.autograd.program_leaves or self.used(leaf):
            return False
        return all(leaf not in hook.operands for hook in self.autograd.hooks)

    def leaf_again(self, leaf: Value, content: Value) -> Value:
        """The same leaf with new content: the same tensor has its gradient."""
        again = self.leaf(content)
        if leaf in self.autograd.leaves:
            self.autograd.leaves[again] = self.autograd.leaves[leaf]
        return again

    @property
    def inside(self) -> bool:
        """Whether a body is being recorded."""
        return self.scope.depth > 0

    def note_failure(self, error: BaseException) -> None:
        """Remember the innermost module call that an exception left."""
        self.failures.note_in(error, self.module_path())

    def module_path(self, error: BaseException | None = None) -> list[str]:
        """The module calls that are running, or that the error came from."""
        if error is not None and self.failures.error is error:
            return self.failures.path
        module = self.scope.module
        return [str(call) for call in module.stack()] if module else []

    def grad_mode(self) -> bool:
        """Whether autograd would follow the next op."""
        return torch.is_grad_enabled() and not self.autograd.inference.on


def _each_once(occurrences: list[Value], args: tuple[Tree, ...]) -> tuple[Value, ...]:
    """The values in order: where they are all arguments, and each once, the same tuple."""
    match occurrences:
        case [one]:
            return args if len(args) == 1 and args[0] is one else (one,)
        case [one, other] if one is not other:
            found: tuple[Value, ...] = one, other
        case _:
            found = tuple(dict.fromkeys(occurrences))
    return args if len(args) == len(found) and args == found else found  # less for gc to look at


def fill(result: Tree, operands: list[Value], new: list[Value]) -> Tree:
    """The result with operands in place, and a Value for each type, which `new` collects."""

    def of(leaf: Any) -> Any:
        if not isinstance(leaf, TensorType):
            return operands[leaf.operand] if isinstance(leaf, ReturnedOperand) else leaf
        new.append(Value(leaf))
        return new[-1]

    return map_tree(result, of)
