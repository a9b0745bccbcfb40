"""Results of a cut that has opened an autograd.Function: a gradient of them is refused.

Autograd would follow what the Function's forward does, and not its backward.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NoReturn

import torch

from foretrace.autograd.backward.gradient_hooks import left_out
from foretrace.errors import Refusal
from foretrace.ir.program.interface import Mutation
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import ModuleCall
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.walk import every_op, subgraphs_of
from foretrace.ir.source.call_site import asking_line
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.subclass_types import dispatched
from foretrace.tracer.recorder.autograd_hooks import HookCall
from foretrace.tracer.recorder.function_target import FunctionCall

Untrained = dict[int, Op]
"""By place, results that depend on a Function, and its call"""


def untrained(graph: Graph, recorded: Recording) -> Untrained:
    """The results of a graph that depend on Functions of which it has only the forward."""
    ops, due = every_op(graph.ops), left_out(recorded, graph.ops)
    whole = {op.target.context for op in ops if isinstance(op.target, FunctionCall)}
    for op in _as_written(recorded.ops):
        calls = [each for each in _with_inner(op) if isinstance(each.target, FunctionCall)]
        opened = (
            each for each in calls if each.target.followed and each.target.context not in whole
        )
        found = next(opened, None) or next((due[v] for v in op.operands if v in due), None)
        if found is None and graph.kind == "aten" and _dispatched_in(op):
            found = op
        if found is not None:
            due |= {out: found for out in op.outs if out.type.requires_grad and out not in due}
    return {
        place: due[output.value]
        for place, output in enumerate(graph.outputs)
        if isinstance(output.value, Value) and output.value in due
    }


def _as_written(ops: Iterable[Op]) -> Iterator[Op]:
    for op in ops:
        if isinstance(op.target, (ModuleCall, FunctionCall)):  # which may write to what is outside
            yield from _as_written(op.region or ())
        if not isinstance(op.target, ModuleCall):
            yield op


def _dispatched_in(op: Op) -> bool:
    """Whether it is, or contains, an op of a subclass, which runs below autograd."""
    return dispatched(op) or any(map(_dispatched_in, op.template or ()))


def _with_inner(op: Op) -> Iterator[Op]:
    """The op, and every op of its subgraphs."""
    yield op
    for subgraph in subgraphs_of(op):
        yield from every_op(subgraph.ops)


class _Untrained(torch.autograd.Function):
    """Returns a tensor with a history through which no gradient flows."""

    @staticmethod
    def forward(
        ctx: Any, refused: Callable[[], Refusal], result: torch.Tensor, *inputs: torch.Tensor
    ) -> torch.Tensor:
        ctx.refused = refused
        return result.detach()  # shares the memory, and is no view, of which autograd keeps count

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> NoReturn:
        raise ctx.refused()


_UNTRAINED: Any = _Untrained.apply


def _leaf() -> torch.Tensor:
    return torch.zeros((), requires_grad=True)


def _opened(op: Op) -> Refusal:
    if isinstance(op.target, HookCall):
        return Refusal(
            f"the cut lacks the hook {op.target.name}, which holds a tensor of the program, and a"
            " gradient is asked for that it would see",
            kind="hook",
            at=op.origin.frame,
            do=('use cut("joint"), which has it', "or train by foretrace.compile"),
        )
    if not isinstance(op.target, FunctionCall):
        return Refusal(
            f"the cut shows what a tensor class of its own does for {op.target}, and autograd is"
            " above that",
            kind="unsupported tensor",
            at=op.origin.frame,
            do=("train by cut('export'), which calls the operator itself", "or use cut('joint')"),
        )
    return Refusal(
        f"the cut shows what {op.target} does forward, which is not to be differentiated",
        kind="autograd.Function",
        at=op.origin.frame,
        do=('train by cut("export"), which applies it', 'or use cut("joint")'),
    )


def _spent(recorded: Recording, mutation: Mutation) -> Refusal:
    role = recorded.inputs[mutation.index].role
    return Refusal(
        f"a gradient is asked of what a joint cut wrote to the {role}; its history was in the cut",
        kind="double backward",
        at=recorded.defined_at(mutation.value),
        do="detach() it before it is used again",
    )


def _backward_ran() -> Refusal:
    return Refusal(
        "a gradient is asked of what the program has run a backward of already: the graph let go"
        " of what that needs",
        kind="graph freed",
        at=asking_line(),
        do="pass retain_graph=True to the backward in the program, or return what you need of it",
    )


def after_backward(tensor: torch.Tensor) -> torch.Tensor:
    """A result after the program's own backward: it requires grad, and has no backward left."""
    if not torch.is_grad_enabled():
        return tensor
    found: torch.Tensor = _UNTRAINED(_backward_ran, tensor.detach(), _leaf())
    return found


def mark_spent(recorded: Recording, results: Sequence[Any]) -> list[Any]:
    """The results of a joint graph: what autograd follows of eager's writes requires grad."""
    found = list(results)
    for place, mutation in enumerate(recorded.mutations, len(recorded.outputs)):
        if recorded.writes_followed(mutation):
            refused = partial(_spent, recorded, mutation)
            found[place] = _UNTRAINED(refused, found[place], _leaf())
    return found


def mark(results: Sequence[Any], places: Untrained, inputs: Sequence[Any]) -> list[Any]:
    """The results; some refuse a gradient, to the inputs or to a leaf that the program creates."""
    found, done = list(results), dict[int, torch.Tensor]()
    if not (places and torch.is_grad_enabled()):
        return found
    wanting = [each for each in inputs if isinstance(each, torch.Tensor) and each.requires_grad]
    wanting = wanting or [_leaf()]
    for place, op in places.items():
        key = id(results[place])
        if key not in done:
            done[key] = _UNTRAINED(partial(_opened, op), results[place], *wanting)
        found[place] = done[key]
    return found
