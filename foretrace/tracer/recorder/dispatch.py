"""Learn the outcome of a call, once for all calls with operands of the same types.

A composite's body runs once over stand-ins and is shared; where it depends on more than types (it
writes to an operand, or asks for a constant's value), it is recorded at each call.
"""

from copy import copy
from typing import Any

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.origin import Choice
from foretrace.ir.values.nested import leaves, map_tree
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value, map_values, values_in
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.autocast import INSIDE
from foretrace.operators.abstract_tensors.supported_inputs import check_asked_for
from foretrace.operators.schemas.dispatch_result import Outcome, Share
from foretrace.operators.schemas.quirks import CASTS_BELOW
from foretrace.operators.schemas.schema import schema_of
from foretrace.operators.targets.sdpa import WHAT as ATTENTION
from foretrace.tracer.functionalization.builder import RecorderBase
from foretrace.tracer.functionalization.functionalize import functionalize
from foretrace.tracer.functionalization.run_state import Switched
from foretrace.tracer.recorder.composite_bodies import RecordEachCall, learn_body, subclass_body
from foretrace.tracer.recorder.data_dependent_ops import DataSizedOp, answer
from foretrace.tracer.recorder.op_handlers import HANDLERS, KERNEL, Handler, of_kind
from foretrace.tracer.subclasses.dispatch import check_takes
from foretrace.tracer.subclasses.tracked_writes import write_to_wrapping

FILLS = ("deterministic algorithms", "filling of memory")
"""Rows that decide what memory holds that nobody has written"""


def learn(
    recorder: RecorderBase, func: Any, args: Tree, kwargs: dict[str, Tree], grad_mode: bool
) -> Outcome:
    """Learn the outcome of a call: a body, results of a leaf, or the procedure of a handler."""
    types = [value.type for value in values_in((args, kwargs))]
    if not any(type.wrapped for type in types):
        return _learn(recorder, func, args, kwargs, grad_mode)
    check_takes(func, next(str(type.wrapped) for type in types if type.wrapped))
    if (schema := schema_of(func)).writes and schema.written_now(args, kwargs):
        kernel, choice = recorder.semantics.body_kernel(func, args, kwargs)
        return Outcome(
            None,
            inline=RecordEachCall(kernel, choice) if kernel else write_to_wrapping,
            lasting=False,
        )
    outcome = _learn(recorder, func, args, kwargs, grad_mode)
    outcome.lasting = False  # what a class does may be another in the next capture
    return outcome


def _learn(
    recorder: RecorderBase, func: Any, args: Tree, kwargs: dict[str, Tree], grad_mode: bool
) -> Outcome:
    handler = HANDLERS.get(func, KERNEL)
    outcome = _handled(recorder, handler, func, args, kwargs, grad_mode)
    if outcome is not None:
        return outcome
    schema = schema_of(func)
    if schema.outs and schema.functional is not None:  # its kernels choose the layout of `out`
        return Outcome(None, inline=functionalize)
    kernel, choice = recorder.semantics.body_kernel(func, args, kwargs)
    if kernel is None and any(value.type.wrapped for value in values_in((args, kwargs))):
        return subclass_body(recorder, func, args, kwargs, grad_mode)
    if kernel is not None:
        body = learn_body(recorder, func, kernel, args, kwargs, choice)
        if body is not None:
            return body
    _check_autocast(recorder, func, values_in((args, kwargs)))
    if schema.written_now(args, kwargs):
        return Outcome(None, inline=functionalize)
    if not schema.returns.tensors:
        return Outcome(None, inline=answer)
    return _leaf_result(recorder, handler, func, args, kwargs, choice, grad_mode=grad_mode)


def _handled(
    recorder: RecorderBase,
    handler: Handler,
    func: Any,
    args: Tree,
    kwargs: dict[str, Tree],
    grad_mode: bool,
) -> Outcome | None:
    """The outcome of a call that no kernel answers; None where one does."""
    outcome = of_kind(recorder, func, args, kwargs)
    if outcome is None:
        check_asked_for(func, args, kwargs)
        procedure = handler.procedure_for(func, args, grad_mode)
        outcome = None if procedure is None else Outcome(None, inline=procedure)
    return outcome


def _leaf_result(
    recorder: RecorderBase,
    handler: Handler,
    func: Any,
    args: Tree,
    kwargs: dict[str, Tree],
    choice: Choice | None,
    *,
    grad_mode: bool,
) -> Outcome:
    """The types of what a leaf gives, and which of that are views."""
    if handler.asks is not None:
        handler.asks(recorder, func, args, kwargs)
    typed = [map_values(tree, lambda v: v.type) for tree in (args, kwargs)]
    try:
        with recorder.learning(func):
            result = recorder.semantics.infer(func, *typed)
    except Refusal as refusal:
        if refusal.kind != "data-dependent":
            raise
        return Outcome(None, inline=DataSizedOp(copy(refusal), handler.of_known), lasting=False)
    schema, fresh = schema_of(func), [t for t in leaves(result) if isinstance(t, TensorType)]
    views = schema.view_positions(args, kwargs, len(fresh))
    # under no_grad a view of what requires grad does so too, though no gradient goes through it
    seen = grad_mode or any(share is Share.VIEW for *_, share in views)
    if seen and any(v.type.requires_grad for v in values_in((args, kwargs))):
        followed = recorder.semantics.followed(func, *typed)
        fresh = [t.with_grad(on) for t, on in zip(fresh, followed, strict=bool(followed))] or fresh
    types = iter(map(recorder.types.intern, fresh))
    result = map_tree(result, lambda t: next(types) if isinstance(t, TensorType) else t)
    factory = "pin_memory" in schema.arguments or handler.factory
    return Outcome(result, None, choice, views, factory=factory)


def casting_inside(
    recorder: RecorderBase, func: Any, args: Tree, kwargs: dict[str, Tree], tensors: list[Abstract]
) -> Outcome | None:
    """A body over the call's own tensors, where autocast keeps a cast of one for later calls."""
    if not any(map(recorder.casts.keeps, tensors)) or not recorder.casts.acts_inside(func):
        return None
    handler = HANDLERS.get(func, KERNEL)
    if handler.procedure_for(func, args, recorder.grad_mode()) is not None:
        return None
    kernel, choice = recorder.semantics.body_kernel(func, args, kwargs)
    return Outcome(None, inline=RecordEachCall(kernel, choice or INSIDE)) if kernel else None


def under_switches(
    recorder: RecorderBase, func: Any, args: Tree, outcome: Outcome, operands: list[Value]
) -> Outcome:
    """The outcome of a call where the program has switched torch's ambient state.

    `args`: all arguments, the named ones in a dict at the end.

    Raises:
        Refusal: a graph, which runs in the state of its own call, would do something else.
    """
    types = [value.type for value in operands]
    types += [each for each in leaves(outcome.result) if isinstance(each, TensorType)]
    for switched in recorder.switched.values():
        if switched.row.name == "default dtype":
            minds = _minds_default_dtype(args, operands, types)
        else:
            minds = switched.row.inside == "refused" and _minds(switched.row, outcome, types)
        if minds:
            raise switched_refusal(switched, f"{func} runs")
    choice = outcome.choice
    if choice is not None and choice.what == ATTENTION and "attention kernels" in recorder.switched:
        outcome = copy(outcome)
        reason = f"the program switches kernels, and {choice.value} is {choice.reason}"
        outcome.choice = Choice(ATTENTION, "opened", reason, choice.rejected)
    return outcome


def switched_refusal(switched: Switched, what: str) -> Refusal:
    """The refusal of what a row may change while the program has switched it."""
    name, ways = switched.row.name, ("or pass dtype=, as in torch.ones(3, dtype=torch.float64)",)
    return Refusal(
        f"{what} while the program has switched the {name}, and a graph runs as torch is set around"
        " its call",
        kind="side effect",
        do=(
            f"switch the {name} outside of the captured program",
            *(ways if name == "default dtype" else ()),
        ),
    )


def _minds(row: torch_api.Row, outcome: Outcome, types: list[TensorType]) -> bool:
    """Whether a row may change what a call computes, by what is known of the call."""
    if row.device and not any(each.device.type == row.device for each in types):
        return False
    return not outcome.views and (not outcome.factory or row.name in FILLS)


def _minds_default_dtype(args: Tree, operands: list[Value], types: list[TensorType]) -> bool:
    """Whether the default dtype may decide a dtype: of a factory's result, or of numbers.

    Beside a tensor of floats, a number of Python's has that tensor's dtype.
    """
    *_, named = args
    if named.get("dtype") is not None or any(value.type.differentiable for value in operands):
        return False
    numbers = any(isinstance(each, (float, complex)) for each in leaves(args))
    return numbers or any(each.differentiable for each in types)


def _check_autocast(recorder: RecorderBase, func: Any, operands: list[Value]) -> None:
    """Refuse an operator whose own kernel calls what autocast casts.

    In eager autocast acts inside it, which a call of it in a graph does not show.
    """
    types, casts = [value.type for value in operands], recorder.casts
    full = any(t.dtype is torch.float32 and t.device.type in casts.devices for t in types)
    if full and func in CASTS_BELOW and casts.acts_inside(func):
        raise Refusal(
            f"autocast acts inside the kernel of {func}, which no graph shows",
            kind="autocast",
            do="call it under torch.autocast(device_type, enabled=False), on .float() operands",
        )
