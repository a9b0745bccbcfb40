"""A gradient that the program asks for: the engine's answer, from what was recorded so far.

`loss.backward()` and `torch.autograd.grad` come to one function of torch's, whose place `Engine`
takes for the run. The walk of a joint cut goes back over the ops that there are; what it gives is
one more op of the program, whose body is that of the walk. With `create_graph` these are recorded
as if the program had called them, so that a later walk goes through them.
Source: torch/csrc/autograd/python_engine.cpp, torch/csrc/autograd/engine.cpp.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any, Protocol

import torch

from foretrace import torch_api
from foretrace.backward.accumulate import accumulate
from foretrace.backward.differentiate import Differentiation
from foretrace.backward.hooks_inside import HooksInside
from foretrace.errors import Refusal
from foretrace.frames.sources import asking_line
from foretrace.history.call_facts import values_used
from foretrace.history.stale import Stale, overwritten_in, view_positions_of
from foretrace.ir.op import (
    Backward,
    Choice,
    GradientCall,
    Op,
    Origin,
    RuleName,
    Value,
    Write,
    values_in,
)
from foretrace.ir.walk import every_op
from foretrace.mutation.alias import link
from foretrace.mutation.made_leaves import value_of
from foretrace.rules.derive import Derivatives
from foretrace.rules.table import RuleTable, fit
from foretrace.tensors.abstract import Abstract
from foretrace.trace.functions import FunctionCall, run_backward
from foretrace.trace.recorder import Recorder

DETACH = torch.ops.aten.detach.default
OPENED = Choice("a gradient", "opened", "no operator of torch's computes it", ())
UNUSED = (
    "One of the differentiated Tensors appears to not have been used in the graph. Set"
    " allow_unused=True if this is the desired behavior."
)


LOCAL = 2
"""References to a tensor that a name and the question hold; more are somebody's, as a hook's"""


class Leaves(Protocol):
    """The tensors of a run that gradients are accumulated in."""

    def of(self, value: Value) -> Any:
        """The leaf that has a value, or had it before writes that autograd does not see.

        None for what is no leaf.

        Raises:
            Refusal: what it is the gradient of has a history outside of the program.
        """

    def hooks(self, value: Value) -> tuple[Any, Sequence[Any], Sequence[Any]]:
        """The tensor itself, and the hooks that it had before the program.

        These are those on its gradient, and those after a gradient is accumulated.
        """

    def outside(self) -> dict[int, Value]:
        """By id, the real tensors behind inputs, and what they hold now."""


class Inside(Differentiation):
    """A walk whose ops are ops of the program.

    Args:
        recorder: what records the program.
        leaves: its leaves.
        engine: what answers Python of the program's that runs in the walk.
        again: whether the gradients may be differentiated once more.
        wanted: the values on whose way to the roots gradients are computed; None: all.
    """

    def __init__(
        self, recorder: Recorder, leaves: Leaves, engine: "Engine", *, again: bool,
        wanted: set[Value] | None,
    ) -> None:  # fmt: skip
        semantics: Any = recorder.semantics
        derivatives: Derivatives = semantics.derivatives
        table: RuleTable = semantics.table
        super().__init__(
            derivatives, semantics.inference, table, lambda _: False, leaves.outside(),
            Stale(overwritten_in(recorder)),
        )  # fmt: skip
        histories = recorder.histories
        self.inside = HooksInside(histories.hooks, histories.retained)
        self.hooks: Any = self.inside
        self.recorder, self.again, self.wanted, self.engine = recorder, again, wanted, engine
        self.narrow = wanted is not None
        self.tensors: dict[Value, Any] = {}
        """what stands for gradients in the program"""
        self._makers: dict[Value, Op] = {}
        self._origins: dict[int, Origin] = {}
        self.given: set[Value] = set()
        """gradients of the roots, which the program has"""
        self.order: dict[Value, None] = {}
        """what has a gradient, by when the last part of it came"""

    def wants(self, value: Value) -> bool:
        """Whether it is on the way to what the gradient is asked of."""
        asked = self.wanted is None or value in self.wanted
        return asked and value.type.requires_grad

    def add(self, value: Value, gradient: Value, because: Op) -> None:
        """One more gradient of a value."""
        super().add(value, gradient, because)
        self.order.pop(value, None)
        self.order[value] = None

    def now(self, gradient: Value) -> Value:
        """The gradient in the program, which has all ops of the walk by then."""
        self.record()
        known = self.tensors.get(gradient)
        return gradient if known is None else value_of(known, self.recorder)

    def value_of(self, tensor: Any) -> Value:
        """What a tensor of the program's has now."""
        known = tensor if isinstance(tensor, Abstract) else self.recorder.lift(tensor)
        value = value_of(known, self.recorder)
        self.tensors.setdefault(value, known)
        return value

    @contextmanager
    def as_program(self) -> Iterator[None]:
        """Inside, Python of the program's runs: it is watched, and may ask for a gradient."""
        with self.recorder.user_code(), torch_api.replaced({"engine": self.engine}):
            yield

    def record(self) -> None:
        """Let the ops that the walk has added be ops of the program."""
        if not self.scope.ops:
            return
        ops, self.scope.ops = self.scope.ops, []
        if self.again:
            self._call_all(ops)
            return
        for op in every_op(ops):
            op.origin, op.asked = self._unfollowed_origin(op.origin), True
            self._makers.update(dict.fromkeys(op.outs, op))
        self.recorder.scope += ops

    def _unfollowed_origin(self, origin: Origin) -> Origin:
        found = self._origins.get(id(origin))
        if found is None:
            found = replace(origin, grad_mode=False, checkpoint=None)
            self._origins[id(origin)], self._origins[id(found)] = found, found
        return found

    # ---- recorded as the program's own calls --------------------------------------------------

    def _call_all(self, ops: Iterable[Op]) -> None:
        for op in ops:
            if isinstance(op.target, Backward):
                self._call_body(op)
            else:
                self._call_op(op)

    def _call_body(self, op: Op) -> None:
        recorder = self.recorder
        with recorder.inner_scope(op.origin.frame) as body:
            for inner in op.body or ():
                self._call_op(inner)
        made = {out for inner in body for out in inner.outs}
        outs = tuple(v for out in op.outs if (v := self._value(out)) in made)
        recorder.scope.append(Op(
            op.target, tuple(map(self._value, op.operands)), {}, list(outs), outs,
            origin=replace(op.origin, grad_mode=True, checkpoint=None), below=body,
            because=op.because, rule=op.rule, asked=True,
        ))  # fmt: skip

    def _call_op(self, op: Op) -> None:
        """Record an op of a formula, as if the program had called it."""
        scope = self.recorder.scope
        count = len(scope)
        args, kwargs = self.recorder.concrete((op.args, op.kwargs), _Tensors(self))
        result = self.recorder.again(op.target, args, kwargs)
        made = [t for t in torch_api.tree_leaves(result) if isinstance(t, torch.Tensor)]
        self.tensors.update(zip(values_in(op.result), made, strict=True))
        for new in scope[count:]:
            new.because, new.rule, new.asked = op.because, op.rule, True

    def _value(self, value: Value) -> Value:
        known = self.tensors.get(value)
        return value if known is None else value_of(known, self.recorder)

    # ---- autograd.Functions --------------------------------------------------------------------

    def _function(self, op: Op) -> None:
        """A user's Function: its own backward runs here, as Python of the program's."""
        own, body = set(op.outs), op.region or ()
        self.walk([o for o in body if isinstance(o.target, Write) or own.isdisjoint(o.outs)])
        self.hooks.of(op, self)
        if not op.target.followed or self.reached.union(self.gradients).isdisjoint(op.outs):
            return
        if op.target.context.saved_values():
            self._passes(op)
        self.record()
        recorder, name = self.recorder, RuleName(f"{op.target}.backward", "registered")
        operands = [v for v in op.args if isinstance(v, Value)]
        with recorder.inner_scope(op.origin.frame) as ops:
            found = self._gradients_of(op)
            self.stale.check_unpacked(op, self.derivatives)
            fitted = fit(op.target, found, [self.tensor(value) for value in operands])
            values = [None if g is None else self.value_of(g) for g in fitted]
        made = {out for inner in ops for out in inner.outs}
        for inner in ops:
            inner.because, inner.rule = inner.because or op, inner.rule or name
            inner.asked = True
        recorder.scope.append(Op(
            Backward(op, name), tuple(v for v in values_used(ops) if v not in made), {}, None,
            tuple(dict.fromkeys(v for v in values if v in made and v is not None)),
            origin=self._own_origin(op.origin), below=ops, because=op, rule=name, asked=True,
        ))  # fmt: skip
        self._give_on(op, operands, values)

    def _own_origin(self, origin: Origin) -> Origin:
        return replace(origin, grad_mode=self.again, checkpoint=None)

    def _gradients_of(self, op: Op) -> list[Any]:
        """What a Function's backward gives for its tensors, and the hooks of its node make of it.

        Source: call_function in torch/csrc/autograd/engine.cpp.
        """
        call: FunctionCall = op.target
        results = op.result if isinstance(op.result, tuple) else (op.result,)
        arrived = tuple([self._arrived(value, call) for value in results])
        with self.as_program():
            found = run_backward(call, arrived)
            for hook in call.hooks:
                if not hook.target.removed:
                    again = hook.target.hook(found, arrived)
                    found = found if again is None else again
        found = found if isinstance(found, tuple) else (found,)
        count = len(op.args)
        if len(found) < count or any(each is not None for each in found[count:]):
            raise RuntimeError(
                f"function {call}Backward returned an incorrect number of gradients"
                f" (expected {count}, got {len(found)})"
            )
        return [
            gradient
            for arg, gradient in zip(op.args, found, strict=False)
            if isinstance(arg, Value)
        ]

    def _arrived(self, value: Any, call: FunctionCall) -> Any:
        """The gradient of a result as the backward gets it: zeros for none, unless it says."""
        gradient = self.gradients.get(value) if isinstance(value, Value) else None
        if gradient is not None:
            return self.tensor(self.now(gradient))
        if not isinstance(value, Value) or not call.context.materialize_grads:
            return None
        return torch.zeros_like(self.tensor(value), memory_format=torch.contiguous_format).detach()

    # ---- what the program gets ----------------------------------------------------------------

    def tensor(self, value: Value) -> Any:
        """What stands for a gradient, or for what one is computed of."""
        found = self.tensors.get(value)
        if found is not None:
            return found
        found = self.tensors[value] = self.recorder.abstract(value)
        maker = self._makers.get(value)
        for out, base, share in view_positions_of(maker) if maker is not None else ():
            if maker is not None and maker.outs[out] is value:
                link(found, self.tensor(base), maker, out, False, share)
        return found


class _Tensors(dict[Value, Any]):
    """By the values of a walk, what stands for them."""

    def __init__(self, walk: Inside) -> None:
        super().__init__()
        self.walk = walk

    def __getitem__(self, value: Value) -> Any:
        return self.walk.tensor(value)


class Engine:
    """In the place of torch's engine, for one run.

    Args:
        recorder: what records the program.
        leaves: its leaves.
    """

    def __init__(self, recorder: Recorder, leaves: Leaves) -> None:
        self.recorder, self.leaves = recorder, leaves
        self.original = torch_api.engine()

    def __call__(
        self, roots: Sequence[Any], gradients: Sequence[Any], keep: bool, again: bool,
        inputs: Sequence[Any] = (), allow_unreachable: bool = False, accumulate_grad: bool = False,
    ) -> tuple[Any, ...]:  # fmt: skip
        """The gradients of `inputs`; with `accumulate_grad`, none, but added to their `.grad`."""
        recorder = self.recorder
        self._check((*roots, *inputs), gradients)
        with recorder.unwatched, torch_api.replaced({"engine": self.original}):
            recorder.view_rebased()
            values = [self._known(root) for root in roots]
            for place, value in enumerate(values):
                if not value.type.requires_grad:
                    raise RuntimeError(
                        f"element {place} of tensors does not require grad and does not have a"
                        " grad_fn"
                    )
            asked = [recorder.histories.place(self._known(tensor)) for tensor in inputs]
            if not all(value.type.requires_grad for value in asked):
                raise RuntimeError("One of the differentiated Tensors does not require grad")
            walk = self._walked(values, gradients, keep=keep, again=again, asked=asked)
            if accumulate_grad:
                self._accumulate(walk, asked)
                return ()
            with torch.set_grad_enabled(again):
                return tuple(
                    self._found(walk, value, allow_unused=allow_unreachable) for value in asked
                )

    def _check(self, tensors: Sequence[Any], gradients: Sequence[Any]) -> None:
        recorder = self.recorder
        if not all(isinstance(each, torch.Tensor) for each in tensors):
            raise _refused("is asked of a gradient edge", "ask it of the tensor")
        if any(map(_of_a_batch, filter(_is_tensor, gradients))):
            what = "is asked for a batch of gradients at once (is_grads_batched=True)"
            raise _refused(what, "ask for one after the other, or use torch.func.vmap of vjp")
        if any(map(torch_api.of_a_level, tensors)):
            raise _refused("is asked inside a transform of torch.func",
                           "use torch.func.grad or vjp there")  # fmt: skip
        if recorder.holding:
            raise _refused("is asked in a program that an operator holds, such as torch.cond's",
                           "ask it outside, or use torch.func.grad")  # fmt: skip

    def _known(self, tensor: Any) -> Value:
        given = tensor if isinstance(tensor, Abstract) else self.recorder.lift(tensor)
        return value_of(given, self.recorder)

    def _walked(
        self, roots: list[Value], gradients: Sequence[Any], *, keep: bool, again: bool,
        asked: list[Value],
    ) -> Inside:  # fmt: skip
        """The walk, whose ops are in the record as the body of one."""
        recorder, name = self.recorder, "grad" if asked else "backward"
        ops = list(self._so_far())
        wanted = _on_the_way(ops, asked) if asked else None
        origin = replace(recorder.origin(), grad_mode=again)
        given = list(map(self._known, gradients))
        with torch.set_grad_enabled(again), recorder.inner_scope(origin.frame) as body:
            walk = Inside(recorder, self.leaves, self, again=again, wanted=wanted)
            target = GradientCall(name, again)
            call = Op(target, (), {}, None, (), origin=origin, below=body, choice=OPENED)
            walk.tensors.update(zip(given, gradients, strict=True))
            walk.given = {*given}
            for root, gradient in zip(map(recorder.histories.place, roots), given, strict=True):
                if walk.wants(root):
                    walk.add(root, gradient, call)
            walk.stale.meet(ops)
            walk.walk(ops)
            walk.record()
        freed = frozenset() if keep else frozenset(walk.spent)
        call.target = GradientCall(name, again, freed)
        call.args = (*roots, *given)
        call.outs = tuple(dict.fromkeys(out for op in every_op(body) for out in op.outs))
        call.result = list(call.outs)
        recorder.append(call)
        recorder.types.told.requires_grad.append(True)  # in another grad mode eager raises
        return walk

    def _so_far(self) -> Iterator[Op]:
        """The ops of the program; of a body that is being recorded, those that there are."""
        recorder = self.recorder
        bodies = recorder.bodies
        if any(body is None for body in bodies):
            raise _refused("is asked inside the kernel of an operator", "ask it outside")
        return chain(recorder.root, *(body for body in bodies if body is not None))

    def _found(self, walk: Inside, value: Value, *, allow_unused: bool) -> Any:
        if value in walk.gradients:
            walk.inside.of_value(value, walk, self.leaves.hooks(value)[1])
        gradient = walk.gradients.get(value)
        if gradient is None:
            if not allow_unused:
                raise RuntimeError(UNUSED)
            return None
        return walk.tensor(walk.now(gradient))

    # ---- .grad --------------------------------------------------------------------------------

    def _accumulate(self, walk: Inside, asked: list[Value]) -> None:
        """Add the gradients to the `.grad` of leaves, in the order in which they are complete."""
        only, leaves = set(asked), dict[Value, Any]()
        for value in walk.order:
            leaf = self.leaves.of(value) if not only or value in only else None
            if leaf is not None:
                leaves[value] = leaf
        with torch.set_grad_enabled(walk.again):
            for value, leaf in leaves.items():
                self._one_more(walk, value, leaf, leaves)

    def _one_more(self, walk: Inside, value: Value, leaf: Any, leaves: dict[Value, Any]) -> None:
        """The gradient of a leaf, by its hooks, into its `.grad`."""
        tensor, before, after = self.leaves.hooks(value)
        walk.inside.of_value(value, walk, before)
        gradient = walk.now(walk.gradients.pop(value))
        others = any(walk.gradients.get(other) is gradient for other in leaves)
        found = walk.tensor(gradient)
        kept = sys.getrefcount(found) > LOCAL + sum(each is found for each in walk.tensors.values())
        alone = not (walk.again or others or kept or gradient in walk.given)
        types = value.type, gradient.type
        accumulate(leaf, found, types, again=walk.again, alone=alone)
        for hook in after:
            with walk.as_program():
                if hook(tensor) is not None:
                    raise RuntimeError("Tensor post accumulate grad hooks should return None.")


def _of_a_batch(tensor: torch.Tensor) -> bool:
    return torch_api.of_a_level(tensor) or torch_api.of_old_vmap(tensor)


def _is_tensor(item: object) -> bool:
    return isinstance(item, torch.Tensor)


def _on_the_way(ops: Iterable[Op], asked: Iterable[Value]) -> set[Value]:
    """What depends on the values that gradients are asked of, and these."""
    found = set(asked)
    _spread(ops, found)
    return found


def _spread(ops: Iterable[Op], found: set[Value]) -> None:
    for op in ops:
        if not op.leaf and not op.writes:
            _spread(op.body or (), found)
        if any(value in found for value in op.operands):
            found.update(op.outs)


def _refused(what: str, do: str) -> Refusal:
    return Refusal(f"a gradient {what}", kind="autograd inside", at=asking_line(), do=do)
