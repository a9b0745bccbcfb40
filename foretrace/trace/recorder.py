"""Record one run: every operator call becomes an op in the tree, at about 10 us a call.

The program is a value program from the start: an op that writes in place becomes an op with a new
value as its out (see `mutation`), so that nothing after the recorder has to know of mutation.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter
from typing import Any

import sympy
import torch

from foretrace import torch_api
from foretrace.errors import Frame, Refusal
from foretrace.frames.sources import Sources
from foretrace.ir.op import (
    Checkpoint,
    ModuleCall,
    Op,
    Origin,
    Target,
    Tree,
    Value,
    map_values,
    values_in,
)
from foretrace.ir.text import neighbourhood
from foretrace.ir.tree import map_tree
from foretrace.ir.types import TensorType
from foretrace.mutation.alias import Alias, Held, alias_of, current, link
from foretrace.mutation.call import Call
from foretrace.mutation.made_leaves import LEAF, REQUIRES_GRAD
from foretrace.mutation.offsets import FROM_START, in_graph, placed
from foretrace.ops.cache import Cache
from foretrace.ops.outcome import Given, Outcome, Share, fill
from foretrace.ops.semantics import Semantics
from foretrace.tensors.abstract import Abstract, Types
from foretrace.tensors.autocast import Casts
from foretrace.trace.dispatch import casting_inside, learn
from foretrace.trace.reading import Reading, key_of

NOWHERE = Origin(None, None)
NOBODY = nullcontext()
LASTING = attrgetter("lasting")
CAST = torch.ops.aten.to.dtype
DETACH = torch.ops.aten.detach.default
SIZE, STRIDE = torch.ops.aten.size.default, torch.ops.aten.stride.default
"""Asked by C++ that knows numbers only, of a tensor with symbolic sizes."""
LIFT_FRESH = torch.ops.aten.lift_fresh.default
LIFT_FRESH_COPY = torch.ops.aten.lift_fresh_copy.default
"""A constant of the program is copied where it is made, as each run makes it anew."""


class Recorder(torch_api.TorchDispatchMode):
    """The mode that records; also the tool by which bodies and views are recorded again."""

    def __init__(
        self,
        types: Types,
        semantics: Semantics,
        sources: Sources,
        lift: Callable[[torch.Tensor], Abstract],
        lift_constant: Callable[[torch.Tensor], Abstract],
        answer: Callable[["Recorder", Any, Tree, dict[str, Tree]], Any],
        outcomes: Cache[Outcome],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mode_key = torch_api.FAKE_MODE_KEY
        self.types, self.semantics, self.sources = types, semantics, sources
        self.lift, self.lift_constant, self.answer = lift, lift_constant, answer
        self.casts = Casts()
        self.scope = self._around = list[Op]()
        self.log: list[Op] = []
        self.fresh: set[Value] = set()
        """what factories have made"""
        self.leaves: set[Value] = set()
        """leaves of autograd that the program has made"""
        self.inference = self.inferred = False
        """whether the program is in inference mode; whether it has been"""
        self.module: ModuleCall | None = None
        self.checkpoint: Checkpoint | None = None
        self.functional_form: Op | None = None
        """the op whose results are being written over what it was computed from"""
        self.overwritten: dict[Value, Held] = {}
        """values that their memory no longer holds"""
        self.seeing: dict[Value, Op] = {}  # what composites gave as views of memory made inside
        self.rebased: list[Alias] = []
        """views through which the program has just written"""
        self.first_refusal: Refusal | None = None
        self.unwatched: AbstractContextManager[None] = NOBODY
        """inside is work of ours, which nobody who watches the program has to see"""
        self.outcomes = outcomes
        self._origins: dict[tuple[Any, ...], Origin] = {}
        self._depth = 0
        self._failure: tuple[BaseException | None, list[str]] = (None, [])
        self._frame_inside: Frame | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not wrapped by `torch._dynamo.disable`: that imports dynamo and adds 3 us a call."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record one call and answer it with abstract tensors."""
        if func is SIZE or func is STRIDE:
            return self._numbers(args[0], func is STRIDE)
        if self.rebased and not self._depth:
            self.view_rebased()
        if func is CAST and self.casts.devices and not isinstance(args[0], Abstract):
            args = (self.lift(args[0]), *args[1:])  # a leaf from outside is cast once, too
        if func is CAST and self.casts.remembers(*args):
            with self.before_bodies():
                return self.casts.once(args[0], args[1], self.again)
        if func is LIFT_FRESH and not isinstance(args[0], Abstract):
            args, func = (self.lift_constant(args[0]),), LIFT_FRESH_COPY
        if (self.overwritten or self._depth) and func in FROM_START:
            args, kwargs = in_graph(self, func, args, kwargs or {})
        read = Reading(self, func, self.grad_mode())
        values, tensors = read.all(args), read.tensors
        named = read.named(kwargs) if kwargs else {}
        outcome = self.casts.devices and casting_inside(self, func, values, named, tensors)
        outcome = outcome or self._meaning(func, values, named, read.key, read.values)
        try:
            if outcome.inline is not None:
                return outcome.inline(Call(self, func, values, named, tensors))
            op = self.emit(func, values, named, outcome, read.values)
            if outcome.factory and not self._depth:
                self.fresh.update(op.outs)
            return self._abstract(op, outcome, tensors)
        except Refusal as refusal:
            raise self._located(refusal, func, values, named) from None

    def _numbers(self, tensor: Abstract, strides: bool) -> tuple[int, ...]:
        """Sizes or strides as numbers, which become guards."""
        type = (tensor.ft_value or current(tensor.ft_alias, self)).type
        return tuple(map(self.types.symbols.fixed, type.stride if strides else type.shape))

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

    # ---- outcome ----------------------------------------------------------------------------

    def _meaning(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], key: list[Any], operands: list[Value]
    ) -> Outcome:
        key += filter(None, (self.semantics.ambient(func), self.casts.state()))
        if len(operands) > 1 and len(set(operands)) < len(operands):
            key.append(tuple(operands.index(operand) for operand in operands))
        whole = tuple(key)
        if (found := self.outcomes.get(whole)) is None:
            try:
                with self.unwatched:
                    found = self.outcomes.learn(
                        whole, lambda: learn(self, func, args, kwargs, grad_mode=key[1]), LASTING
                    )
            except Refusal as refusal:
                raise self._located(refusal, func, args, kwargs) from None
        return found

    def concrete(self, tree: Tree, env: dict[Value, Any]) -> Tree:
        """Arguments as torch takes them: `env`'s tensor for a value, a SymInt for an expression."""
        if isinstance(tree, Value):
            return env[tree]
        if isinstance(tree, sympy.Basic):
            return self.types.symbols.symbolic(tree)
        if isinstance(tree, (list, tuple)):
            return type(tree)([self.concrete(item, env) for item in tree])
        if isinstance(tree, dict):
            return {name: self.concrete(item, env) for name, item in tree.items()}
        return tree

    def listening(self) -> AbstractContextManager[Any]:
        """The mode is active inside: again, where it was popped to answer a call."""
        return nullcontext() if torch_api.is_active(self) else self

    @contextmanager
    def inner_scope(self, frame: Frame | None = None) -> Iterator[list[Op]]:
        """Ops recorded inside go to the yielded list, and come from the given line."""
        outer, outer_frame, inner = self.scope, self._frame_inside, list[Op]()
        self._around = self._around if self._depth else outer
        self.scope, self._frame_inside = inner, frame
        self._depth += 1
        try:
            yield inner
        finally:
            self.scope, self._frame_inside = outer, outer_frame
            self._depth -= 1

    @contextmanager
    def before_bodies(self) -> Iterator[None]:
        """Ops recorded inside go before the outermost op whose body is being recorded."""
        scope, depth = self.scope, self._depth
        self.scope, self._depth = self._around if depth else scope, 0
        try:
            yield
        finally:
            self.scope, self._depth = scope, depth

    # ---- recording --------------------------------------------------------------------------

    def emit(
        self, func: Target, args: Tree, kwargs: dict[str, Tree], outcome: Outcome,
        occurrences: list[Value],
    ) -> Op:  # fmt: skip
        """Append the op for a call; `occurrences` are the values among its arguments."""
        result = outcome.result
        made: list[Value] = []
        if type(result) is TensorType:
            made.append(result := Value(result))
        else:
            result = fill(result, occurrences, made)
        outs = tuple(made)
        op = Op(
            func, args, kwargs, result, outs,
            origin=self.origin(), definition=outcome.definition, choice=outcome.choice,
            operands=tuple(dict.fromkeys(occurrences)),
        )  # fmt: skip
        if outcome.definition is not None and outcome.definition.seen:
            self.seeing.update(dict.fromkeys(outs, op))
        self.append(op)
        return op

    def append(self, op: Op) -> None:
        """Add an op to the current scope."""
        self.scope.append(op)
        if self._depth == 0:
            self.log.append(op)

    def call(
        self, func: Target, args: Tree, kwargs: dict[str, Tree] | None = None, grad: bool = False
    ) -> Op:
        """Record a call given in values, as views read again and functional forms are."""
        key: list[Any] = [func, grad, torch.get_default_dtype()]
        key_of(args, key)
        for name, arg in (kwargs or {}).items():
            key.append(name)
            key_of(arg, key)
        operands = values_in((args, kwargs))
        outcome = self._meaning(func, args, kwargs or {}, key, operands)
        if outcome.inline is None:
            return self.emit(func, args, kwargs or {}, outcome, operands)
        tensors = [self.abstract(value) for value in operands]
        result = map_tree(
            outcome.inline(Call(self, func, args, kwargs or {}, tensors)),
            lambda t: current(alias_of(t), self) if isinstance(t, Abstract) else t,
        )
        outs = tuple(values_in(result))
        return Op(func, args, kwargs or {}, result, outs, origin=self.origin())

    def origin(self) -> Origin:
        """The user's line, module and grad mode that are current."""
        grad = self.grad_mode()
        frame = self._frame_inside if self._depth else self.sources.here()
        modes = (self.module, grad, self.checkpoint, self.inference)
        known = self._origins.get((id(frame), *modes))
        if known is None:
            known = self._origins[id(frame), *modes] = Origin(frame, *modes)
        return known

    def leaf(self, value: Value, before: Value | None = None) -> Value:
        """Record that what a value has is a leaf of autograd; `before`: it was one with that value.

        Raises:
            Refusal: its gradient would be that of two values.
        """
        uses = (op for op in self.log if before in op.operands and not op.writes)
        followed = (out for op in uses if op.origin.grad_mode for out in op.outs)
        if before is not None and any(out.type.requires_grad for out in followed):
            raise Refusal(
                "the program writes to a leaf that it has made, after it used the leaf",
                kind="unsupported", do="write to it before it is used, or to a clone",
            )  # fmt: skip
        if value.type.requires_grad:
            value = self.call(DETACH, (value,)).outs[0]
        leaf = Value(value.type.with_grad(True))
        self.append(
            Op(REQUIRES_GRAD, (value,), {}, leaf, (leaf,), choice=LEAF, origin=self.origin())
        )
        self.leaves.add(leaf)
        return leaf

    def view_rebased(self) -> None:
        """View again what the program has written through, and still holds.

        Autograd makes the new history of such a view when it is written, and that of all other
        views when they are used: gradients are added up in that order.
        Source: rebase_history in torch/csrc/autograd/variable.cpp.
        """
        views, self.rebased = self.rebased, []
        for alias in views:
            if alias.tensor() is not None:
                current(alias, self)

    @property
    def inside(self) -> bool:
        """Whether a body is being recorded."""
        return self._depth > 0

    def _abstract(self, op: Op, outcome: Outcome, tensors: list[Abstract]) -> Any:
        """What the caller gets: an abstract tensor for each new value."""
        new = [self.abstract(out) for out in op.outs]
        alone = self.inference and op.target is torch.ops.aten.view.dtype  # no view of autograd's
        for position, operand, share in outcome.views:
            seen = Share.MEMORY if alone else share
            link(new[position], tensors[operand], op, position, self.grad_mode(), seen)
            if self.overwritten:
                placed(self, new[position])
        if type(outcome.result) is TensorType:
            return new[0]
        fresh = iter(new)
        return map_tree(
            outcome.result,
            lambda t: next(fresh) if isinstance(t, TensorType)
            else tensors[t.operand] if isinstance(t, Given) else t,
        )  # fmt: skip

    def again(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Any:
        """Record another call in the place of one that could not be."""
        return self.__torch_dispatch__(func, (), args, kwargs)

    def abstract(self, value: Value) -> Abstract:
        """A new abstract tensor for the value."""
        return self.types.abstract(value)

    def followed_results(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> tuple[bool, ...]:
        """For each result of a leaf, whether autograd follows it under the current grad mode."""
        if not self.grad_mode():
            return ()
        typed = [map_values(tree, lambda v: v.type) for tree in (args, kwargs)]
        return self.semantics.followed(func, *typed)

    def _located(self, refusal: Refusal, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Refusal:
        """Add the user's line, the module and the ops around; remember it in case it is caught."""
        if self._depth == 0:
            near = neighbourhood(self.log[-2:], Op(func, args, kwargs, None, (), origin=NOWHERE))
            refusal.located(self.sources.here(), self.module_path(), near)
            self.first_refusal = self.first_refusal or refusal
        return refusal
