"""The derivative of one call in a walk: its rule, and the rule's ops over the call's values."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch

from foretrace.autograd.backward.gradient_hooks import Hooks
from foretrace.autograd.backward.gradient_map import Gradients, backward_op
from foretrace.autograd.backward.unpack_hooks import unpacked
from foretrace.autograd.derivatives.derive import Derivatives
from foretrace.autograd.derivatives.formula_tracer import Tape
from foretrace.autograd.derivatives.rule import Rule, TypedCall
from foretrace.autograd.derivatives.saved_tensors import Saving
from foretrace.autograd.eager_history.op_facts import locate, written_positions
from foretrace.autograd.eager_history.version_counters import VersionCounters
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op, target_name
from foretrace.ir.program.walk import binds
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value, map_values, substitute, values_in
from foretrace.operators.abstract_tensors.subclass_types import dispatched
from foretrace.operators.inference.infer import Inference
from foretrace.operators.schemas.cache import lasts
from foretrace.python_state.reads.backward_reads import BackwardReads
from foretrace.tracer.recorder.autograd_hooks import Packed


class Formulas(Gradients):
    """Derivatives of calls, over what each call's memory holds when the backward runs."""

    def __init__(
        self,
        derivatives: Derivatives,
        inference: Inference,
        outside: dict[int, Value],
        stale: VersionCounters,
        hooks: Hooks | None = None,
    ) -> None:
        super().__init__(inference)
        self.reads: BackwardReads | None = None
        """what watches backwards and hooks of the user's, where nobody else does"""
        self.derivatives = derivatives
        self.outside = outside
        """by id, the real tensors behind inputs, and what they hold when the backward runs"""
        self.stale, self.hooks = stale, hooks or Hooks(())
        self.again = self.narrow = False
        """whether the gradients are differentiated once more; whether only some are wanted"""
        self.rows: int | None = None
        """how many gradients there are at once, as the rows of each"""
        self.freed = set[Op]()
        """ops whose saved tensors a backward inside the program has released"""
        self.spent = list[Op]()
        """ops with saved tensors whose node the walk has run"""
        self.packs: dict[Value, Packed] = {}
        """by the first result of a call, what pack hooks returned for its saved tensors"""
        self.reached: set[Value] = set()
        """values at which torch's engine arrives without a gradient"""
        self._known: dict[tuple[Any, ...], tuple[Rule | None, tuple[int, ...]]] = {}
        """by equal calls: the rule, and which operand each occurrence is"""

    def user_tape(self, device: torch.device) -> Tape:
        """What records a user's backward or hook."""
        return self.derivatives.runs.user_tape(device, self.outside, self._watched)

    def _watched(self) -> AbstractContextManager[None]:
        """Where Python of the user's runs."""
        return nullcontext() if self.reads is None else self.reads.during()

    @contextmanager
    def _around(self, func: Any) -> Iterator[None]:
        """Where a derivative is asked for; that of an operator of the user's is Python of his."""
        if self.reads is None or lasts(func):
            yield
        else:
            with self.reads.during(), self.reads.of_users_alone():
                yield

    # ---- which rule ---------------------------------------------------------------------------

    def _rule_of(
        self, op: Op, tangents: Sequence[Value | None]
    ) -> tuple[Rule | None, Sequence[Value]]:
        """The same for the call that an op is; it is looked up once for all equal calls."""
        if op.outcome is None:
            return self._rule(op.target, op, op.args, op.kwargs, tangents)
        operands = op.operands
        key = (
            op.outcome,
            *[v.type for v in operands],
            *[t and t.type for t in tangents],
            *(map(self.wants, operands) if self.narrow else ()),
        )
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
        arrived = tuple([None if t is None else self._tangent(t) for t in tangents])
        positions = frozenset(written_positions(op, occurrences))
        typed_by_call = binds(op) or dispatched(op)
        known = map_values(op.result, lambda v: v.type.plain) if typed_by_call else None
        try:
            call = TypedCall(func, typed_args, typed_kwargs, positions, known)
            with self._around(func):
                rule = self.derivatives.rule(call, arrived, again=self.again, rows=self.rows)
        except Refusal as refusal:
            raise locate(refusal, op) from None
        return rule, occurrences

    def _tangent(self, value: Value) -> TensorType:
        """The type of a gradient, as a formula gets it."""
        return value.type.plain if self.again else value.type.plain.with_grad(False)

    def packed(self, op: Op) -> Packed | None:
        """What pack hooks returned for the tensors that autograd saved for an op."""
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
        self._run_node(op)
        values = self.unpack(packed)
        types = tuple([value.type.plain.with_grad(False) for value in values])
        arrived = tuple([None if t is None else self._tangent(t) for t in tangents])
        saving = Saving(self.derivatives)
        try:
            rule = saving.rule(packed.call, arrived, types, wanted, again=self.again)
        except Refusal as refusal:
            raise locate(refusal, op) from None
        return rule, occurrences, dict(zip(rule.unpacked, values, strict=True))

    # ---- released saved tensors ----------------------------------------------------------------

    def _run_if_saved(self, op: Op, rule: Rule) -> None:
        """Note that an op's autograd node runs, if it has saved tensors that its formula reads."""
        of_tangents = sum(tangent in rule.used for tangent in rule.tangents)
        if rule.saves or len(rule.used) > of_tangents:
            self._run_node(op)

    def _run_node(self, op: Op) -> None:
        """Note that an op's autograd node runs, which has saved tensors.

        Raises:
            Refusal: an earlier backward has released its saved tensors.
        """
        self.spent.append(op)
        if op in self.freed:
            raise freed(op)

    def released(self, op: Op) -> Callable[[], Refusal] | None:
        """For a Function, whose node runs: the refusal of a read of released saved tensors."""
        self.spent.append(op)
        return partial(freed, op) if op in self.freed else None

    # ---- its ops ------------------------------------------------------------------------------

    def _apply(
        self, op: Op, rule: Rule, occurrences: Sequence[Value], results: Sequence[Value],
        tangents: Sequence[Value | None], unpacked: dict[Value, Any] | None = None,
    ) -> None:  # fmt: skip
        """Append the rule's ops over the values of this call, and propagate its gradients.

        `unpacked`: what unpack hooks returned, which no version counter checks.
        """
        if unpacked is None:
            self._run_if_saved(op, rule)
        env = rule.env()
        env.update(zip(rule.operands, occurrences, strict=True))
        env.update(zip(rule.results, results, strict=True))
        env.update(zip(rule.written, op.outs[len(results) :], strict=False))
        env.update(
            (formal, actual)
            for formal, actual in zip(rule.tangents, tangents, strict=True)
            if formal is not None
        )
        env |= unpacked or {}
        if unpacked is None:
            self.reread(op, rule, env, written_positions(op, list(occurrences)))
        self._put(op, rule, env)
        found = [g and env.get(g, g) for g in rule.gradients]
        self._propagate(op, occurrences, found)

    def _propagate(
        self, op: Op, operands: Sequence[Value], gradients: Sequence[Value | None]
    ) -> None:
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
        outs = tuple(dict.fromkeys([env[g] for g in rule.computed]))
        self.scope.ops.append(backward_op(op, rule.name, body, used, outs))


def freed(op: Op) -> Refusal:
    """The refusal of a second backward through an op whose saved tensors the first has released."""
    return locate(
        Refusal(
            f"the backward of {target_name(op.target)} runs a second time, and the first has let go"
            " of what it had saved; eager raises, too",
            kind="graph freed",
            do="pass retain_graph=True to the first backward(), or torch.autograd.grad",
        ),
        op,
    )
