"""Operators of an exported graph that the program keeps autocast from, or casts for itself.

Their casts are ops of the graph. Called under autocast, such a graph would cast them once more, so
each is in a program of its own that `wrap_with_autocast` calls with autocast off. That is
torch.export's form of a context of autocast.
"""

from collections.abc import Iterable, Iterator
from types import MappingProxyType
from typing import Any, Final

import torch

from foretrace import torch_api
from foretrace.ir.program.op import Op, Subgraph
from foretrace.ir.program.rewriter import Rewriter
from foretrace.ir.program.walk import every_op
from foretrace.ir.symbols.shape_env import free_symbols

OFF: Final = (False, False)
"""Autocast and its cache"""
DTYPE: Final = MappingProxyType({"cpu": torch.bfloat16, "cuda": torch.float16})
"""By device, what autocast would cast to; it is off"""


def in_regions(ops: Iterable[Op]) -> Iterator[Op]:
    """The ops; those that autocast would change have it off around them, if the program says so."""
    for op in ops:
        device = next((each for each in op.origin.recast if _casts(op, each)), None)
        yield op if device is None else _without(op, device)


def _casts(op: Op, device: str) -> bool:
    """Whether autocast for a device acts on an op that is called whole."""
    if not any(value.type.device.type == device for value in op.operands):
        return False
    called = (each.target for each in every_op((op,)))
    plain = (each for each in called if isinstance(each, torch_api.OpOverload))
    return any(torch_api.autocast_knows(each, device) for each in plain)


def _without(op: Op, device: str) -> Op:
    """A call of it with autocast off."""
    inner = Rewriter().op(op)
    params: tuple[Any, ...] = (*op.operands, *sorted(free_symbols((op.args, op.kwargs)), key=str))
    program = Subgraph("submod", params, (inner,), tuple(inner.outs))
    target = torch.ops.higher_order.wrap_with_autocast
    args = (device, DTYPE[device], *OFF, program, *params)
    return Op(target, args, {}, tuple(op.outs), op.outs, origin=op.origin)
