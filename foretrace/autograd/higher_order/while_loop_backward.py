"""The derivative of `while_loop`: a loop from the last round to the first.

It carries which round it is at, the gradients of what the loop carries, and the sums of those of
what every round was given; it is given what each round began with, as rows.
Source: `WhileLoopAutogradOp` in torch/_higher_order_ops/while_loop.py, torch 2.13.
"""

from collections.abc import Sequence
from typing import Any

import torch

from foretrace.autograd.higher_order.subgraph_backward import ENGINE, Through, Walk, own
from foretrace.ir.program.op import Op, RuleName, Subgraph, Value, target_name
from foretrace.operators.schemas.higher_order_schema import holder_of

aten = torch.ops.aten
LOOP = torch.ops.higher_order.while_loop
NAMES = ("while_loop_cond_graph", "while_loop_body_graph")


class Looped:
    """One loop while it is differentiated: `carried` is what a round begins with."""

    def __init__(self, op: Op, walk: Walk) -> None:
        self.op, self.walk = op, walk
        self.rule = RuleName(f"derivative of {target_name(op.target)}", "derived")
        self.stacked = (op.own or [])[0]
        self.body: Subgraph = op.args[1]
        self.begin, self.given = op.args[2:]
        params = self.body.params
        self.carried, self.shared = params[: len(self.begin)], params[len(self.begin) :]
        self.floats = [n for n, value in enumerate(self.begin) if value.type.differentiable]
        """which of what is carried has a gradient, as far as its dtype says"""
        self.summed = [v for v in self.shared if isinstance(v, Value) and v.type.requires_grad]

    def differentiated(self) -> None:
        """Append the backward ops, and give the gradients on; none where none arrives."""
        if not any(out in self.walk.gradients for out in self.op.outs):
            return
        first = self._call(aten.zeros.default, ([],), {"dtype": torch.int64})
        gradients = [self._gradient(self.op.outs[n]) for n in self.floats]
        totals = [self._call(aten.zeros_like.default, (self._operand(v),)) for v in self.summed]
        rows = [self._rows(*pair) for pair in zip(self.begin, self.stacked.outs, strict=True)]
        carried = [first, *gradients, *totals]
        outs = self._put(carried, rows)
        pairs = [(self.begin[n], out) for n, out in zip(self.floats, outs[1:], strict=False)]
        pairs += zip(map(self._operand, self.summed), outs[1 + len(gradients) :], strict=True)
        for value, gradient in pairs:
            if value.type.requires_grad:
                self.walk.add(value, gradient, self.op)

    def _operand(self, param: Value) -> Value:
        """What is given for a param that every round has."""
        value: Value = self.given[self.shared.index(param)]
        return value

    def _gradient(self, out: Value) -> Value:
        """The gradient of a result, laid out in order: zeros where none arrives."""
        found = self.walk.gradients.get(out)
        if found is None:
            kwargs = {"dtype": out.type.dtype, "device": out.type.device}
            found = self._call(aten.zeros.default, (list(out.type.shape),), kwargs)
        return self._call(aten.clone.default, (found,), {"memory_format": torch.contiguous_format})

    def _rows(self, begin: Value, made: Value) -> Value:
        """What the rounds have begun with, and what the last one has made."""
        row = self._call(aten.unsqueeze.default, (begin, 0))
        return self._call(aten.cat.default, ([row, made],))

    def _call(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> Value:
        return self.walk.append(func, args, kwargs or {}, self.op, self.rule).outs[0]

    # ---- the loop -------------------------------------------------------------------------------

    def _put(self, carried: Sequence[Value], rows: Sequence[Value]) -> list[Value]:
        """Append the loop; what it gives."""
        formals = [Value(value.type) for value in carried]
        params = (*formals, *rows, *self.shared)
        count = self.stacked.outs[0].type.shape[0]
        index = formals[0]
        scalars = self.walk.through(Subgraph(NAMES[0], params, (), ()), {}, self.op)
        more = scalars.append(aten.lt.Scalar, (index, count), {}, self.op, self.rule).outs[0]
        goes_on = Subgraph(NAMES[0], params, tuple(scalars.ops), more)
        programs = [goes_on, self._round(params, formals, rows, count)]
        holder = holder_of(LOOP)
        assert holder is not None
        args = holder.join(self.op.args, programs, [[*carried], [*rows, *self.given]])
        outs = [Value(value.type) for value in carried]
        self.walk.put(Op(
            LOOP, args, {}, list(outs), tuple(outs), origin=self.op.origin, because=self.op,
            rule=self.rule,
        ))  # fmt: skip
        return outs

    def _round(
        self, params: tuple[Any, ...], formals: Sequence[Value], rows: Sequence[Value], count: Any
    ) -> Subgraph:
        """One round: that of the forward again, and the way back through it."""
        index, gradients, totals = (
            formals[0],
            formals[1:][: len(self.floats)],
            formals[1 + len(self.floats) :],
        )
        results = [self.body.result[n] for n in self.floats]
        pairs = zip(results, gradients, strict=True)
        walk = self.walk.through(
            self.body, {v: grad for v, grad in pairs if v.type.requires_grad}, self.op
        )
        back = self._begun(index, rows, count)
        result = list[Value]()
        for n in self.floats:
            param = self.carried[n]
            found = walk.gradients.get(param) if param.type.requires_grad else None
            result.append(self._in_order(own(walk, found, param, result, self.op, self.rule), walk))
        for param, total in zip(self.summed, totals, strict=True):
            more = walk.gradients.get(param) or self._zeros_like(walk, param)
            result += walk.append(aten.add.Tensor, (more, total), {}, self.op, ENGINE).outs
        after = walk.append(aten.add.Tensor, (index, 1), {}, self.op, self.rule).outs
        ops = (*back, *self.body.ops, *walk.ops)
        return Subgraph(NAMES[1], params, ops, (*after, *result))

    def _begun(self, index: Value, rows: Sequence[Value], count: Any) -> list[Op]:
        """The ops that take what the round began with out of the rows, from the last on."""
        walk = self.walk.through(Subgraph("", (), (), ()), {}, self.op)
        place = walk.append(aten.rsub.Scalar, (index, count - 1), {}, self.op, self.rule).outs[0]
        ops = list(walk.ops)
        for param, row in zip(self.carried, rows, strict=True):
            ops.append(Op(
                aten.index.Tensor, (row, [place]), {}, param, (param,), origin=self.op.origin,
                because=self.op, rule=self.rule,
            ))  # fmt: skip
        return ops

    def _in_order(self, gradient: Value, walk: Through) -> Value:
        """A gradient that lies as the next round is given it."""
        if gradient.type.same_layout(gradient.type.contiguous()):
            return gradient
        layout = {"memory_format": torch.contiguous_format}
        return walk.append(aten.clone.default, (gradient,), layout, self.op, self.rule).outs[0]

    def _zeros_like(self, walk: Through, param: Value) -> Value:
        return walk.append(aten.zeros_like.default, (param,), {}, self.op, self.rule).outs[0]
