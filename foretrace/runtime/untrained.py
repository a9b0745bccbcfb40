"""Results of a cut that has opened an autograd.Function: a gradient of them is refused.

Autograd would follow what the Function's forward does, and not its backward.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import torch

from foretrace.errors import Refusal
from foretrace.ir.op import ModuleCall, Op, Value
from foretrace.ir.program import Graph, Recorded
from foretrace.trace.functions import FunctionCall

Untrained = dict[int, Op]
"""By place, results that depend on a Function, and its call"""


def untrained(graph: Graph, recorded: Recorded) -> Untrained:
    """The results of a graph that depend on Functions of which it has only the forward."""
    whole, due = {op.target for op in graph.ops}, dict[Value, Op]()
    for op in _as_written(recorded.ops):
        call = isinstance(op.target, FunctionCall) and op.target.followed
        opened = op if call and op.target not in whole else None
        found = opened or next((due[v] for v in op.operands if v in due), None)
        if found is not None:
            due.update((out, found) for out in op.outs if out.type.requires_grad)
    return {
        place: due[output.value]
        for place, output in enumerate(graph.outputs)
        if isinstance(output.value, Value) and output.value in due
    }


def _as_written(ops: Iterable[Op]) -> Iterator[Op]:
    for op in ops:
        if isinstance(op.target, ModuleCall):
            yield from _as_written(op.region or ())
        else:
            yield op


class _Untrained(torch.autograd.Function):
    """Gives a tensor on, with a history in which no gradient goes back."""

    @staticmethod
    def forward(ctx: Any, op: Op, result: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.op = op
        return result.detach()  # shares the memory, and is no view, of which autograd keeps count

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> NoReturn:
        raise Refusal(
            f"the cut shows what {ctx.op.target} does forward, which is not to be differentiated",
            kind="autograd.Function", at=ctx.op.origin.frame,
            do=('train by cut("export"), which applies it', 'or use cut("joint")'),
        )  # fmt: skip


_UNTRAINED: Any = _Untrained.apply


def marked(results: Sequence[Any], places: Untrained, inputs: Sequence[Any]) -> list[Any]:
    """The results, of which some refuse to give a gradient to the inputs."""
    wanting = [each for each in inputs if isinstance(each, torch.Tensor) and each.requires_grad]
    found, done = list(results), dict[int, torch.Tensor]()
    for place, op in places.items() if torch.is_grad_enabled() and wanting else ():
        key = id(results[place])
        if key not in done:
            done[key] = _UNTRAINED(op, results[place], *wanting)
        found[place] = done[key]
    return found
