"""The walk back of a gradient that the program asks for: its ops are ops of the program.

With `create_graph` they are recorded as if the program had called them, so that a later walk goes
through them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from foretrace import torch_api
from foretrace.autograd.backward.differentiate import Differentiation
from foretrace.autograd.backward.in_program_hooks import HooksInside
from foretrace.autograd.backward.leaf_protocol import Leaves
from foretrace.autograd.backward.unpack_hooks import name_of_unpack, other_layout
from foretrace.autograd.derivatives.derive import Derivatives
from foretrace.autograd.derivatives.registry import RuleTable, fit
from foretrace.autograd.derivatives.rule import Rule
from foretrace.autograd.eager_history.op_facts import locate, values_used
from foretrace.autograd.eager_history.version_counters import (
    VersionCounters,
    overwritten_in,
    view_positions_of,
)
from foretrace.errors import Refusal
from foretrace.ir.program.op import (
    Backward,
    Op,
    Origin,
    Rewriter,
    RuleName,
    SharedBody,
    Subgraph,
    Value,
    Write,
    target_name,
    values_in,
)
from foretrace.ir.program.walk import every_op, subgraphs_of
from foretrace.tracer.functionalization.alias import link
from foretrace.tracer.functionalization.autograd_leaves import value_of
from foretrace.tracer.functionalization.builder import DETACH
from foretrace.tracer.functionalization.current_value import rewrite
from foretrace.tracer.recorder.autograd_hooks import Packed
from foretrace.tracer.recorder.function_target import FunctionCall, run_backward
from foretrace.tracer.recorder.recorder import Recorder
from foretrace.tracer.subclasses.dispatch import known_as

CLONE = torch.ops.aten.clone.default
SAVED_COPY = RuleName("copy that an in-place op saves", "engine")


class _OwnSubgraphs(Rewriter):
    """Copies ops of the same values, with their subgraphs.

    A part of these is the forward's, which autograd follows.
    """

    def out(self, value: Value) -> Value:
        """The same."""
        return value

    def subgraph(self, subgraph: Subgraph) -> Subgraph:
        """A copy."""
        return replace(subgraph, ops=tuple(self.ops(subgraph.ops)))

    def below(self, op: Op) -> list[Op] | SharedBody | None:
        """A body of the op's own is copied; others read values of a shared one."""
        return op.below if op.own is None else self.ops(op.own)


class InProgramBackward(Differentiation):
    """A walk whose ops are ops of the program.

    Args:
        recorder: what records the program.
        leaves: its leaves.
        engine: what answers Python of the program's that runs in the walk.
        again: whether the gradients may be differentiated once more.
        wanted: the values on whose way to the roots gradients are computed; None: all.
    """

    def __init__(
        self,
        recorder: Recorder,
        leaves: Leaves,
        engine: Callable[..., Any],
        *,
        again: bool,
        wanted: set[Value] | None,
    ) -> None:
        semantics: Any = recorder.semantics
        derivatives: Derivatives = semantics.derivatives
        table: RuleTable = semantics.table
        super().__init__(
            derivatives,
            semantics.inference,
            table,
            lambda _: False,
            leaves.outside(),
            VersionCounters(overwritten_in(recorder)),
        )
        histories = recorder.autograd
        self.inside = HooksInside(histories.hooks, histories.retained)
        self.hooks: Any = self.inside
        self.recorder, self.again, self.wanted, self.engine = recorder, again, wanted, engine
        self.narrow = wanted is not None
        self.packs, self.carried = histories.packs, histories.carried
        self.tensors: dict[Value, Any] = {}
        """what stands for gradients in the program"""
        self._makers: dict[Value, Op] = {}
        self._origins: dict[int, Origin] = {}
        self.given: list[Value] = []
        """gradients of the roots, which the program has"""
        self.due: dict[Op, list[Value]] = {}
        """what has all of its gradient after an op, where the program is told of it at once"""
        self.ready: Callable[[list[Value]], None] = list.clear
        """tells it"""
        self.order: dict[Value, None] = {}
        """what has a gradient, by when the last part of it came"""

    def walk(self, ops: Sequence[Op]) -> None:
        """Differentiate ops from the last to the first, and tell what is complete."""
        for op in reversed(ops):
            self._op(op)
            self.passed.update(op.outs)
            if op in self.due:
                self.ready(self.due[op])

    def wants(self, value: Value) -> bool:
        """Whether it is on the way to what the gradient is asked of."""
        asked = self.wanted is None or value in self.wanted
        return asked and value.type.requires_grad

    def add(self, value: Value, gradient: Value, because: Op) -> None:
        """One more gradient of a value."""
        super().add(value, gradient, because)
        self.order.pop(value, None)
        self.order[value] = None

    def arrived(self, gradient: Value) -> Value:
        """What a gradient is in the program, which has an op of the walk when it asks for it."""
        return self.now(gradient) if self._calls else self._in_program(gradient)

    def now(self, gradient: Value) -> Value:
        """The gradient in the program, which has all ops of the walk by then."""
        self.record()
        return self._in_program(gradient)

    @property
    def _calls(self) -> bool:
        """Whether ops of the walk are calls: to differentiate again, or for what a class does."""
        return self.again or bool(self.recorder.aliasing.in_subclasses)

    def _in_program(self, gradient: Value) -> Value:
        known = self.tensors.get(gradient)
        return gradient if known is None else value_of(known, self.recorder)

    def value_of(self, tensor: Any) -> Value:
        """What a tensor of the program's has now."""
        known = known_as(tensor, self.recorder)
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
        ops = self.scope.take()
        if self._calls:
            self._call_all(ops)
            return
        found = [*every_op(ops)]
        if any(map(subgraphs_of, found)):
            held = [any(map(subgraphs_of, every_op((op,)))) for op in ops]
            copies = _OwnSubgraphs()
            ops = [copies.op(op) if holds else op for op, holds in zip(ops, held, strict=True)]
            found = [*every_op(ops)]
        for op in found:
            op.origin, op.asked = self._unfollowed_origin(op.origin), True
            for out in op.outs:
                self._makers[out] = op
        self.recorder.scope.ops.extend(ops)

    def _unfollowed_origin(self, origin: Origin) -> Origin:
        found = self._origins.get(id(origin))
        if found is None:
            found = replace(origin, grad_mode=False, checkpoint=None)
            self._origins[id(origin)], self._origins[id(found)] = found, found
        return found

    def reread(self, op: Op, rule: Rule, env: dict[Value, Any], written: Sequence[int]) -> None:
        """As for a walk that nobody goes through; else what autograd has saved a copy of is one.

        The copy has the history that the operand had, and no write reaches it.
        """
        super().reread(op, rule, env, written)
        for formal in (rule.operands[position] for position in written if self.again):
            if formal in rule.used:
                env[formal] = self.append(CLONE, (env[formal],), {}, op, SAVED_COPY).outs[0]

    def unpack(self, packed: Packed) -> list[Value]:
        """What a hook gives back of what autograd saved: its Python is the program's."""
        self.record()
        scope = self.recorder.scope.ops
        count = len(scope)
        with self.as_program():
            given = packed.taken_out()
        values = [self.value_of(tensor) for tensor in self._with_history(given, packed)]
        name = name_of_unpack(packed)
        for op in scope[count:]:
            op.because, op.rule, op.asked = op.because or packed.op, op.rule or name, True
        return values

    def _with_history(self, given: list[Any], packed: Packed) -> list[Any]:
        """What a hook gave back, with the histories of what was saved."""
        if not self.again:
            return given
        saved = zip(given, packed.values, packed.leaves, strict=True)
        return [self._carrying(*each, packed.carried) for each in saved]

    def _carrying(self, tensor: Any, saved: Value, leaf: bool, carried: dict[Value, Value]) -> Any:
        recorder, given = self.recorder, self.value_of(tensor)
        if given is saved or not saved.type.requires_grad:
            return tensor
        if self._laid(given) != self._laid(saved):
            raise other_layout()
        if given.type.requires_grad:
            given = recorder.call(DETACH, (given,)).outs[0]
        new = rewrite(recorder, saved, (), given, lambda: given)
        recorder.autograd.carried[new] = carried[new] = saved
        made = self.tensors[new] = recorder.abstract(new)
        made.ft_leaf = leaf
        return made

    def _laid(self, value: Value) -> list[Any]:
        """How a tensor lies, by what is known of sizes."""
        sizes = (*value.type.shape, *value.type.stride)
        return [value.type.dtype, *map(self.recorder.types.symbols.simplify, sizes)]

    # ---- recorded as the program's own calls --------------------------------------------------

    def _call_all(self, ops: Iterable[Op]) -> None:
        for op in ops:
            if isinstance(op.target, Backward):
                self._call_body(op)
            else:
                self._call_op(op)

    def _call_body(self, op: Op) -> None:
        recorder = self.recorder
        with recorder.scope.inner(op.origin.frame) as body:
            for inner in op.body or ():
                self._call_op(inner)
        made = {out for inner in body for out in inner.outs}
        outs = tuple(v for out in op.outs if (v := self._value(out)) in made)
        recorder.scope.ops.append(Op(
            op.target, tuple(map(self._value, op.operands)), {}, list(outs), outs,
            origin=replace(op.origin, grad_mode=self.again, checkpoint=None), below=body,
            because=op.because, rule=op.rule, asked=True,
        ))  # fmt: skip

    def _call_op(self, op: Op) -> None:
        """Record an op of a formula, as if the program had called it."""
        scope = self.recorder.scope.ops
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
        self.record()
        recorder, name = self.recorder, RuleName(f"{op.target}.backward", "registered")
        operands = [v for v in op.args if isinstance(v, Value)]
        with recorder.scope.inner(op.origin.frame) as ops:
            found = self._gradients_of(op)
            self.stale.check_unpacked(op, self.derivatives)
            fitted = fit(op.target, found, [self.tensor(value) for value in operands])
            values = [None if g is None else self.value_of(g) for g in fitted]
        made = {out for inner in ops for out in inner.outs}
        for inner in ops:
            inner.because, inner.rule = inner.because or op, inner.rule or name
            inner.asked = True
        recorder.scope.ops.append(Op(
            Backward(op, name), tuple(v for v in values_used(ops) if v not in made), {}, None,
            tuple(dict.fromkeys(v for v in values if v in made and v is not None)),
            origin=self._own_origin(op.origin), below=ops, because=op, rule=name, asked=True,
        ))  # fmt: skip
        self._give_on(op, operands, values)

    def held(self, op: Op) -> None:
        """An operator that holds programs.

        Raises:
            Refusal: it is a scan that only a joint cut opens.
        """
        if op.own:
            raise locate(
                Refusal(
                    f"a gradient through {target_name(op.target)}, which a program asks for itself",
                    kind="autograd inside",
                    do=(
                        'return the loss, and let cut("joint") compute it',
                        "or write a loop of fixed length in Python",
                    ),
                ),
                op,
            )
        super().held(op)

    def _own_origin(self, origin: Origin) -> Origin:
        return replace(origin, grad_mode=self.again, checkpoint=None)

    def _gradients_of(self, op: Op) -> list[Any]:
        """What a Function's backward gives for its tensors, and the hooks of its node make of it.

        Source: call_function in torch/csrc/autograd/engine.cpp.
        """
        call: FunctionCall = op.target
        results = op.result if isinstance(op.result, tuple) else (op.result,)
        arrived = tuple([self._arrived(value, call) for value in results])
        seen: dict[str, Any] = {"released": self.released(op)}
        seen |= {"carry": self._with_history} if self.again else {}
        with self.as_program(), torch_api.switched(vars(call.context), **seen):
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

    def __init__(self, walk: InProgramBackward) -> None:
        super().__init__()
        self.walk = walk

    def __getitem__(self, value: Value) -> Any:
        return self.walk.tensor(value)
