"""Whether two runs have done the same, as far as that is said without their values."""

from typing import Any

import torch

from foretrace import torch_api
from foretrace.ir.program.op import ModuleCall, Op, Origin, Value, Write
from foretrace.ir.program.recording import Input
from foretrace.ir.program.tensor_type import TensorType
from foretrace.tracer.data_dependence.answer_path import BranchMarker
from foretrace.tracer.recorder.autograd_hooks import HookCall
from foretrace.tracer.recorder.function_target import FunctionCall

PLAIN = (bool, int, float, complex, str)


def same_target(one: Any, other: Any) -> bool:
    """Whether two ops call the same, whatever each run has kept of its call."""
    if one is other or type(one) is not type(other):
        return one is other
    if isinstance(one, ModuleCall):
        return (one.path, one.qualified_class) == (other.path, other.qualified_class)
    if isinstance(one, Write):
        steps = len(one.steps), len(other.steps)
        return one.func is other.func and one.followed == other.followed and steps[0] == steps[1]
    if isinstance(one, BranchMarker):
        return one.number == other.number
    if isinstance(one, HookCall):
        return one.like(other)
    return isinstance(one, FunctionCall) and one.function is other.function


def same_origin(one: Origin, other: Origin) -> bool:
    """Whether two ops come from the same line, module call and modes."""
    modes = [(o.grad_mode, o.inference, o.checkpoint is None) for o in (one, other)]
    return one.frame == other.frame and modes[0] == modes[1] and same_module(one, other)


def same_module(one: Origin, other: Origin) -> bool:
    """Whether two ops are in calls of the same modules."""
    paths = [[str(call) for call in o.module.stack()] if o.module else [] for o in (one, other)]
    return paths[0] == paths[1]


def same_op(one: Op, other: Op) -> bool:
    """Whether two ops are the same call, of values that may be others."""
    return (
        same_target(one.target, other.target)
        and same_origin(one.origin, other.origin)
        and one.writes == other.writes
        and (one.own is None) == (other.own is None)
        and len(one.outs) == len(other.outs)
        and len(one.args) == len(other.args)
        and one.kwargs.keys() == other.kwargs.keys()
    )


def same_numbers(one: Op, other: Op) -> bool:
    """Whether two calls of the same have as many operands, and the same numbers and words."""
    plain = [
        [leaf for leaf in torch_api.tree_leaves((op.args, op.kwargs)) if isinstance(leaf, PLAIN)]
        for op in (one, other)
    ]
    counts = len(one.operands), len(other.operands)
    same = counts[0] == counts[1] and len(plain[0]) == len(plain[1])
    return same and all(map(same_leaf, *plain))


def same_leaf(one: Any, other: Any) -> bool:
    """Whether two constants of an op are one: 0.0 is not -0.0, nor 0."""
    if one is other:
        return True
    if isinstance(one, (float, complex)):
        return type(one) is type(other) and repr(one) == repr(other)
    return type(one) is type(other) and bool(one == other)


def same_type(one: TensorType, other: TensorType) -> bool:
    """Whether two types are one, whoever follows."""
    return one.with_grad(False) == other.with_grad(False)


def same_constant(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether two tensors that a program has made from Python numbers are one, to the last bit."""
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    bits = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (one, other)]
    return torch.equal(*bits)


def key_of(item: Input) -> Any:
    """What an input is, as any run of the program has it; None of a constant."""
    if item.gradient_of is not None:
        return ("gradient of", key_of(item.gradient_of))
    if item.argument is not None:
        return ("argument", item.argument)
    if item.size is not None:
        return ("size", item.size)
    if item.owner is not None:
        return ("owner", id(item.owner[0]), item.owner[1])
    return None if item.role.kind == "constant" else ("tensor", id(item.tensor))


def told(value: Any) -> str:
    """What a side gives, in words."""
    if not isinstance(value, Value):
        return repr(value)
    type = value.type
    at = f" at {type.offset}" if type.offset != 0 else ""
    return f"{type!r} on {type.device} by {list(type.stride)}{at}"
