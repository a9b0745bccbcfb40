"""The derivative of `flex_attention`: torch's own operator for it.

It holds what changes a score, and the derivative of that: a program of scalars from the score,
where it is, the gradient of what became of it and what that reads, to the gradients of the score
and of what is read. torch runs it for all scores at once, and adds up what was read by an operator
of its own. Source: `FlexAttentionAutogradOp` and `create_fw_bw_graph` in
torch/_higher_order_ops/flex_attention.py, torch 2.13.
"""

from dataclasses import replace
from typing import Any

import torch

from foretrace.autograd.higher_order.subgraph_backward import Walk
from foretrace.ir.program.op import Op, Subgraph
from foretrace.ir.program.origin import RuleName
from foretrace.ir.program.walk import REQUIRES_GRAD
from foretrace.ir.values.nested import map_tree
from foretrace.ir.values.value import Value, values_in
from foretrace.operators.schemas.higher_order_schema import (
    ATTENTION,
    ATTENTION_BACKWARD,
    attention_gradients,
)

aten = torch.ops.aten
RULE = RuleName("flex_attention_backward", "derived")
SCALARS = 5
"""The score, and where it is"""
QUERY_KEY_VALUE = ("query", "key", "value")
BUFFERS = ATTENTION[7]


def attended(op: Op, walk: Walk) -> None:
    """Append the derivative of a `flex_attention`, and give its gradients on."""
    bound = dict(zip(ATTENTION, op.args, strict=True))
    out, rows, _ = op.outs
    score: Subgraph = bound["score_mod"]
    *fixed, mask = bound["block_mask"]
    named = {
        **bound,
        "out": out,
        "logsumexp": rows,
        "grad_out": walk.gradients.get(out),
        "grad_logsumexp": walk.gradients.get(rows),
        "fw_graph": replace(score, name="fw_graph"),
        "joint_graph": _joint(op, score, walk),
        "block_mask": (*fixed, replace(mask, name="mask_graph")),
    }
    types = attention_gradients(named, walk.symbols.hint)
    named[BUFFERS] = tuple(_leaf(op, item, walk) for item in bound[BUFFERS])
    result = map_tree(types, lambda leaf: leaf and Value(leaf))
    args = tuple(named[name] for name in ATTENTION_BACKWARD)
    walk.put(Op(
        torch.ops.higher_order.flex_attention_backward, args, {}, result,
        tuple(values_in(result)), origin=op.origin, because=op, rule=RULE,
    ))  # fmt: skip
    *firsts, more = result
    operands = [*(bound[name] for name in QUERY_KEY_VALUE), *bound[BUFFERS]]
    for operand, gradient in zip(operands, [*firsts, *more], strict=True):
        if isinstance(operand, Value) and operand.type.requires_grad:
            walk.add(operand, gradient, op)


def _joint(op: Op, score: Subgraph, walk: Walk) -> Subgraph:
    """The derivative of the function of scores; None for a gradient that nobody wants."""
    changed = score.result
    grad = Value(changed.type.with_grad(False), "grad")
    through = walk.through(score, {changed: grad} if changed.type.requires_grad else {}, op)
    first, *rest = (_gradient(through, param) for param in score.params)
    if first is None:
        zeros = (score.params[0],)
        first = through.append(aten.zeros_like.default, zeros, {}, op, RULE).outs[0]
    # torch takes its results as a list
    params = (*score.params[:SCALARS], grad, *score.params[SCALARS:])
    return Subgraph("joint_graph", params, (*score.ops, *through.ops), [first, *rest])


def _gradient(through: Walk, param: Any) -> Value | None:
    followed = isinstance(param, Value) and param.type.requires_grad
    return through.gradients.get(param) if followed else None


def _leaf(op: Op, item: Any, walk: Walk) -> Any:
    """What the scores read, so that the operator gives its gradient: of what requires grad alone.

    Within a backward nothing else does so.
    """
    if not isinstance(item, Value) or not item.type.requires_grad:
        return item
    (loose,) = walk.append(aten.detach.default, (item,), {}, op, RULE).outs
    leaf = Value(loose.type.with_grad(True))
    walk.put(Op(
        REQUIRES_GRAD, (loose,), {}, leaf, (leaf,), origin=op.origin, because=op, rule=RULE,
    ))  # fmt: skip
    return leaf
