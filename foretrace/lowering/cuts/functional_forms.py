"""Operators that write to an operand, as those that return it: torch's functional dialect.

A joint graph has none on memory that anything else sees. What it has writes to a tensor that was
created for it: marks of leaves, and numbers drawn into memory of certain strides.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from foretrace import torch_api
from foretrace.autograd.eager_history.history_ops import unmark
from foretrace.autograd.eager_history.op_facts import locate
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.program.walk import makes_leaf, with_subgraphs
from foretrace.ir.values.value import Value

aten = torch.ops.aten


def functional(ops: Iterable[Op]) -> Iterator[Op]:
    """The ops, none of which writes, in the programs that they hold, too.

    Raises:
        Refusal: an operator has no functional form that does the same.
    """
    for op in ops:
        new = with_subgraphs(op, lambda inner: replace(inner, ops=(*functional(inner.ops),)))
        plain = isinstance(new.target, torch_api.OpOverload)
        if new.target is aten.view.default:  # torch's decompositions may lay its operand otherwise
            yield new.but(target=aten.reshape.default)
        elif not (plain and torch_api.schema_of(new.target).is_mutable):
            yield new
        elif makes_leaf(new) and not new.late:  # a leaf of the backward says what it computes
            yield unmark(new)
        else:
            yield from _drawn(new)


def _drawn(op: Op) -> Iterator[Op]:
    """Numbers drawn in the order of memory: into a view that lies contiguous.

    `bernoulli.p` draws into a contiguous result, and so in the order of the sizes. Source:
    `bernoulli` of aten/src/ATen/native/Distributions.cpp, torch 2.13.
    """
    (out,) = op.outs
    order = out.type.memory_order()
    shape, stride = (
        tuple([each[dim] for dim in order]) for each in (out.type.shape, out.type.stride)
    )
    turned = out.type.but(shape=shape, stride=stride)
    if op.target is not aten.bernoulli_.float or stride != turned.contiguous().stride:
        raise locate(
            Refusal(
                f"no functional operator does what {op.target} does here",
                kind="no functional form",
                do=(
                    "draw into a tensor without gaps: rand_like(x), or dropout of x.contiguous()",
                    "detach() what the score function of flex_attention reads",
                ),
            ),
            op,
        )
    back = sorted(range(len(order)), key=order.__getitem__)
    view, drawn = Value(turned), Value(turned)
    probability = op.args[1:] or (() if "p" in op.kwargs else (0.5,))
    for target, args, kwargs, value in (
        (aten.permute.default, (op.args[0], order), {}, view),
        (aten.bernoulli.p, (view, *probability), op.kwargs, drawn),
        (aten.permute.default, (drawn, back), {}, out),
    ):
        yield op.but(target=target, args=args, kwargs=kwargs, result=value, outs=(value,))
