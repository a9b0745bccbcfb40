"""The derivative of `scan`: a scan from the last row to the first.

It carries the gradients of what the scan carries, and the sums of those of its additional inputs;
it returns the gradients of the rows. A second scan computes again what each round began with.
Source: `ScanAutogradOp` in torch/_higher_order_ops/scan.py, torch 2.13.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from foretrace.autograd.eager_history.op_facts import locate
from foretrace.autograd.higher_order.flex_attention_backward import attended
from foretrace.autograd.higher_order.subgraph_backward import (
    ENGINE,
    SubgraphBackward,
    Through,
    Walk,
    own,
)
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op, Subgraph, target_name
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value
from foretrace.operators.schemas.higher_order_schema import higher_order_schema_of
from foretrace.tracer.higher_order.views_as_copies import in_copies

aten = torch.ops.aten


def differentiate(op: Op, walk: Walk) -> None:
    """Append the derivative of an operator that holds programs, and give its gradients on.

    Raises:
        Refusal: torch has none, or none that a graph can have.
    """
    holder = higher_order_schema_of(op.target)
    walk.stale.check_higher_order(op)
    if op.target is torch.ops.higher_order.flex_attention:
        return attended(op, walk)
    if holder is None or not holder.trains:
        raise locate(
            Refusal(
                f"torch has no derivative of {target_name(op.target)}",
                kind="no derivative",
                do=("call the function that it holds", "or run it under torch.no_grad()"),
            ),
            op,
        )
    if holder.loops:
        raise locate(_no_derivative(op), op)
    if holder.carried is not None:
        return _Scanned(op, holder, walk).differentiated()
    return SubgraphBackward(op, holder, walk).differentiated()


def _no_derivative(op: Op) -> Refusal:
    return Refusal(
        f"the backward of {target_name(op.target)} reads what each round has made, and how many"
        " rounds there are is not known before it runs",
        kind="no derivative",
        do=(
            "run it under torch.no_grad(), or detach its result",
            "or write a loop of fixed length: in Python, or by scan",
        ),
    )


class _Scanned(SubgraphBackward):
    """One scan while it is differentiated: `init` is carried, `xs` are rows."""

    def differentiated(self) -> None:
        """Append the backward ops, and give the gradients on."""
        (program,) = self.programs
        init, xs, additional = self.groups
        carried, _, shared = self._params(program)
        formals = [Value(self._formal_of(v)) for v in self.followed]
        sums = [param for param in shared if _followed(param)]
        totals = [Value(param.type.with_grad(False)) for param in sums]
        results = [program.result[self.op.result.index(v)] for v in self.followed]
        pairs = zip(results, formals, strict=True)
        walk = self.walk.through(program, {v: t for v, t in pairs if v.type.requires_grad}, self.op)
        backward = self._round(program, walk, formals, sums, totals)
        begun = self._begun(program, init, xs, additional)
        count = sum(_followed(v) for v in carried)
        first = [*self.tangents[:count], *(self._zeros(v.type) for v in totals)]
        rows = [self._flipped(v) for v in (*self.tangents[count:], *xs, *begun)]
        outs = self._put(backward, first, rows, additional)
        self._propagate(outs, init, xs, additional)

    def _formal_of(self, out: Value) -> TensorType:
        """The type of a result's gradient in a round: of what is carried, the whole."""
        if self.op.result.index(out) < len(self.groups[0]):
            return out.type.with_grad(False)
        return self._formal(out.type.with_grad(False))

    def _round(
        self,
        program: Subgraph,
        walk: Through,
        formals: list[Value],
        sums: Sequence[Value],
        totals: Sequence[Value],
    ) -> Subgraph:
        """One round of the backward."""
        carried, rows, shared = self._params(program)
        result = list[Value]()
        for param in carried:
            if _followed(param):
                result.append(own(walk, param, result, self.op, self.rule))
        for param, total in zip(sums, totals, strict=True):
            more = walk.gradients.get(param) or self._zeros_like(walk, param)
            result += walk.append(aten.add.Tensor, (total, more), {}, self.op, ENGINE).outs
        for param in rows:
            if _followed(param):
                result.append(own(walk, param, result, self.op, self.rule))
        count = sum(map(_followed, carried))
        params = [*formals[:count], *totals, *formals[count:], *rows, *carried, *shared]
        ops = (*program.ops, *walk.ops)
        whole = Subgraph(program.name, tuple(params), ops, tuple(result))
        return in_copies(whole, self.walk.inference)

    def _begun(
        self, program: Subgraph, init: list[Value], xs: list[Value], additional: list[Value]
    ) -> list[Value]:
        """What each round of the forward began with: the rows of a second scan."""
        carried = self._params(program)[0]
        copies, kept = list[Op](), list[Value]()
        for param in carried:
            if param.type.stride != param.type.contiguous().stride:
                raise locate(
                    Refusal(
                        f"the backward of {target_name(self.op.target)} has what is carried in"
                        f" rows; {param.type!r} is carried with strides {list(param.type.stride)}",
                        kind="no derivative",
                        do="call contiguous() on what it begins with",
                    ),
                    self.op,
                )
            kept.append(Value(param.type.with_grad(False)))
            copies.append(Op(
                aten.clone.default, (param,), {}, kept[-1], (kept[-1],),
                origin=self.op.origin, because=self.op, rule=self.rule,
            ))  # fmt: skip
        result = (*program.result[: len(carried)], *kept)
        again = Subgraph(program.name, program.params, (*program.ops, *copies), result)
        return self._put(in_copies(again, self.walk.inference), init, xs, additional)[
            len(carried) :
        ]

    def _put(
        self, program: Subgraph, first: list[Value], rows: list[Value], additional: list[Value]
    ) -> list[Value]:
        """Append a scan; what it gives."""
        args = self.holder.join(self.op.args, [program], [first, rows, additional])
        outs = [Value(v.type.with_grad(False)) for v in program.result[: len(first)]]
        outs += [Value(self._stacked(v.type, rows)) for v in program.result[len(first) :]]
        self.walk.put(Op(
            self.op.target, args, self.op.kwargs, list(outs), tuple(outs),
            origin=self.op.origin, because=self.op, rule=self.rule,
        ))  # fmt: skip
        return outs

    def _stacked(self, type: TensorType, rows: Sequence[Value]) -> TensorType:
        return type.with_grad(False).but(shape=(rows[0].type.shape[0], *type.shape)).contiguous()

    def _flipped(self, value: Value) -> Value:
        return self.walk.append(aten.flip.default, (value, [0]), {}, self.op, self.rule).outs[0]

    def _zeros_like(self, walk: Through, param: Value) -> Value:
        return walk.append(aten.zeros_like.default, (param,), {}, self.op, self.rule).outs[0]

    def _propagate(
        self,
        outs: list[Value],
        init: Iterable[Value],
        xs: Iterable[Value],
        additional: Iterable[Value],
    ) -> None:
        """Add the gradients of the operands that autograd follows, in their order."""
        found = iter(outs)
        for value in init:
            gradient = next(found) if value.type.differentiable else None
            if gradient is not None and _followed(value):
                self.walk.add(value, gradient, self.op)
        sums = [(value, next(found)) for value in additional if _followed(value)]
        for value in filter(_followed, xs):
            self.walk.add(value, self._flipped(next(found)), self.op)
        for value, gradient in sums:
            self.walk.add(value, gradient, self.op)


def _followed(value: Any) -> bool:
    """Whether an operand, which may be a size, is a tensor that autograd follows."""
    return isinstance(value, Value) and value.type.requires_grad
