"""Hooks run over stand-ins for gradients: torch's engine calls them, and checks what they give.

What a hook does is not copied for a call as a rule is: the values that its tape makes are those of
the graph, as one hook may keep a tensor for another.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any
from weakref import ref

import torch

from foretrace import torch_api
from foretrace.autograd.derivatives.formula_tracer import Tape, current_value, flat_ops
from foretrace.errors import Frame, Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import RuleName
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.tracer.recorder.autograd_hooks import HookCall
from foretrace.tracer.recorder.error_reports import adding_nothing, reported


@dataclass(frozen=True, slots=True)
class Done:
    """What a hook did."""

    ops: list[Op]
    gradient: Value | None
    """that from now on"""
    written: bool
    """whether it wrote to the one that it got"""
    seen: list[ref[Abstract]]
    """the tensors that it computed with"""


def run_hook(
    op: Op,
    gradient: Value | None,
    tape_on: Callable[[torch.device], Tape],
) -> Done:
    """What a hook does to a gradient.

    Args:
        op: the registration.
        gradient: what arrived in all; None where torch's engine comes without one.
        tape_on: makes a tape for a device.

    Raises:
        Refusal: the hook does something that no graph can do, or gives what eager refuses.
    """
    call, (value,) = op.target, op.operands
    tape = tape_on(value.type.device)
    tape.take_lines_of(op, run_hook.__code__)
    run = _reporting(call, tape)
    with torch_api.no_dispatch_modes(), torch_api.Unhooked(), torch_api.with_autograd(), tape:
        if gradient is None:
            with torch.no_grad():
                _check_none(call, run(None), op.origin.frame)
            return Done(list(flat_ops(tape.scope.ops)), None, False, tape.stand_ins())
        seed, leaf = _stand_in(gradient, tape), tape.abstract(Value(value.type.with_grad(True)))
        torch_api.attribute_of(leaf, "register_hook")(run)
        found = _through(call, leaf, seed, op.origin.frame)
        returned = found if isinstance(found, Abstract) else tape.lift(found)
        new = current_value(returned, tape)
        written = seed.ft_value is not gradient
    return Done(list(flat_ops(tape.scope.ops)), new, written, tape.stand_ins())


def run_after(hooks: list[Op], result: torch.Tensor, tape: Tape, caller: CodeType) -> None:
    """Let hooks run after the backward of the Function that gave a result to autograd.

    The node has one result more than the Function; they do not see its gradient. `caller`: the
    code of ours that runs the backward.
    """
    for op in hooks[:1]:
        tape.take_lines_of(op, caller)
    for op in hooks:
        if not op.target.removed:
            called = partial(_but_last, _reporting(op.target, tape))
            torch_api.node_of(result).register_hook(called)


def _but_last(run: Callable[..., Any], inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> Any:
    return run(inputs, outputs[:-1])


def name_of_hook(op: Op, of: str) -> RuleName:
    """Names a hook on a gradient as the rule of its ops."""
    at = op.origin.frame
    where = f" registered at {Path(at.file).name}:{at.line}" if at is not None else ""
    return RuleName(f"hook {op.target.name}{where} {of}", "hook")


def _reporting(call: HookCall, tape: Tape) -> Callable[..., Any]:
    def called(*args: Any) -> Any:
        with tape.user_code(), reported(tape), adding_nothing():
            return call.hook(*args)

    called.__name__ = call.name  # the engine's errors name it
    return called


def _stand_in(gradient: Value, tape: Tape) -> Abstract:
    seed = tape.abstract(Value(gradient.type.with_grad(False)))
    seed.ft_value = gradient
    return seed


def _through(call: HookCall, leaf: Any, seed: Abstract, at: Frame | None) -> Any:
    try:
        (found,) = torch.autograd.grad([leaf], [leaf], [seed])
    except (RuntimeError, TypeError) as error:
        if isinstance(error, Refusal):
            raise
        raise wrong_hook(call, str(error).partition("\n")[0], at) from error
    return found


def _check_none(call: HookCall, returned: Any, at: Frame | None) -> None:
    if returned is not None:
        raise wrong_hook(call, "it gives a gradient where none arrived", at)


def wrong_hook(call: HookCall, what: str, at: Frame | None) -> Refusal:
    """What eager raises of a hook in the backward."""
    return Refusal(
        f"the hook {call.name}: {what}",
        kind="wrong hook",
        at=at,
        do="let it return a gradient of the same shape, dtype and device, or None",
    )
