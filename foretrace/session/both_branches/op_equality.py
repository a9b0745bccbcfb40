"""Compares two runs of one program, without the data that they compute with."""

from copy import copy
from typing import Any, Self

import torch

from foretrace.ir.program.equality import Equality, ProgramsDiffer
from foretrace.ir.program.interface import Input
from foretrace.ir.program.op import Op, Target
from foretrace.ir.program.origin import Origin
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value
from foretrace.tracer.data_dependence.answer_path import BranchMarker
from foretrace.tracer.recorder.autograd_hooks import HookCall
from foretrace.tracer.recorder.function_target import FunctionCall


class TwoRuns(Equality):
    """The equality of two runs that have had the same answers; `there` and `back` map values.

    A value that no op computes equals one of the other run only where they were unified, or where
    both are constants of the same bits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.constants: dict[Value, Input] = {}
        """the constants of both that have not met yet"""

    def unify(self, one: Value, other: Value) -> None:
        """Let two values be one.

        Raises:
            ProgramsDiffer: one of them is another one already.
        """
        if not self.bind(one, other):
            raise ProgramsDiffer

    def value(self, one: Value, other: Value) -> bool:
        """Whether they are one; a constant is met when it is used."""
        if one in self.there or other in self.back:
            return self.there.get(one) is other
        if one not in self.constants or other not in self.constants:
            return False
        same = same_bits(self.constants[one].tensor, self.constants[other].tensor)
        return same and self.bind(one, other)

    def type(self, one: TensorType, other: TensorType) -> bool:
        """Whether two types are one, whether autograd follows or not."""
        return one.with_grad(False) == other.with_grad(False)

    def target(self, one: Target, other: Target) -> bool:
        """Whether two ops call the same, whatever each run has kept of its call."""
        if isinstance(one, BranchMarker) and isinstance(other, BranchMarker):
            return one.number == other.number
        if isinstance(one, HookCall) and isinstance(other, HookCall):
            return one.like(other)
        if isinstance(one, FunctionCall) and isinstance(other, FunctionCall):
            return one.function is other.function
        return super().target(one, other)

    def origin(self, one: Origin, other: Origin) -> bool:
        """Whether two ops come from the same line, module call and modes."""
        modes = [(o.grad_mode, o.inference, o.checkpoint is None, o.recast) for o in (one, other)]
        paths = [[str(call) for call in o.module.stack()] if o.module else [] for o in (one, other)]
        return one.frame == other.frame and modes[0] == modes[1] and paths[0] == paths[1]

    def similar(self, one: Op, other: Op) -> bool:
        """Whether two ops are the same call, of values that may be others."""
        return super().similar(one, other) and (one.own is None) == (other.own is None)

    def below(self, one: Op, other: Op) -> None:
        """Compare the ops that each has for itself; a body that is shared follows from the call."""
        self.ops(one.own or (), other.own or ())

    def differ(self, what: str, one: Op | None, other: Op | None = None) -> ProgramsDiffer:
        """Create the difference, with the lines of both."""
        if one is None or other is None:
            return ProgramsDiffer()
        return ProgramsDiffer(f"{one.origin.frame} and {other.origin.frame}")

    def copy(self) -> Self:
        """The same, to be tried out."""
        new = copy(self)
        new.there, new.back = dict(self.there), dict(self.back)
        return new


def same_bits(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether two constants that a program has built from Python numbers are equal, bit for bit."""
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


def described(value: Any) -> str:
    """What a side gives, in words."""
    if not isinstance(value, Value):
        return repr(value)
    type = value.type
    at = f" at {type.offset}" if type.offset != 0 else ""
    return f"{type!r} on {type.device} by {list(type.stride)}{at}"
