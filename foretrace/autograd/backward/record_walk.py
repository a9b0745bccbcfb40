"""The ops of a walk inside a program, recorded as ops of the program.

With `create_graph` they are recorded as calls of the program, which a later walk differentiates.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from foretrace import torch_api
from foretrace.autograd.eager_history.version_counters import view_positions_of
from foretrace.ir.program.op import Backward, Op, SharedBody, Subgraph
from foretrace.ir.program.origin import Origin
from foretrace.ir.program.rewriter import Rewriter
from foretrace.ir.program.walk import every_op, subgraphs_of
from foretrace.ir.values.value import Value, values_in
from foretrace.tracer.functionalization.alias import link
from foretrace.tracer.functionalization.autograd_leaves import value_of
from foretrace.tracer.recorder.recorder import Recorder
from foretrace.tracer.subclasses.dispatch import known_as


class _OwnSubgraphs(Rewriter):
    """Copies ops of the same values, with their subgraphs.

    A part of these is the forward's, which autograd follows.
    """

    def out(self, value: Value) -> Value:
        """Return the value itself."""
        return value

    def subgraph(self, subgraph: Subgraph) -> Subgraph:
        """A copy."""
        return replace(subgraph, ops=tuple(self.ops(subgraph.ops)))

    def below(self, op: Op) -> list[Op] | SharedBody | None:
        """A body of the op's own is copied; others read values of a shared one."""
        return op.below if op.own is None else self.ops(op.own)


class WalkRecord:
    """The ops of one walk in the program, and the tensors that stand for its values there.

    Args:
        recorder: what records the program.
        again: whether the gradients may be differentiated once more.
    """

    def __init__(self, recorder: Recorder, *, again: bool) -> None:
        self.recorder, self.again = recorder, again
        self.tensors: dict[Value, Any] = {}
        """what stands for gradients in the program"""
        self._makers: dict[Value, Op] = {}
        self._origins: dict[int, Origin] = {}

    @property
    def calls(self) -> bool:
        """Whether ops of the walk are calls: to differentiate again, or for what a class does."""
        return self.again or bool(self.recorder.aliasing.in_subclasses)

    def current(self, value: Value) -> Value:
        """The value that the tensor for a gradient has now."""
        known = self.tensors.get(value)
        return value if known is None else value_of(known, self.recorder)

    def value_of(self, tensor: Any) -> Value:
        """The current value of a tensor of the program."""
        known = known_as(tensor, self.recorder)
        value = value_of(known, self.recorder)
        self.tensors.setdefault(value, known)
        return value

    def tensor(self, value: Value) -> Any:
        """The stand-in of a gradient, or of a value that one is computed of."""
        found = self.tensors.get(value)
        if found is not None:
            return found
        found = self.tensors[value] = self.recorder.abstract(value)
        maker = self._makers.get(value)
        for out, base, share in view_positions_of(maker) if maker is not None else ():
            if maker is not None and maker.outs[out] is value:
                link(found, self.tensor(base), maker, out, False, share)
        return found

    def add(self, ops: list[Op]) -> None:
        """Append ops of the walk to the program."""
        if self.calls:
            self._call_all(ops)
            return
        found = [*every_op(ops)]
        if any(map(subgraphs_of, found)):
            subgraphs = [any(map(subgraphs_of, every_op((op,)))) for op in ops]
            copies = _OwnSubgraphs()
            ops = [copies.op(op) if holds else op for op, holds in zip(ops, subgraphs, strict=True)]
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
        inside = {out for inner in body for out in inner.outs}
        outs = tuple(v for out in op.outs if (v := self.current(out)) in inside)
        recorder.scope.ops.append(Op(
            op.target, tuple(map(self.current, op.operands)), {}, list(outs), outs,
            origin=replace(op.origin, grad_mode=self.again, checkpoint=None), below=body,
            because=op.because, rule=op.rule, asked=True,
        ))  # fmt: skip

    def _call_op(self, op: Op) -> None:
        """Record an op of a formula, as if the program had called it."""
        scope = self.recorder.scope.ops
        count = len(scope)
        args, kwargs = self.recorder.concrete((op.args, op.kwargs), _Tensors(self))
        result = self.recorder.again(self._followed(op.target), args, kwargs)
        tensors = [t for t in torch_api.tree_leaves(result) if isinstance(t, torch.Tensor)]
        self.tensors.update(zip(values_in(op.result), tensors, strict=True))
        for new in scope[count:]:
            new.because, new.rule, new.asked = op.because, op.rule, True

    def _followed(self, target: Any) -> Any:
        """An operator of a walk in the form that autograd follows, if it is to.

        There is no derivative of `copy`, by which a walk fills new memory in another layout. There
        the engine of eager calls `copy_`, which has one.
        """
        copies = self.again and target is torch.ops.aten.copy.default
        return torch.ops.aten.copy_.default if copies else target


class _Tensors(dict[Value, Any]):
    """By value of a walk: the tensor that stands for it."""

    def __init__(self, record: WalkRecord) -> None:
        super().__init__()
        self.record = record

    def __getitem__(self, value: Value) -> Any:
        return self.record.tensor(value)
