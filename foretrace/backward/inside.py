"""A gradient that the program asks for: the engine's answer, from what was recorded so far.

`loss.backward()` and `torch.autograd.grad` come to one function of torch's, whose place `Engine`
takes for the run. The walk of a joint cut goes back over the ops that there are; what it gives is
one more op of the program, whose body is that of the walk. With `create_graph` these are recorded
as if the program had called them, so that a later walk goes through them.
Source: torch/csrc/autograd/python_engine.cpp, torch/csrc/autograd/engine.cpp.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Protocol

import torch

from foretrace import torch_api
from foretrace.backward.differentiate import Differentiation
from foretrace.errors import Refusal
from foretrace.history.stale import Stale, overwritten_in, view_positions_of
from foretrace.ir.op import Backward, Choice, GradientCall, Op, Origin, Value, values_in
from foretrace.ir.walk import every_op
from foretrace.mutation.alias import link
from foretrace.mutation.made_leaves import value_of
from foretrace.rules.derive import Derivatives
from foretrace.rules.table import RuleTable
from foretrace.tensors.abstract import Abstract
from foretrace.trace.recorder import Recorder

DETACH = torch.ops.aten.detach.default
OPENED = Choice("a gradient", "opened", "no operator of torch's computes it", ())
UNUSED = (
    "One of the differentiated Tensors appears to not have been used in the graph. Set"
    " allow_unused=True if this is the desired behavior."
)


class Leaves(Protocol):
    """The tensors of a run that gradients are accumulated in."""

    def of(self, value: Value) -> Any:
        """The leaf that has a value, or had it before writes that autograd does not see.

        None for what is no leaf.

        Raises:
            Refusal: what it is the gradient of has a history outside of the program.
        """

    def outside(self) -> dict[int, Value]:
        """By id, the real tensors behind inputs, and what they hold now."""


class Inside(Differentiation):
    """A walk whose ops are ops of the program.

    Args:
        recorder: what records the program.
        leaves: its leaves.
        again: whether the gradients may be differentiated once more.
        wanted: the values on whose way to the roots gradients are computed; None: all.
    """

    def __init__(
        self, recorder: Recorder, leaves: Leaves, *, again: bool, wanted: set[Value] | None
    ) -> None:
        semantics: Any = recorder.semantics
        derivatives: Derivatives = semantics.derivatives
        table: RuleTable = semantics.table
        super().__init__(
            derivatives, semantics.inference, table, lambda _: False, leaves.outside(),
            Stale(overwritten_in(recorder)),
        )  # fmt: skip
        self.recorder, self.again, self.wanted = recorder, again, wanted
        self.narrow = wanted is not None
        self.tensors: dict[Value, Any] = {}
        """what stands for gradients in the program"""
        self._makers: dict[Value, Op] = {}
        self._origins: dict[int, Origin] = {}
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

    def record(self) -> None:
        """Let the ops that the walk has added be ops of the program."""
        if not self.scope.ops:
            return
        ops, self.scope.ops = self.scope.ops, []
        if self.again:
            self._call_all(ops)
            return
        for op in every_op(ops):
            op.origin = self._unfollowed_origin(op.origin)
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
            because=op.because, rule=op.rule,
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
            new.because, new.rule = op.because, op.rule

    def _value(self, value: Value) -> Value:
        known = self.tensors.get(value)
        return value if known is None else value_of(known, self.recorder)

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
        self._check(roots, inputs)
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
                self._accumulate(walk, asked, again=again)
                return ()
            return tuple(
                self._found(walk, value, allow_unused=allow_unreachable) for value in asked
            )

    def _check(self, roots: Sequence[Any], inputs: Sequence[Any]) -> None:
        recorder = self.recorder
        tensors = (*roots, *inputs)
        if not all(isinstance(each, torch.Tensor) for each in tensors):
            raise _refused("is asked of a gradient edge", "ask it of the tensor")
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
        with torch.set_grad_enabled(again), recorder.inner_scope(origin.frame) as body:
            walk = Inside(recorder, self.leaves, again=again, wanted=wanted)
            target = GradientCall(name, again)
            call = Op(target, (), {}, None, (), origin=origin, below=body, choice=OPENED)
            given = list(map(self._known, gradients))
            walk.tensors.update(zip(given, gradients, strict=True))
            for root, gradient in zip(map(recorder.histories.place, roots), given, strict=True):
                if walk.wants(root):
                    walk.add(root, gradient, call)
            walk.stale.meet(ops)
            walk.walk(ops)
            walk.record()
        freed = frozenset() if keep else frozenset(walk.through_ops)
        call.target = GradientCall(name, again, freed)
        call.args = (*roots, *given)
        call.outs = tuple(dict.fromkeys(out for op in every_op(body) for out in op.outs))
        call.result = list(call.outs)
        recorder.append(call)
        return walk

    def _so_far(self) -> Iterator[Op]:
        """The ops of the program; of a body that is being recorded, those that there are."""
        recorder = self.recorder
        bodies = recorder.bodies
        if any(body is None for body in bodies):
            raise _refused("is asked inside the kernel of an operator", "ask it outside")
        return chain(recorder.root, *(body for body in bodies if body is not None))

    def _found(self, walk: Inside, value: Value, *, allow_unused: bool) -> Any:
        gradient = walk.gradients.get(value)
        if gradient is None:
            if not allow_unused:
                raise RuntimeError(UNUSED)
            return None
        return walk.tensor(walk.now(gradient))

    # ---- .grad --------------------------------------------------------------------------------

    def _accumulate(self, walk: Inside, asked: list[Value], *, again: bool) -> None:
        """Add the gradients to the `.grad` of leaves, as torch's AccumulateGrad nodes do."""
        only = set(asked)
        with torch.set_grad_enabled(again):
            for value in walk.order:
                if only and value not in only:
                    continue
                leaf = self.leaves.of(value)
                if leaf is not None:
                    _add_to(leaf, walk.tensor(walk.now(walk.gradients[value])), again=again)


def _add_to(leaf: Any, gradient: Any, *, again: bool) -> None:
    """One gradient more of a leaf.

    Source: AccumulateGrad::accumulateGrad in torch/csrc/autograd/functions/accumulate_grad.h.
    """
    before = leaf.grad
    if before is None:
        leaf.grad = _laid_out(gradient, leaf) if again else _laid_out(gradient, leaf).detach()
    elif again:
        leaf.grad = before + gradient
    else:
        before += gradient


def _laid_out(gradient: Any, leaf: Any) -> Any:
    """A copy that lies as the contract of gradients has it.

    Eager hands the very gradient on where nobody else has it, and it lies so.
    """
    if torch_api.is_dense(leaf):
        new = torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device=leaf.device)
        return new.copy_(gradient)
    return gradient.clone(memory_format=torch.contiguous_format)


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
    return Refusal(f"a gradient {what}", kind="autograd inside", do=do)
