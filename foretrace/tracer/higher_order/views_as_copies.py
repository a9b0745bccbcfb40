"""The program of a scan with copies in the place of views, as torch runs it where autograd follows.

A copy lies in order, so what reads it, such as a matrix product, is another kernel than over the
view. Source: `create_hop_joint_graph` in torch/_higher_order_ops/partitioner.py, torch 2.13, which
functionalizes with `remove="mutations_and_views"`.
"""

from typing import Any

import torch

from foretrace import torch_api
from foretrace.ir.program.op import Op, Subgraph, Target
from foretrace.ir.program.origin import Choice
from foretrace.ir.program.rewriter import Rewriter
from foretrace.ir.program.walk import leaf_ops
from foretrace.ir.values.nested import leaves
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value, map_values
from foretrace.operators.inference.infer import Inference
from foretrace.operators.schemas.schema import schema_of

aten = torch.ops.aten

COPIES = Choice("views", "copies", "torch's derivative of scan makes copies of them")
"""Why a scan that autograd follows holds another program than was written"""


def in_copies(program: Subgraph, inference: Inference) -> Subgraph:
    """The leaves of a program, each view a copy; the program itself where it has no view."""
    ops = [*leaf_ops(program.ops)]
    if not any(_copy_of(op.target) for op in ops):
        return program
    copies = _Copies(inference)
    copied = tuple(copies.ops(ops))
    return Subgraph(program.name, program.params, copied, copies.tree(program.result))


class _Copies(Rewriter):
    """Calls operators that give the same values, over operands that may lie otherwise."""

    def __init__(self, inference: Inference) -> None:
        super().__init__()
        self.inference = inference

    def op(self, op: Op) -> Op:
        """The op, whose results have the types that its operands give now."""
        if isinstance(op.target, torch_api.OpOverload):
            args, kwargs = map_values(self.tree((op.args, op.kwargs)), _unfollowed)
            types = leaves(self.inference.infer(self.target(op.target), args, kwargs))
            for out, type in zip(op.outs, types, strict=True):
                self.env[out] = Value(type.with_grad(out.type.requires_grad))
        copy = super().op(op)
        return copy if op.because else copy.but(choice=op.choice or COPIES, piece_of=op)

    def target(self, target: Target) -> Target:
        """The operator that copies what a view operator gives."""
        return _copy_of(target) or target


def _unfollowed(value: Value) -> TensorType:
    return value.type.with_grad(False)


def _copy_of(func: Any) -> Any:
    """The operator that copies what a view operator gives; None for another."""
    if not isinstance(func, torch_api.OpOverload) or not schema_of(func).viewed:
        return None
    name, _, overload = str(func).removeprefix("aten.").partition(".")
    packet = getattr(aten, f"{name}_copy", None)
    return None if packet is None else getattr(packet, overload, None)
