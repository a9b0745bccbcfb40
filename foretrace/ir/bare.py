"""Which values require grad without a history that a gradient takes."""

from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

import torch

from foretrace.ir.op import Op, Value
from foretrace.ir.walk import called_in

Bare: TypeAlias = Literal["leaf", "loose"]
"""How a value does: it was made so, or is a view that was taken under no_grad"""


def bare_in(ops: Iterable[Op]) -> Iterator[tuple[Value, Bare]]:
    """The values that require grad without a history that a gradient takes."""
    for op in called_in(ops):
        if op.target is torch.ops.aten.requires_grad_.default:
            yield op.outs[0], "leaf"
        elif not op.origin.grad_mode:
            kept = set(_with_history_in(op))
            yield from ((v, "loose") for v in op.outs if v.type.requires_grad and v not in kept)


def _with_history_in(op: Op) -> Iterator[Value]:
    """What keeps the history that was there: what is written, and views of it, viewed again."""
    if op.writes or op.origin.grad_mode:
        yield from op.outs
    for inner in op.region or ():
        yield from _with_history_in(inner)
