"""Operators that hold programs: each program is recorded where the operator is called.

A program runs once, over the tensors that the operator would give it. What it reads from around is
one more operand, as torch's own tools have it. What torch refuses to run is refused: a program that
writes to what is outside, or gives that back.
"""

from collections.abc import Sequence
from typing import Any

import sympy
import torch

from foretrace import torch_api
from foretrace.ir.program.op import Op, Subgraph
from foretrace.ir.program.walk import read_outside
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value, values_in
from foretrace.operators.schemas.higher_order_schema import Groups, HigherOrderSchema
from foretrace.tracer.functionalization.op_call import Call
from foretrace.tracer.higher_order.trace_subgraph import Holding, Run
from foretrace.tracer.higher_order.views_as_copies import COPIES, in_copies

aten = torch.ops.aten
STACKED = torch.ops.higher_order.while_loop_stack_output


class Grouped(Holding):
    """One call of an operator whose subgraphs all take the same groups of operands."""

    def __init__(self, call: Call, holder: HigherOrderSchema) -> None:
        super().__init__(call)
        self.holder = holder
        self.groups = holder.split(call.args)
        self.params, self.tensors = self._operands()
        self.groups[-1] = [item for item in self.groups[-1] if isinstance(item, Value)]

    def _operands(self) -> tuple[Groups, list[Any]]:
        """The parameters of the subgraphs, and the tensors that they are called with."""
        params, tensors, by_value = Groups(), list[Any](), self.call.by_value
        for place, group in enumerate(self.groups):
            params.append([])
            for item in group:
                if not isinstance(item, Value):
                    self._check_number(place, item)
                    tensors.append(self.recorder.concrete(item, {}))
                    continue
                param = self._param(place, item)
                params[-1].append(param)
                tensors.append(by_value[item] if param is item else self.recorder.abstract(param))
        return params, tensors

    def _check_number(self, place: int, item: Any) -> None:
        """Refuse a number that each round may change; any other is known, or a size."""
        if place < len(self.groups) - 1 or not isinstance(item, (int, sympy.Basic)):
            self.refuse(
                f"{self.name} is given {item!r}, which is no tensor",
                "make a tensor of it, or let the function read it from around it",
            )

    def _param(self, place: int, value: Value) -> Value:
        """The parameter for an operand: itself, or a new value for each call of the subgraph."""
        type = value.type
        if place == self.holder.rows:
            type = type.but(shape=type.shape[1:], stride=type.stride[1:])
        elif place == self.holder.carried:
            trains = self.origin.grad_mode and type.differentiable and not self.holder.loops
            type = type.with_grad(type.requires_grad or trains)
        else:
            return value
        return Value(self.recorder.types.intern(type), value.hint)

    # ---- the programs -------------------------------------------------------------------------

    def recorded(self) -> Any:
        """Run the programs, and add the op; what the caller gets."""
        programs, names = self.holder.programs(self.call.args), self.holder.names(self.call.args)
        pairs = zip(programs, names, strict=True)
        runs = [self.run(program, name, self.tensors) for program, name in pairs]
        for run in runs:
            self.check_own(run)
        self._check_same_types(runs)
        last = runs[-1]
        outside = self.outside(runs, {param for group in self.params for param in group})
        *fixed, lifted = self.groups
        *before, among = self.params
        used = {v for run in runs for v in (*read_outside(run.ops), *values_in(run.result))}
        operands = zip(among, lifted, strict=True)
        kept = {param: value for param, value in operands if param in used or not self.holder.drops}
        kept |= {value: value for value in outside}
        sizes = self.sizes(runs, [*(param for group in before for param in group), *kept])
        params = [*(param for group in before for param in group), *kept, *sizes]
        subgraphs = [
            Subgraph(run.name, tuple(params), tuple(run.ops),
                     run.result[0] if place == self.holder.condition else tuple(run.result))
            for place, run in enumerate(runs)
        ]  # fmt: skip
        args = self.holder.join(self.call.args, subgraphs, [*fixed, [*kept.values(), *sizes]])
        outs = self._outs(last, args)
        below = self._in_copies(args, outs)
        op = Op(
            self.call.func, args, self.call.kwargs, list(outs), tuple(values_in(outs)),
            origin=self.origin, below=below, choice=COPIES if below else None,
        )  # fmt: skip
        self.recorder.append(op)
        self.close()
        tensors = [self.recorder.abstract(o) if isinstance(o, Value) else o for o in outs]
        return torch_api.tree_unflatten(tensors, last.spec)

    # ---- results ------------------------------------------------------------------------------

    def _outs(self, run: Run, args: tuple[Any, ...]) -> list[Any]:
        """The results of the operator."""
        followed = self.origin.grad_mode and any(v.type.requires_grad for v in values_in(args))
        if self.holder.counted:
            return self._stacked(run, args, followed=followed)
        carried = len(self.groups[self.holder.carried]) if self.holder.carried is not None else 0
        return [
            self._out(item, followed, rows=self.holder.stacks and place >= carried)
            for place, item in enumerate(run.result)
        ]

    def _out(self, item: Any, followed: bool, *, rows: bool) -> Any:
        """One result; autograd has one node for all results."""
        if not isinstance(item, Value):
            return item
        type = item.type
        if rows and self.holder.rows is not None:
            count = self.groups[self.holder.rows][0].type.shape[0]
            type = type.but(shape=(count, *type.shape)).contiguous()
        type = type.but(offset=0).with_grad(followed and type.differentiable)
        return Value(self.recorder.types.intern(type))

    def _stacked(self, run: Run, args: tuple[Any, ...], *, followed: bool) -> list[Value]:
        """The rows that a loop gives: how many there are depends on data.

        Raises:
            Refusal: the example's values are not known.
        """
        example = self.recorder.answers.example(self.recorder, STACKED, args, {})
        count = self.recorder.types.symbols.size_from_data(len(example[0]))
        rows = [type.but(shape=(count, *type.shape)).contiguous() for type in run.types]
        intern = self.recorder.types.intern
        return [Value(intern(type.with_grad(followed and type.differentiable))) for type in rows]

    def _in_copies(self, args: tuple[Any, ...], outs: list[Any]) -> list[Op] | None:
        """A scan that autograd follows: its program has copies in the place of views."""
        values = values_in(outs)
        if self.name != "scan" or not any(out.type.requires_grad for out in values):
            return None
        inference = self.recorder.semantics.inference
        (program,) = self.holder.programs(args)
        copied = in_copies(program, inference)
        types, others = ([v.type for v in values_in(p.result)] for p in (program, copied))
        if copied is program or not _same_types(types, others):
            return None
        args = self.holder.join(args, [copied], self.holder.split(args))
        return [Op(self.call.func, args, self.call.kwargs, list(outs), tuple(values),
                   origin=self.origin)]  # fmt: skip

    # ---- what torch refuses ---------------------------------------------------------------------

    def _check_same_types(self, runs: Sequence[Run]) -> None:
        """Refuse subgraphs whose results differ in type, or from what the operator carries."""
        last = runs[-1]
        for first in runs[:-1] if self.holder.chooses else ():
            if first.spec != last.spec or not _same_types(first.types, last.types):
                gives = f"{first.name} of {self.name} gives {_types(first)}"
                self.refuse(
                    f"{gives}, {last.name} {_types(last)}",
                    "let all return tensors of equal dtypes, sizes and strides",
                    first.frame,
                )
        if self.holder.carried is not None:
            carried = [value.type for value in self.groups[self.holder.carried]]
            if not _same_types(last.types[: len(carried)], carried):
                self.refuse(
                    f"{last.name} of {self.name} is given {carried}, and gives {_types(last)}",
                    "let it return tensors of the dtypes, sizes and strides that it is given",
                    last.frame,
                )


def _same_types(ones: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether results are of equal types, whoever follows."""
    return list(map(_plain, ones)) == list(map(_plain, others))


def _plain(item: Any) -> Any:
    return item.with_grad(False).but(offset=0) if isinstance(item, TensorType) else item


def _types(run: Run) -> str:
    types = [f"{t!r} by {list(t.stride)}" if isinstance(t, TensorType) else t for t in run.types]
    return f"{types} (at {run.frame})"
