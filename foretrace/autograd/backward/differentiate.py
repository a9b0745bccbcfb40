"""From a forward tree to the joint one: every gradient that eager would compute, in eager's order.

The walk goes over the ops from the last to the first, which is the order in which torch's engine
runs their autograd nodes (they are numbered when created, and the highest number that is ready
runs next); so gradients of a value that is used more than twice are added in the same order.

An op has its own derivative, or is opened; an op that is to be kept whole gets one backward op
whose body is the derivative of its body.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

import torch

from foretrace import torch_api
from foretrace.autograd.backward.apply_rule import Formulas
from foretrace.autograd.backward.gradient_hooks import Hooks, as_is
from foretrace.autograd.backward.gradient_map import COPY_SLICES, ENGINE, Scope
from foretrace.autograd.derivatives.derive import Derivatives
from foretrace.autograd.derivatives.function_backward import own_rule
from foretrace.autograd.derivatives.registry import RuleTable
from foretrace.autograd.derivatives.rule import Rule
from foretrace.autograd.eager_history.op_facts import locate, results_of
from foretrace.autograd.eager_history.version_counters import VersionCounters
from foretrace.autograd.higher_order.scan_backward import (
    differentiate as differentiate_higher_order,
)
from foretrace.errors import Refusal
from foretrace.ir.program.op import GradientCall, Op, Subgraph, Write, target_name
from foretrace.ir.program.origin import ModuleCall, RuleName
from foretrace.ir.program.walk import every_op, outs_in, subgraphs_of
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value
from foretrace.operators.abstract_tensors.subclass_types import dispatched
from foretrace.operators.inference.infer import Inference
from foretrace.operators.schemas.higher_order_schema import higher_order_schema_of
from foretrace.operators.schemas.view_inverse import put_back
from foretrace.tracer.recorder.autograd_hooks import Packed
from foretrace.tracer.recorder.function_target import FunctionCall

aten = torch.ops.aten

Keep = Callable[[Op], bool]


class Differentiation(Formulas):
    """One backward walk: `gradients` maps each forward value to what arrived for it so far."""

    def __init__(
        self, derivatives: Derivatives, inference: Inference, table: RuleTable, keep: Keep,
        outside: dict[int, Value], stale: VersionCounters, hooks: Hooks | None = None,
    ) -> None:  # fmt: skip
        super().__init__(derivatives, inference, outside, stale, hooks)
        self.table, self.keep = table, keep
        self.visits_bodies = False
        """whether a gradient of the program's own reads values inside composites"""
        self.finished: set[Value] = set()
        """values whose gradient has been propagated"""

    def walk(self, ops: Sequence[Op]) -> None:
        """Differentiate ops from the last to the first."""
        for op in reversed(ops):
            self._op(op)
            self.finished.update(op.outs)

    def _op(self, op: Op) -> None:
        if isinstance(op.target, ModuleCall | GradientCall):
            self._region(op)
            return
        opened = op.own is not None and not op.writes
        if self.hooks and (op.leaf or op.writes or self.by_itself(op)):
            self.hooks.of(op, self)
        inside = self.visits_bodies and self._arrives_inside(op)
        if not (opened or inside or any(out in self.gradients for out in op.outs)):
            self._without_gradient(op)
        elif isinstance(op.target, Write) and not op.target.followed:
            self._unfollowed(op)
        elif not op.origin.grad_mode:
            self._unfollowed_in(op)
        elif isinstance(op.target, FunctionCall):
            self._function(op)
        elif op.own and subgraphs_of(op):
            self.higher_order(op)
        elif op.leaf or op.writes or self.by_itself(op):
            self.single(op)
        elif inside or not self.keep(op):
            self.walk(op.body or ())
        else:
            self._whole(op)

    def _region(self, op: Op) -> None:
        """What autograd does not see: a call of a module, a gradient of the program's own."""
        if isinstance(op.target, GradientCall):
            self.freed.update(op.target.freed)
            self.visits_bodies |= op.target.again
        if self.keep(op):
            self._whole(op)
        else:
            self.walk(op.body or ())

    def _arrives_inside(self, op: Op) -> bool:
        """Whether a gradient has arrived for a value inside a composite."""
        inside = every_op(op.region or ()) if op.definition is not None else ()
        return any(out in self.gradients for inner in inside for out in inner.outs)

    def by_itself(self, op: Op) -> bool:
        """Whether what lies below an op has no part in its derivative."""
        higher_order = bool(op.own and subgraphs_of(op))
        return higher_order or dispatched(op) or self.table.wins(op.target)

    def _without_gradient(self, op: Op) -> None:
        """Where none arrives, the engine goes on, as a user's Function may make one."""
        if self.reached.isdisjoint(op.outs):
            return
        if not (op.leaf or op.writes or isinstance(op.target, FunctionCall)):
            self.walk(op.body or ())
        else:
            if op.origin.grad_mode:  # and takes out what was saved, of use or not
                if packed := self.packed(op):
                    self.unpack(packed)
                else:
                    self.stale.check_unpacked(op, self.derivatives)
            hidden = isinstance(op.target, Write) and not op.target.followed
            on = op.args[:1] if hidden else op.operands if op.origin.grad_mode else ()
            self.reached.update(v for v in on if self.wants(v))

    # ---- one op with a derivative of its own --------------------------------------------------

    def single(self, op: Op) -> None:
        """An op with a derivative of its own."""
        if isinstance(op.target, Write):
            self._through_view(op, op.target)
            return
        if op.outcome is None and subgraphs_of(op):
            self.higher_order(op)
            return
        results = results_of(op)
        tangents = [self.gradients.get(value) for value in results]
        if packed := self.packed(op):
            self._unpacked(op, packed, tangents)
            return
        rule, occurrences = self._rule_of(op, tangents)
        if rule is not None:
            self._apply(op, rule, occurrences, results, tangents)

    def _unpacked(self, op: Op, packed: Packed, tangents: Sequence[Value | None]) -> None:
        """A call for which hooks have packed what autograd saves: its formula reads theirs."""
        rule, occurrences, values = self._rule_over(op, packed, tangents)
        if rule is not None:
            self._apply(op, rule, occurrences, results_of(op), tangents, values)

    # ---- writes ------------------------------------------------------------------------------

    def _unfollowed(self, op: Op) -> None:
        """A write that autograd does not see: the history of the base goes on as it was."""
        (out,), base = op.outs, op.args[0]
        if self.wants(base):
            self.add(base, self.gradients[out], op)

    def _unfollowed_in(self, op: Op) -> None:
        """What autograd sees below an op that it does not follow: writes, and views of them."""
        self.walk(op.region or ())

    def _through_view(self, op: Op, write: Write) -> None:
        """A write to a view, as torch's CopySlices node differentiates it.

        The gradient of the base is copied, the part that was written is replaced by what the
        op's own derivative makes of it. Source: torch/csrc/autograd/functions/tensor.cpp.
        """
        base, args = op.args
        (out,) = op.outs
        whole = self._in_layout(self.gradients[out], base.type, op)
        bases = self._viewed(write, whole, op)
        in_order = {"memory_format": torch.contiguous_format}
        (part,) = self.append(aten.clone.default, (bases[-1],), in_order, op, COPY_SLICES).outs
        unpacked = dict[Value, Any]()
        if packed := self.packed(op):
            rule, occurrences, unpacked = self._rule_over(op, packed, [part])
        else:
            rule, occurrences = self._rule(write.func, op, args, op.kwargs, [part])
        if rule is None:
            return
        if packed is None:
            self._run_if_saved(op, rule)
        env = rule.env()
        env.update(zip(rule.operands, occurrences, strict=True))
        env |= unpacked
        if any(v in rule.results for inner in rule.ops for v in inner.operands):
            now = self.stale.read(out, op, self._replay)
            env[rule.results[0]] = self._viewed(write, now, op)[-1]
        env.update({t: part for t in rule.tangents if t is not None})
        if packed is None:
            self.reread(op, rule, env, [0])
        self._put(op, rule, env)
        found = [g and env[g] for g in rule.gradients]
        self._put_back(op, write, base, bases, found[0])
        for value, gradient in list(zip(occurrences, found, strict=True))[1:]:
            if gradient is not None and self.wants(value):
                self.add(value, gradient, op)

    def _viewed(self, write: Write, base: Value, op: Op) -> list[Value]:
        """A value of the base, and its views up to the part that was written."""
        views = accumulate(write.steps, lambda of, step: self._view(step, of, op), initial=base)
        return list(views)

    def _put_back(
        self, op: Op, write: Write, base: Value, bases: list[Value], gradient: Value | None
    ) -> None:
        if not self.wants(base):
            return
        gradient = gradient or self._call(aten.zeros_like.default, (bases[-1],), op)

        def append(func: Any, args: Tree, kwargs: dict[str, Tree] | None = None) -> Op:
            return self.append(func, args, kwargs or {}, op, ENGINE)

        new = put_back(write.steps, bases[:-1], gradient, append)
        self.add(base, self._in_layout(new, base.type, op), op)

    def _in_layout(self, gradient: Value, like: TensorType, op: Op) -> Value:
        """The gradient in the layout of the base, as CopySlices copies it."""
        if gradient.type.stride == like.stride:
            return gradient
        sizes, strides = list(like.shape), list(like.stride)
        empty = self._call(aten.new_empty_strided.default, (gradient, sizes, strides), op)
        return self._call(aten.copy.default, (empty, gradient), op)

    # ---- autograd.Functions ------------------------------------------------------------------

    def _function(self, op: Op) -> None:
        """A user's Function: its own backward, run wherever the engine arrives at a result."""
        own, body = set(op.outs), op.region or ()  # what links those to the call has no gradient
        self.walk([o for o in body if isinstance(o.target, Write) or own.isdisjoint(o.outs)])
        if self.hooks:
            self.hooks.of(op, self)
        results = op.result if isinstance(op.result, tuple) else (op.result,)
        tangents = [self.gradients.get(v) if isinstance(v, Value) else None for v in results]
        if not op.target.followed or self.reached.union(self.gradients).isdisjoint(op.outs):
            return
        finished = self.finished.union(op.outs)
        waiting = {g for v, g in self.gradients.items() if v not in finished}
        context = vars(op.target.context)
        if self.reads is not None:
            self.reads.of_function(op)
        try:
            with torch_api.switched(context, released=self.released(op)):
                rule = own_rule(op, tangents, waiting, self.user_tape)
        except Refusal as refusal:
            raise locate(refusal, op) from None
        if op.target.hooks:
            self._hooked(op, rule)
        else:
            self._apply(op, rule, rule.operands, (), tangents)

    def _hooked(self, op: Op, rule: Rule) -> None:
        """The same with hooks on its node, which may keep gradients for each other."""
        self.scope.ops.extend(as_is(rule.ops, op, rule.name))
        self._propagate(op, rule.operands, rule.gradients)

    # ---- operators that hold programs ---------------------------------------------------------

    def higher_order(self, op: Op) -> None:
        """An operator that holds programs: a Function of torch's, which saves its operands.

        Those of `scan` and `while_loop` keep them in attributes, and are not let go of (2.13).
        """
        holder = higher_order_schema_of(op.target)
        saves = holder is not None and holder.carried is None and not op.own
        if saves and any(map(self.wants, op.operands)):
            self._run_node(op)
        differentiate_higher_order(op, self)

    def through(
        self, subgraph: Subgraph, tangents: dict[Value, Value], because: Op
    ) -> "Differentiation":
        """The walk back through a program that an op holds, from the gradients of its results."""
        walk = Differentiation(
            self.derivatives,
            self.inference,
            self.table,
            self.keep,
            {},
            VersionCounters(self.stale.overwritten),
        )
        walk.reads = self.reads
        walk.stale.meet(subgraph.ops)
        for value, tangent in tangents.items():
            walk.add(value, tangent, because)
        walk.walk(subgraph.ops)
        return walk

    # ---- kept ops ----------------------------------------------------------------------------

    def _whole(self, op: Op) -> None:
        """One backward op whose body is the derivative of the op's body."""
        body = op.body or []
        outer, inside = self.scope, outs_in(body)
        self.scope = Scope(inside=inside)
        self.walk(body)
        inner, self.scope = self.scope, outer
        name = RuleName(f"derivative of {target_name(op.target)}", "derived")
        self._emit(op, name, inner.ops, [g for _, g, _ in inner.pending])
        for value, gradient, because in inner.pending:
            self.add(value, gradient, because)
