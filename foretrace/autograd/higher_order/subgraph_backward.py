"""The derivative of an operator that holds programs: it holds the derivatives of these.

A program's derivative runs the program again, from its operands and the gradients of its results,
as torch's own does: `CondAutogradOp`, `MapAutogradOp` and `BaseHOPFunction` in
torch/_higher_order_ops, torch 2.13.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from foretrace.autograd.eager_history.version_counters import VersionCounters
from foretrace.ir.program.op import Op, Subgraph, target_name
from foretrace.ir.program.origin import RuleName
from foretrace.ir.program.walk import in_bodies
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value
from foretrace.operators.inference.infer import Inference
from foretrace.operators.schemas.higher_order_schema import Groups, HigherOrderSchema
from foretrace.operators.schemas.schema import schema_of

aten = torch.ops.aten
ENGINE = RuleName("accumulate", "engine")


class Walk(Protocol):
    """A backward walk, as `Differentiation` is one."""

    gradients: dict[Value, Value]
    stale: VersionCounters
    inference: Inference

    @property
    def symbols(self) -> Symbols:
        """The program's sizes."""

    def add(self, value: Value, gradient: Value, because: Op) -> None:
        """One more gradient of a value."""

    def append(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], because: Op, rule: RuleName
    ) -> Op:
        """One more op of the backward."""

    def put(self, op: Op) -> None:
        """Append an op."""

    def through(self, subgraph: Subgraph, tangents: dict[Value, Value], because: Op) -> "Through":
        """The walk back through a program that an operator holds."""


class Through(Walk, Protocol):
    """A walk that has ended."""

    @property
    def ops(self) -> list[Op]:
        """What it has appended."""


class SubgraphBackward:
    """One call while it is differentiated."""

    def __init__(self, op: Op, holder: HigherOrderSchema, walk: Walk) -> None:
        self.op, self.holder, self.walk = op, holder, walk
        self.rule = RuleName(f"derivative of {target_name(op.target)}", "derived")
        self.programs: list[Subgraph] = holder.programs(op.args)
        self.groups = holder.split(op.args)
        self.followed = [v for v in op.outs if v.type.requires_grad]
        self.tangents = [walk.gradients.get(v) or self._zeros(v.type) for v in self.followed]
        place = holder.rows if holder.stacks else None
        self.place: int = len(self.groups) - 1 if place is None else place
        """the group that the gradients of results join"""

    def differentiated(self) -> None:
        """Append the backward op, and give its gradients on."""
        formals = [Value(self._formal(tangent.type)) for tangent in self.tangents]
        derivatives = self._of_one_layout(
            [self._derivative(program, formals) for program in self.programs]
        )
        groups = self._with_tangents(self.groups, self.tangents)
        args = self.holder.join(self.op.args, derivatives, groups)
        outs = tuple(Value(self._result_type(v.type)) for v in derivatives[-1].result)
        self.walk.put(Op(
            self.op.target, args, self.op.kwargs, list(outs), outs,
            origin=self.op.origin, because=self.op, rule=self.rule,
        ))  # fmt: skip
        found = iter(outs)
        for place, group in enumerate(self.groups):
            for value in group:
                if isinstance(value, Value) and value.type.requires_grad:
                    self._give(value, next(found), summed=place != self.place)

    def _with_tangents(self, groups: Groups, tangents: Sequence[Value]) -> Groups:
        """The groups of operands, and those of gradients where they belong."""
        return [
            [*group, *tangents] if place == self.place else group
            for place, group in enumerate(groups)
        ]

    # ---- one program ----------------------------------------------------------------------------

    def _derivative(self, program: Subgraph, formals: list[Value]) -> Subgraph:
        """The program that gives a gradient for each operand that autograd follows."""
        results = [program.result[self.op.result.index(v)] for v in self.followed]
        pairs = zip(results, formals, strict=True)
        tangents = {v: t for v, t in pairs if v.type.requires_grad}
        walk = self.walk.through(program, tangents, self.op)
        params, gradients = self._params(program), list[Value]()
        for place, group in enumerate(self.groups):
            for value, param in zip(group, params[place], strict=True):
                if isinstance(value, Value) and value.type.requires_grad:
                    gradients.append(own(walk, param, gradients, self.op, self.rule))
        inside = [param for group in self._with_tangents(params, formals) for param in group]
        ops = (*program.ops, *walk.ops)
        return Subgraph(program.name, tuple(inside), ops, tuple(gradients))

    def _params(self, program: Subgraph) -> Groups:
        """The params of a program, as the operator groups the operands."""
        rest = iter(program.params)
        return [[next(rest) for _ in group] for group in self.groups]

    def _of_one_layout(self, programs: list[Subgraph]) -> list[Subgraph]:
        """The programs with gradients of one layout, whichever of them runs."""
        columns = zip(*(program.result for program in programs), strict=True)
        differ = [len({value.type.stride for value in column}) > 1 for column in columns]
        return [self._contiguous(program, differ) for program in programs]

    def _contiguous(self, program: Subgraph, those: Sequence[bool]) -> Subgraph:
        result, ops = list(program.result), list(program.ops)
        for place, value in enumerate(result):
            if those[place]:
                result[place] = new = Value(value.type.contiguous())
                layout = {"memory_format": torch.contiguous_format}
                ops.append(Op(
                    aten.clone.default, (value,), layout, new, (new,),
                    origin=self.op.origin, because=self.op, rule=self.rule,
                ))  # fmt: skip
        return replace(program, ops=tuple(ops), result=tuple(result))

    # ---- gradients ------------------------------------------------------------------------------

    def _formal(self, type: TensorType) -> TensorType:
        """The type of a result's gradient inside a program."""
        if self.holder.stacks:
            type = type.but(shape=type.shape[1:], stride=type.stride[1:])
        return type

    def _result_type(self, type: TensorType) -> TensorType:
        """The type of a gradient that the operator gives, where a program gives it so."""
        if not self.holder.stacks:
            return type
        count = self.tangents[0].type.shape[0]
        return type.but(shape=(count, *type.shape)).contiguous()

    def _give(self, value: Value, gradient: Value, *, summed: bool) -> None:
        """Add a gradient; of an operand that each call has got, the engine adds up those of all."""
        if self.holder.stacks and summed:
            args = (gradient, [0], True)
            (total,) = self.walk.append(aten.sum.dim_IntList, args, {}, self.op, ENGINE).outs
            sizes = (total, list(value.type.shape))
            (gradient,) = self.walk.append(aten.view.default, sizes, {}, self.op, ENGINE).outs
        self.walk.add(value, gradient, self.op)

    def _zeros(self, type: TensorType) -> Value:
        """What the engine makes for a result of which no gradient arrives."""
        kwargs = {"dtype": type.dtype, "device": type.device}
        args = (list(type.shape),)
        return self.walk.append(aten.zeros.default, args, kwargs, self.op, ENGINE).outs[0]


def own(walk: Through, param: Value, others: Sequence[Value], because: Op, rule: RuleName) -> Value:
    """A gradient in memory of its own: no program returns an operand, or one value twice."""
    gradient = walk.gradients.get(param)
    if gradient is None:
        return walk.append(aten.zeros_like.default, (param,), {}, because, rule).outs[0]
    if gradient not in others and _makes(walk.ops, gradient):
        return gradient
    return walk.append(aten.clone.default, (gradient,), {}, because, rule).outs[0]


def _makes(ops: Sequence[Op], value: Value) -> bool:
    """Whether an op or one in its body computes the value, in memory of its own."""
    makers = [op for op in in_bodies(ops) if op.leaf and value in op.outs]
    return any(not schema_of(op.target).viewed for op in makers)
