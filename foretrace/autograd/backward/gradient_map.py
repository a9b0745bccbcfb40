"""The state of a backward walk: the gradients that have arrived, and the ops that compute them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from foretrace.autograd.eager_history.op_facts import values_used
from foretrace.ir.program.op import Backward, Op, ViewStep
from foretrace.ir.program.origin import RuleName
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.value import Tree, Value, map_values
from foretrace.operators.inference.infer import Inference

ENGINE = RuleName("accumulate", "engine")
COPY_SLICES = RuleName("CopySlices", "engine")
ADD = torch.ops.aten.add.Tensor


@dataclass(slots=True)
class Scope:
    """Where backward ops go. `inside`: values of the body of the forward op that is kept whole."""

    ops: list[Op] = field(default_factory=list)
    inside: set[Value] | None = None
    pending: list[tuple[Value, Value, Op]] = field(default_factory=list)
    """gradients of values from outside the kept op, added after its backward op"""

    def take(self) -> list[Op]:
        """The ops so far, each once."""
        ops, self.ops = self.ops, []
        return ops


class Gradients:
    """What arrived for each forward value so far, added up as it arrives."""

    def __init__(self, inference: Inference) -> None:
        self.inference = inference
        self.gradients: dict[Value, Value] = {}
        self.carried: dict[Value, Value] = {}
        """what hooks on saved tensors gave back, and the value whose history that has"""
        self.scope = Scope()

    @property
    def symbols(self) -> Symbols:
        """The program's sizes."""
        return self.inference.symbols

    @property
    def ops(self) -> list[Op]:
        """What was appended."""
        return self.scope.ops

    def wants(self, value: Value) -> bool:
        """Whether the gradient of a value is asked for, or goes on to what it is asked for of."""
        return value.type.requires_grad

    def arrived(self, gradient: Value) -> Value:
        """What a gradient is in the program, where the walk is a part of one."""
        return gradient

    def add(self, value: Value, gradient: Value, because: Op) -> None:
        """One more gradient of a value; the second and later ones are added as they arrive."""
        scope, value = self.scope, self.carried.get(value, value)
        if scope.inside is not None and value not in scope.inside:
            scope.pending.append((value, gradient, because))
            return
        before, gradient = self.gradients.get(value), self.arrived(gradient)
        if before is not None:
            gradient = self.arrived(self._call(ADD, (before, gradient), because))
        self.gradients[value] = gradient

    def put(self, op: Op) -> None:
        """Append an op."""
        self.scope.ops.append(op)

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

    def _call(self, func: Any, args: Tree, because: Op) -> Value:
        """Append one backward leaf."""
        return self.append(func, args, {}, because, ENGINE).outs[0]

    def _view(self, step: ViewStep, base: Value, op: Op) -> Value:
        args, kwargs = step.of(base)
        return self._replay(step.func, args, kwargs, step.position, op)

    def _replay(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], position: int, because: Op
    ) -> Value:
        return self.append(func, args, kwargs, because, COPY_SLICES).outs[position]

    def _emit(self, op: Op, name: RuleName, body: list[Op], found: Iterable[Value | None]) -> None:
        inside = {out for inner in body for out in inner.outs}
        outs = tuple(dict.fromkeys(g for g in found if g is not None and g in inside))
        if not body:
            return
        used = tuple(v for v in values_used(body) if v not in inside)
        self.scope.ops.append(backward_op(op, name, body, used, outs))


def backward_op(
    op: Op, name: RuleName, body: list[Op], used: tuple[Value, ...], outs: tuple[Value, ...]
) -> Op:
    """The backward op of another op; its operands are what the body uses."""
    return Op(
        Backward(op, name), used, {}, list(outs), outs, origin=op.origin, below=body, because=op,
        rule=name, operands=used,
    )  # fmt: skip
