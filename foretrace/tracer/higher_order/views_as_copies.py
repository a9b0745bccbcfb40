"""The program of a scan with copies in the place of views, as torch runs it where autograd follows.

A copy lies in order, so what reads it, such as a matrix product, is another kernel than over the
view. Source: `create_hop_joint_graph` in torch/_higher_order_ops/partitioner.py, torch 2.13, which
functionalizes with `remove="mutations_and_views"`.
"""

from typing import Any

import torch

from foretrace import torch_api
from foretrace.ir.program.op import Op, Subgraph, Value, map_values, substitute
from foretrace.ir.program.walk import leaf_ops
from foretrace.operators.inference.infer import Inference
from foretrace.operators.schemas.schema import schema_of

aten = torch.ops.aten


def in_copies(program: Subgraph, inference: Inference) -> Subgraph:
    """The leaves of a program, each view a copy; the program itself where it has no view."""
    ops = [*leaf_ops(program.ops)]
    if not any(_copy_of(op.target) for op in ops):
        return program
    known, copied = dict[Value, Any](), list[Op]()
    for op in ops:
        given = substitute((op.args, op.kwargs), known)
        if isinstance(op.target, torch_api.OpOverload):
            copied.append(_again(op, _copy_of(op.target) or op.target, given, inference))
            known.update(zip(op.outs, copied[-1].outs, strict=True))
        else:
            copied.append(op.but(args=given[0], kwargs=given[1]))
    result = substitute(program.result, known)
    return Subgraph(program.name, program.params, tuple(copied), result)


def _again(op: Op, func: Any, given: Any, inference: Inference) -> Op:
    """The op by an operator that gives the same values, over operands that may lie otherwise."""
    typed = map_values(given, lambda v: v.type.with_grad(False))
    result = inference.infer(func, *typed)
    many = isinstance(result, tuple | list)
    types = zip(result if many else [result], op.outs, strict=True)
    outs = tuple(Value(type.with_grad(old.type.requires_grad)) for type, old in types)
    return op.but(
        target=func,
        args=given[0],
        kwargs=given[1],
        result=list(outs) if many else outs[0],
        outs=outs,
        operands=None,
        alike=None,
    )


def _copy_of(func: Any) -> Any:
    """The operator that copies what a view operator gives; None for another."""
    if not isinstance(func, torch_api.OpOverload) or not schema_of(func).viewed:
        return None
    name, _, overload = str(func).removeprefix("aten.").partition(".")
    packet = getattr(aten, f"{name}_copy", None)
    return None if packet is None else getattr(packet, overload, None)
