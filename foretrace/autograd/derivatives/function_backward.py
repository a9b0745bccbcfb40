"""The backward of a user's autograd.Function: torch's engine runs it, over stand-ins.

So what it gets (zeros where no gradient arrived, or None), which of its methods is called, and how
what it returns is fitted to the inputs (summed to their shapes, cast, or refused) is torch's own.
"""

from collections.abc import Callable, Collection
from typing import Any

import torch

from foretrace import torch_api
from foretrace.autograd.derivatives.formula_tracer import Tape, current_value, flat_ops, ops_for
from foretrace.autograd.derivatives.rule import Rule
from foretrace.autograd.derivatives.run_hooks import name_of_hook, run_after
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import RuleName
from foretrace.ir.values.value import Tree, Value, values_in
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.tracer.recorder.function_target import FunctionCall, backward_of


def own_rule(
    op: Op,
    tangents: list[Value | None],
    waiting: Collection[Value],
    tape_on: Callable[[torch.device], Tape],
) -> Rule:
    """The derivative of one call of a Function, in the call's own values.

    Args:
        op: the call.
        tangents: for each result, the gradient that arrived.
        waiting: gradients of other values that the walk has yet to come to.
        tape_on: makes a tape for a device.

    Raises:
        Refusal: the backward does something that no graph can do, or gives what fits no input.
    """
    call, operands = op.target, [v for v in op.args if isinstance(v, Value)]
    tape = tape_on(operands[0].type.device)
    formals = _formals(call, tangents)
    with torch_api.no_dispatch_modes(), torch_api.Unhooked(), torch_api.with_autograd(), tape:
        placeholders = {i: tape.abstract(v) for i, v in enumerate(op.args) if isinstance(v, Value)}
        *outs, token = _applied(op, call, [placeholders.get(i) for i in range(len(op.args))], tape)
        run_after(call.hooks, token, tape, own_rule.__code__)
        seeds = {tangent: tape.abstract(formal) for tangent, formal in formals.items()}
        pairs = {out: seeds[t] for out, t in zip(outs, tangents, strict=True) if t is not None}
        pairs = pairs or {token: tape.abstract(Value(token.ft_value.type.with_grad(False)))}
        wanted = [placeholder for placeholder in placeholders.values() if placeholder.requires_grad]
        found = iter(_gradients(call, pairs, wanted))
    tape.check_kept(f"{call}.backward", formals.values())
    _check_unwritten(call, [seed for t, seed in seeds.items() if t in waiting], formals.values())
    gradients = tuple(
        current_value(g, tape) if v.type.requires_grad and (g := next(found)) is not None else None
        for v in operands
    )
    arrived = tuple(t and formals[t] for t in tangents)
    ops = tuple(flat_ops(tape.scope.ops)) if call.hooks else ops_for(gradients, tape)
    return Rule(_name(call), tuple(operands), (), (), arrived, ops, gradients)


def _formals(call: FunctionCall, tangents: list[Value | None]) -> dict[Value, Value]:
    """What stands for each gradient; itself where hooks keep gradients for each other."""
    arrived = [t for t in tangents if t is not None]
    return {t: t if call.hooks else Value(t.type.with_grad(False)) for t in arrived}


def _name(call: FunctionCall) -> RuleName:
    standing = [hook for hook in call.hooks if not hook.target.removed]
    if standing:
        return name_of_hook(standing[0], f"on the backward of {call}")
    return RuleName(f"{call.function.__name__}.backward", "registered")


def _check_unwritten(
    call: FunctionCall, shared: list[Abstract], formals: Collection[Value]
) -> None:
    """Refuse a backward that writes to a gradient of others: the engine passes on one tensor."""
    if any(seed.ft_value not in formals for seed in shared):
        raise Refusal(
            f"{call}.backward writes to its gradient, which is that of another tensor, too",
            kind="shared gradient",
            do="write to a clone of it: g = g.clone()",
        )


def _applied(op: Op, call: FunctionCall, placeholders: list[Any], tape: Tape) -> tuple[Any, ...]:
    """Stand-ins for the results, with a node that has the function's own backward.

    The last is one more that the node has, by which the engine arrives there without a gradient.
    """
    results: tuple[Tree, ...] = op.result if isinstance(op.result, tuple) else (op.result,)
    stand_ins = {v: tape.abstract(Value(v.type.with_grad(False))) for v in values_in(results)}
    loose = tuple(tensor for v, tensor in stand_ins.items() if not v.type.requires_grad)
    returned = tuple(stand_ins[v] if isinstance(v, Value) else None for v in results)
    operand = next(v for v in values_in(op.args) if v.type.requires_grad)
    token = tape.abstract(Value(operand.type.with_grad(False)))
    outs: tuple[Any, ...] = backward_of(call, (*returned, token), loose, tape)(*placeholders)
    return outs


def _gradients(
    call: FunctionCall, pairs: dict[Any, Abstract], wanted: list[Abstract]
) -> tuple[Any, ...]:
    """What the engine gets from the backward."""
    try:
        return torch.autograd.grad(list(pairs), wanted, list(pairs.values()), allow_unused=True)
    except (RuntimeError, TypeError) as error:
        if isinstance(error, Refusal):
            raise
        raise Refusal(
            f"{call}.backward: {str(error).partition(chr(10))[0]}",
            kind="wrong rule",
            do="let backward return a gradient, or None, that fits each argument of forward",
        ) from error
