"""The walk back of a gradient that the program asks for: its ops are ops of the program.

With `create_graph` they are recorded as if the program had called them, so that a later walk goes
through them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from foretrace import torch_api
from foretrace.autograd.backward.accumulate_grad import Leaves
from foretrace.autograd.backward.differentiate import Differentiation
from foretrace.autograd.backward.in_program_hooks import HooksInside
from foretrace.autograd.backward.record_walk import WalkRecord
from foretrace.autograd.backward.unpack_hooks import name_of_unpack, other_layout
from foretrace.autograd.derivatives.derive import Derivatives
from foretrace.autograd.derivatives.registry import RuleTable, fit
from foretrace.autograd.derivatives.rule import Rule
from foretrace.autograd.eager_history.op_facts import locate, values_used
from foretrace.autograd.eager_history.version_counters import VersionCounters, overwritten_in
from foretrace.errors import Refusal
from foretrace.ir.program.op import Backward, Op, Write, target_name
from foretrace.ir.program.origin import Origin, RuleName
from foretrace.ir.values.value import Value
from foretrace.tracer.functionalization.builder import DETACH
from foretrace.tracer.functionalization.current_value import rewrite
from foretrace.tracer.recorder.autograd_hooks import Packed
from foretrace.tracer.recorder.function_target import FunctionCall, run_backward
from foretrace.tracer.recorder.recorder import Recorder

CLONE = torch.ops.aten.clone.default
SAVED_COPY = RuleName("copy that an in-place op saves", "engine")


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
        self.program = WalkRecord(recorder, again=again)
        self.seeds: list[Value] = []
        """gradients of the roots, which the program has"""
        self.due: dict[Op, list[Value]] = {}
        """by op: the values whose gradient is complete after it, where hooks see it at once"""
        self.ready: Callable[[list[Value]], None] = list.clear
        """is called with these values"""
        self.order: dict[Value, None] = {}
        """what has a gradient, by when the last part of it came"""

    def walk(self, ops: Sequence[Op]) -> None:
        """Differentiate ops from the last to the first, and report which gradients are complete."""
        for op in reversed(ops):
            self._op(op)
            self.finished.update(op.outs)
            if op in self.due:
                self.ready(self.due[op])

    def wants(self, value: Value) -> bool:
        """Whether it is on the way to what the gradient is asked of."""
        asked = self.wanted is None or value in self.wanted
        return asked and value.type.requires_grad

    def add(self, value: Value, gradient: Value, because: Op) -> None:
        """One more gradient of a value."""
        super().add(value, gradient, because)
        has = self.carried.get(value, value)
        self.order.pop(has, None)
        self.order[has] = None

    def arrived(self, gradient: Value) -> Value:
        """What a gradient is in the program, which has an op of the walk when it asks for it."""
        return self.now(gradient) if self.program.calls else self.program.current(gradient)

    def now(self, gradient: Value) -> Value:
        """The gradient in the program, which has all ops of the walk by then."""
        self.record()
        return self.program.current(gradient)

    def record(self) -> None:
        """Let the ops that the walk has added be ops of the program."""
        if self.scope.ops:
            self.program.add(self.scope.take())

    @contextmanager
    def as_program(self) -> Iterator[None]:
        """Inside, Python of the program's runs: it is watched, and may ask for a gradient."""
        with self.recorder.user_code(), torch_api.replaced({"engine": self.engine}):
            yield

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
            tensors = packed.taken_out()
        values = [self.program.value_of(tensor) for tensor in self._with_history(tensors, packed)]
        name = name_of_unpack(packed)
        for op in scope[count:]:
            op.because, op.rule, op.asked = op.because or packed.op, op.rule or name, True
        return values

    def _with_history(self, tensors: list[Any], packed: Packed) -> list[Any]:
        """What a hook gave back, with the histories of what was saved."""
        if not self.again:
            return tensors
        saved = zip(tensors, packed.values, packed.leaves, strict=True)
        return [self._carrying(*each, packed.carried) for each in saved]

    def _carrying(self, tensor: Any, saved: Value, leaf: bool, carried: dict[Value, Value]) -> Any:
        recorder, value = self.recorder, self.program.value_of(tensor)
        if value is saved or not saved.type.requires_grad:
            return tensor
        if self._laid(value) != self._laid(saved):
            raise other_layout()
        if value.type.requires_grad:
            value = recorder.call(DETACH, (value,)).outs[0]
        new = rewrite(recorder, saved, (), value, lambda: value)
        recorder.autograd.carried[new] = carried[new] = saved
        stand_in = self.program.tensors[new] = recorder.abstract(new)
        stand_in.ft_leaf = leaf
        return stand_in

    def _laid(self, value: Value) -> list[Any]:
        """How a tensor lies, by what is known of sizes."""
        sizes = (*value.type.shape, *value.type.stride)
        return [value.type.dtype, *map(self.recorder.types.symbols.simplify, sizes)]

    # ---- autograd.Functions --------------------------------------------------------------------

    def _function(self, op: Op) -> None:
        """A user's Function: its own backward runs here, as Python of the program's.

        Not where the gradient is asked of what it returns, and of nothing behind it.
        """
        own, body = set(op.outs), op.region or ()
        self.walk([o for o in body if isinstance(o.target, Write) or own.isdisjoint(o.outs)])
        self.hooks.of(op, self)
        if not op.target.followed or self.reached.union(self.gradients).isdisjoint(op.outs):
            return
        operands = [v for v in op.args if isinstance(v, Value)]
        if not any(map(self.wants, operands)):
            return
        self.record()
        recorder, name = self.recorder, RuleName(f"{op.target}.backward", "registered")
        with recorder.scope.inner(op.origin.frame) as ops:
            found = self._gradients_of(op)
            self.stale.check_unpacked(op, self.derivatives)
            fitted = fit(op.target, found, [self.program.tensor(value) for value in operands])
            values = [None if g is None else self.program.value_of(g) for g in fitted]
        inside = {out for inner in ops for out in inner.outs}
        for inner in ops:
            inner.because, inner.rule = inner.because or op, inner.rule or name
            inner.asked = True
        recorder.scope.ops.append(Op(
            Backward(op, name), tuple(v for v in values_used(ops) if v not in inside), {}, None,
            tuple(dict.fromkeys(v for v in values if v in inside and v is not None)),
            origin=self._own_origin(op.origin), below=ops, because=op, rule=name, asked=True,
        ))  # fmt: skip
        self._propagate(op, operands, values)

    def higher_order(self, op: Op) -> None:
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
        super().higher_order(op)

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
            return self.program.tensor(self.now(gradient))
        if not isinstance(value, Value) or not call.context.materialize_grads:
            return None
        return torch.zeros_like(
            self.program.tensor(value), memory_format=torch.contiguous_format
        ).detach()
