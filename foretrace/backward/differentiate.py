"""From a forward tree to the joint one: every gradient that eager would compute, in eager's order.

The walk goes over the ops from the last to the first, which is the order in which torch's engine
runs their autograd nodes (they are numbered as they are made, and the highest number that is ready
runs next); so gradients of a value that is used more than twice are added in the same order.

An op has its own derivative, or is opened; an op that is to be kept whole gets one backward op
whose body is the derivative of its body.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from foretrace import torch_api
from foretrace.backward.hooks import Hooks, as_is
from foretrace.backward.unpacking import unpacked
from foretrace.errors import Refusal
from foretrace.history.call_facts import locate, results_of, values_used, written_positions
from foretrace.history.stale import Stale
from foretrace.ir.op import (
    Backward,
    GradientCall,
    ModuleCall,
    Op,
    RuleName,
    Subgraph,
    Tree,
    Value,
    ViewStep,
    Write,
    map_values,
    substitute,
    target_name,
    values_in,
)
from foretrace.ir.types import TensorType
from foretrace.ir.walk import binds, every_op, made_in, subgraphs_of
from foretrace.ops.holders import holder_of
from foretrace.ops.infer import Inference
from foretrace.ops.views import put_back
from foretrace.rules.derive import Derivatives
from foretrace.rules.own_backward import own_rule
from foretrace.rules.rule import Rule
from foretrace.rules.saving import Saving
from foretrace.rules.table import RuleTable
from foretrace.symbols.sizes import Symbols
from foretrace.tensors.wrapped import dispatched
from foretrace.through.scanned import differentiate as differentiate_held
from foretrace.trace.functions import FunctionCall
from foretrace.trace.hooks import Packed

ENGINE = RuleName("accumulate", "engine")
COPY_SLICES = RuleName("CopySlices", "engine")
aten = torch.ops.aten
ADD = aten.add.Tensor

Keep = Callable[[Op], bool]


@dataclass(slots=True)
class Scope:
    """Where backward ops go. `inside`: values made in the forward op that is kept whole."""

    ops: list[Op] = field(default_factory=list)
    inside: set[Value] | None = None
    pending: list[tuple[Value, Value, Op]] = field(default_factory=list)
    """gradients of values from outside the kept op, added after its backward op"""


class Differentiation:
    """One backward walk: `gradients` maps each forward value to what arrived for it so far."""

    def __init__(
        self, derivatives: Derivatives, inference: Inference, table: RuleTable, keep: Keep,
        outside: dict[int, Value], stale: Stale, hooks: Hooks | None = None,
    ) -> None:  # fmt: skip
        self.derivatives, self.inference = derivatives, inference
        self.table, self.keep = table, keep
        self.again = self.narrow = False
        """whether what the walk gives is differentiated once more; whether not all is wanted"""
        self.rows: int | None = None
        """how many gradients there are at once, as the rows of each"""
        self.freed = set[Op]()
        """what a backward of the program's own has gone through, and let go of what was saved"""
        self.spent = list[Op]()
        """what the walk has gone through that had saved something"""
        self.deep = False
        """whether gradients arrive inside of ops, as a gradient of the program's reads there"""
        self.packs: dict[Value, Packed] = {}
        """by the first result of a call, what hooks made of what autograd saves for it"""
        self.carried: dict[Value, Value] = {}
        """what such hooks gave back, and the value whose history that has"""
        self.outside = outside
        """by id, the real tensors behind inputs, and what they hold when the backward runs"""
        self.stale, self.hooks = stale, hooks or Hooks(())
        self.gradients: dict[Value, Value] = {}
        self.passed: set[Value] = set()
        """values whose gradient has been given on"""
        self.reached: set[Value] = set()
        """values at which torch's engine arrives without a gradient"""
        self.scope = Scope()
        self._known: dict[tuple[Any, ...], tuple[Rule | None, tuple[int, ...]]] = {}
        """by calls that are alike: the rule, and which operand each occurrence is"""

    def walk(self, ops: Sequence[Op]) -> None:
        """Differentiate ops from the last to the first."""
        for op in reversed(ops):
            self._op(op)
            self.passed.update(op.outs)

    def _op(self, op: Op) -> None:
        if isinstance(op.target, ModuleCall | GradientCall):
            self._region(op)
            return
        opened = op.own is not None and not op.writes
        if self.hooks and (op.leaf or op.writes or self.by_itself(op)):
            self.hooks.of(op, self)
        inside = self.deep and self._arrives_inside(op)
        if not (opened or inside or any(out in self.gradients for out in op.outs)):
            self._without_gradient(op)
        elif isinstance(op.target, Write) and not op.target.followed:
            self._unfollowed(op)
        elif not op.origin.grad_mode:
            self._unfollowed_in(op)
        elif isinstance(op.target, FunctionCall):
            self._function(op)
        elif op.own and subgraphs_of(op):
            self.held(op)
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
            self.deep |= op.target.again
        if self.keep(op):
            self._whole(op)
        else:
            self.walk(op.body or ())

    def _arrives_inside(self, op: Op) -> bool:
        """Whether there is a gradient of what a composite has made inside."""
        inside = every_op(op.region or ()) if op.definition is not None else ()
        return any(out in self.gradients for inner in inside for out in inner.outs)

    def by_itself(self, op: Op) -> bool:
        """Whether what lies below an op has no part in its derivative."""
        held = bool(op.own and subgraphs_of(op))
        return held or dispatched(op) or self.table.wins(op.target)

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
        if op.alike is None and subgraphs_of(op):
            self.held(op)
            return
        results = results_of(op)
        tangents = [self.gradients.get(value) for value in results]
        if packed := self.packed(op):
            self._unpacked(op, packed, tangents)
            return
        rule, occurrences = self._rule_of(op, tangents)
        if rule is not None:
            self._apply(op, rule, occurrences, results, tangents)

    def held(self, op: Op) -> None:
        """An operator that holds programs: a Function of torch's, which saves its operands.

        Those of `scan` and `while_loop` keep them in attributes, and are not let go of (2.13).
        """
        holder = holder_of(op.target)
        saves = holder is not None and holder.carried is None and not op.own
        if saves and any(map(self.wants, op.operands)):
            self._passes(op)
        differentiate_held(op, self)

    def packed(self, op: Op) -> Packed | None:
        """What hooks made of the tensors that autograd saved for an op."""
        return self.packs.get(op.outs[0]) if self.packs and op.outs else None

    def unpack(self, packed: Packed) -> list[Value]:
        """What its hook gives back."""
        return unpacked(packed, self)

    def _rule_over(
        self, op: Op, packed: Packed, tangents: Sequence[Value | None]
    ) -> tuple[Rule | None, list[Value], dict[Value, Any]]:
        """The derivative of a call over what hooks give back, and what that is in this call."""
        _, args = op.called
        occurrences = values_in((args, op.kwargs))
        wanted = tuple(map(self.wants, occurrences))
        if not any(wanted) or all(t is None for t in tangents):
            return None, occurrences, {}
        self._passes(op)
        given = self.unpack(packed)
        types = tuple([value.type.plain.with_grad(False) for value in given])
        arrived = tuple([None if t is None else self._tangent(t) for t in tangents])
        saving = Saving(self.derivatives)
        try:
            rule = saving.rule(packed.call, arrived, types, wanted, again=self.again)
        except Refusal as refusal:
            raise locate(refusal, op) from None
        return rule, occurrences, dict(zip(rule.unpacked, given, strict=True))

    def _unpacked(self, op: Op, packed: Packed, tangents: Sequence[Value | None]) -> None:
        """A call for which hooks have packed what autograd saves: its formula reads theirs."""
        rule, occurrences, given = self._rule_over(op, packed, tangents)
        if rule is not None:
            self._apply(op, rule, occurrences, results_of(op), tangents, given)

    def _rule_of(
        self, op: Op, tangents: Sequence[Value | None]
    ) -> tuple[Rule | None, Sequence[Value]]:
        """The same for the call that an op is; it is looked up once for all that are alike."""
        if op.alike is None:
            return self._rule(op.target, op, op.args, op.kwargs, tangents)
        operands = op.operands
        key = (
            op.alike, *[v.type for v in operands], *[t and t.type for t in tangents],
            *(map(self.wants, operands) if self.narrow else ()),
        )  # fmt: skip
        known = self._known.get(key)
        if known is None:
            rule, occurrences = self._rule(op.target, op, op.args, op.kwargs, tangents)
            known = self._known[key] = rule, tuple(map(operands.index, occurrences))
        rule, places = known
        return rule, [operands[place] for place in places]

    def _rule(
        self, func: Any, op: Op, args: Tree, kwargs: Any, tangents: Sequence[Value | None]
    ) -> tuple[Rule | None, list[Value]]:
        """The derivative of a call, and the values among its arguments, each occurrence."""
        both = (args, kwargs)
        occurrences = values_in(both)
        followed = any(map(self.wants, occurrences))
        if not followed or all(t is None for t in tangents):
            return None, occurrences  # what is not followed is a leaf that the program makes
        types = {v: v.type.plain.with_grad(self.wants(v)) for v in occurrences}
        typed_args, typed_kwargs = substitute(both, types)
        given = tuple([None if t is None else self._tangent(t) for t in tangents])
        positions = frozenset(written_positions(op, occurrences))
        told = binds(op) or dispatched(op)
        known = map_values(op.result, lambda v: v.type.plain) if told else None
        try:
            rule = self.derivatives.rule(
                func,
                typed_args,
                typed_kwargs,
                given,
                positions,
                known,
                again=self.again,
                rows=self.rows,
            )
        except Refusal as refusal:
            raise locate(refusal, op) from None
        return rule, occurrences

    def _tangent(self, value: Value) -> TensorType:
        """The type of a gradient, as a formula gets it."""
        return value.type.plain if self.again else value.type.plain.with_grad(False)

    def wants(self, value: Value) -> bool:
        """Whether the gradient of a value is asked for, or goes on to what it is asked for of."""
        return value.type.requires_grad

    def now(self, gradient: Value) -> Value:
        """What a gradient is in the program, where the walk is a part of one."""
        return gradient

    def _spends(self, op: Op, rule: Rule) -> None:
        """Note that autograd's node of an op runs, if it has saved what its formula reads."""
        of_tangents = sum(tangent in rule.used for tangent in rule.tangents)
        if rule.saves or len(rule.used) > of_tangents:
            self._passes(op)

    def _passes(self, op: Op) -> None:
        """Note that autograd's node of an op runs, which has saved something.

        Raises:
            Refusal: it was let go of by a backward before.
        """
        self.spent.append(op)
        if op in self.freed:
            raise freed(op)

    def released(self, op: Op) -> Callable[[], Refusal] | None:
        """Of a Function: how a backward is refused that asks for what was let go of; it runs."""
        self.spent.append(op)
        return partial(freed, op) if op in self.freed else None

    def _apply(
        self, op: Op, rule: Rule, occurrences: Sequence[Value], results: Sequence[Value],
        tangents: Sequence[Value | None], unpacked: dict[Value, Any] | None = None,
    ) -> None:  # fmt: skip
        """Put the rule's ops in the words of this call, and give its gradients on.

        `unpacked`: what hooks gave back of what autograd had saved, which nobody checks.
        """
        if unpacked is None:
            self._spends(op, rule)
        env = rule.env()
        env.update(zip(rule.operands, occurrences, strict=True))
        env.update(zip(rule.results, results, strict=True))
        env.update(zip(rule.written, op.outs[len(results) :], strict=False))
        env.update(
            (formal, actual) for formal, actual in zip(rule.tangents, tangents, strict=True)
            if formal is not None
        )  # fmt: skip
        env |= unpacked or {}
        if unpacked is None:
            self.reread(op, rule, env, written_positions(op, list(occurrences)))
        self._put(op, rule, env)
        found = [g and env.get(g, g) for g in rule.gradients]
        self._give_on(op, occurrences, found)

    def _give_on(
        self, op: Op, operands: Sequence[Value], gradients: Sequence[Value | None]
    ) -> None:  # fmt: skip
        for value, gradient in zip(operands, gradients, strict=True):
            if gradient is not None and self.wants(value):
                self.add(value, gradient, op)
            elif self.wants(value):
                self.reached.add(value)

    def reread(self, op: Op, rule: Rule, env: dict[Value, Any], written: Sequence[int]) -> None:
        """Let the rule read what memory holds at the backward.

        Of an operand that the op writes to itself, autograd has saved a copy.
        """
        if not self.stale.overwritten:
            return
        self.stale.check_unpacked(op, self.derivatives)
        copied = {rule.operands[position] for position in written}
        read = {v for inner in rule.ops for v in inner.operands} - copied
        for formal in read.union(v for v in rule.gradients if v is not None):
            actual = env.get(formal, formal)
            env[formal] = self.stale.read(actual, op, self._replay)

    def _put(self, op: Op, rule: Rule, env: dict[Value, Any]) -> None:
        """Append the backward op of a call, whose body is the rule's ops."""
        if not rule.ops:
            return
        body = rule.over(env, op)
        used = tuple(dict.fromkeys([env[v] for v in rule.used]))
        outs = tuple(dict.fromkeys([env[g] for g in rule.given]))
        self.scope.ops.append(_backward(op, rule.name, body, used, outs))

    def _emit(self, op: Op, name: RuleName, body: list[Op], found: Iterable[Value | None]) -> None:
        inside = {out for inner in body for out in inner.outs}
        outs = tuple(dict.fromkeys(g for g in found if g is not None and g in inside))
        if not body:
            return
        used = tuple(v for v in values_used(body) if v not in inside)
        self.scope.ops.append(_backward(op, name, body, used, outs))

    def add(self, value: Value, gradient: Value, because: Op) -> None:
        """One more gradient of a value; the second and later ones are added as they arrive."""
        scope, value = self.scope, self.carried.get(value, value)
        if scope.inside is not None and value not in scope.inside:
            scope.pending.append((value, gradient, because))
            return
        before, gradient = self.gradients.get(value), self.now(gradient)
        self.gradients[value] = (
            gradient if before is None else self.now(self._call(ADD, (before, gradient), because))
        )

    def _call(self, func: Any, args: Tree, because: Op) -> Value:
        """Append one backward leaf."""
        return self.append(func, args, {}, because, ENGINE).outs[0]

    def append(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], because: Op, rule: RuleName
    ) -> Op:
        """Append one backward leaf, by its rule's name."""
        typed = map_values(args, lambda v: v.type.with_grad(False))
        result = self.inference.infer(func, typed, kwargs)
        many = isinstance(result, (tuple, list))
        outs = tuple(map(Value, result if many else [result]))
        op = Op(
            func, args, kwargs, list(outs) if many else outs[0], outs,
            origin=because.origin, because=because, rule=rule,
        )  # fmt: skip
        self.scope.ops.append(op)
        return op

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
        bases = [whole]
        for step in write.steps:
            bases.append(self._view(step, bases[-1], op))
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
            self._spends(op, rule)
        env = rule.env()
        env.update(zip(rule.operands, occurrences, strict=True))
        env |= unpacked
        if any(v in rule.results for inner in rule.ops for v in inner.operands):
            now = self.stale.read(out, op, self._replay)
            env[rule.results[0]] = self._part(write, now, op)
        env.update({t: part for t in rule.tangents if t is not None})
        if packed is None:
            self.reread(op, rule, env, [0])
        self._put(op, rule, env)
        found = [g and env[g] for g in rule.gradients]
        self._put_back(op, write, base, bases, found[0])
        for value, gradient in list(zip(occurrences, found, strict=True))[1:]:
            if gradient is not None and self.wants(value):
                self.add(value, gradient, op)

    def _part(self, write: Write, whole: Value, op: Op) -> Value:
        """The part of the base that was written, as it is afterwards."""
        for step in write.steps:
            whole = self._view(step, whole, op)
        return whole

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

    def _view(self, step: ViewStep, base: Value, op: Op) -> Value:
        args, kwargs = step.of(base)
        return self._replay(step.func, args, kwargs, step.position, op)

    def _replay(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], position: int, because: Op
    ) -> Value:
        return self.append(func, args, kwargs, because, COPY_SLICES).outs[position]

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
        passed = self.passed.union(op.outs)
        held = {g for v, g in self.gradients.items() if v not in passed}
        try:
            context = vars(op.target.context)
            with torch_api.switched(context, released=self.released(op)):
                rule = own_rule(op, tangents, held, self.outside, self.derivatives.tape)
        except Refusal as refusal:
            raise locate(refusal, op) from None
        if op.target.hooks:
            self._hooked(op, rule)
        else:
            self._apply(op, rule, rule.operands, (), tangents)

    def _hooked(self, op: Op, rule: Rule) -> None:
        """The same with hooks on its node, which may keep gradients for each other."""
        self.scope.ops += as_is(rule.ops, op, rule.name)
        self._give_on(op, rule.operands, rule.gradients)

    # ---- operators that hold programs ---------------------------------------------------------

    @property
    def symbols(self) -> Symbols:
        """The program's sizes."""
        return self.inference.symbols

    @property
    def ops(self) -> list[Op]:
        """What was appended."""
        return self.scope.ops

    def put(self, op: Op) -> None:
        """Append an op."""
        self.scope.ops.append(op)

    def through(
        self, subgraph: Subgraph, tangents: dict[Value, Value], because: Op
    ) -> "Differentiation":
        """The walk back through a program that an op holds, from the gradients of its results."""
        walk = Differentiation(
            self.derivatives, self.inference, self.table, self.keep, {},
            Stale(self.stale.overwritten),
        )  # fmt: skip
        walk.stale.meet(subgraph.ops)
        for value, tangent in tangents.items():
            walk.add(value, tangent, because)
        walk.walk(subgraph.ops)
        return walk

    # ---- kept ops ----------------------------------------------------------------------------

    def _whole(self, op: Op) -> None:
        """One backward op whose body is the derivative of the op's body."""
        body = op.body or []
        outer, inside = self.scope, made_in(body)
        self.scope = Scope(inside=inside)
        self.walk(body)
        inner, self.scope = self.scope, outer
        name = RuleName(f"derivative of {target_name(op.target)}", "derived")
        self._emit(op, name, inner.ops, [g for _, g, _ in inner.pending])
        for value, gradient, because in inner.pending:
            self.add(value, gradient, because)


def freed(op: Op) -> Refusal:
    """A second backward through an op, of which the first has let go of what was saved."""
    return locate(Refusal(
        f"the backward of {target_name(op.target)} runs a second time, and the first has let go of"
        " what it had saved; eager raises, too",
        kind="graph freed",
        do="pass retain_graph=True to the first backward(), or torch.autograd.grad",
    ), op)  # fmt: skip


def _backward(
    op: Op, name: RuleName, body: list[Op], used: tuple[Value, ...], outs: tuple[Value, ...]
) -> Op:
    """The op that is the derivative of another; its operands are what the body uses."""
    return Op(
        Backward(op, name), used, {}, list(outs), outs, origin=op.origin, below=body, because=op,
        rule=name, operands=used,
    )  # fmt: skip
