"""What a call does to its inputs and outputs: kinds of effects on tensors."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch

from foretrace import torch_api
from foretrace.ir.program.effect import Call, Code, Effect, Phase
from foretrace.ir.program.equality import ProgramsDiffer
from foretrace.ir.values.tensor_type import TensorType


class InputEffect(Effect):
    """An effect on one input, which two runs have to have in common."""

    index: int
    done: ClassVar[str]
    """what one run does and the other does not, in words"""

    @property
    def inputs(self) -> tuple[int, ...]:
        """The input."""
        return (self.index,)

    @classmethod
    def merge(
        cls, ones: Sequence[Self], others: Sequence[Self], places: Mapping[int, int]
    ) -> Sequence[Self]:
        """Both runs do the same to the same inputs."""
        items: Any = others  # of a dataclass
        if {replace(each, index=places[each.index]) for each in items} != {*ones}:
            raise ProgramsDiffer(f"one side of a question of data {cls.done}")
        return ones


@dataclass(frozen=True, slots=True)
class Reshape(InputEffect):
    """Operators in place give an input another shape."""

    index: int
    type: TensorType
    """how it lies after the call"""
    phase: ClassVar[Phase] = "memory"
    done: ClassVar[str] = "gives an input another shape"

    @property
    def counted(self) -> tuple[int, ...]:
        """The input: what the caller has saved of it is another now."""
        return (self.index,)

    @classmethod
    def run(cls, effects: Sequence[Self], call: Call) -> None:
        """Set shape and strides."""
        for each in effects:
            parts = (each.type.shape, each.type.stride)
            set_geometry(call.inputs[each.index], *([*map(call.size, part)] for part in parts))

    @classmethod
    def lines(cls, effects: Sequence[Self], code: Code) -> Iterable[str]:
        """Set them in generated code."""
        for each in effects:
            parts = (each.type.shape, each.type.stride)
            shape, stride = (", ".join(map(code.size, part)) for part in parts)
            name = code.bind(set_geometry, "set_geometry")
            yield f"{name}({code.inputs[each.index]}, [{shape}], [{stride}])"


def set_geometry(live: torch.Tensor, shape: list[int], stride: list[int]) -> None:
    """Give an input the shape that operators in place gave it.

    Version counters have counted it before the graph ran: what the caller has saved is another now,
    what the graph saves afterwards is as it was. What it saves before is written over in the graph.
    """
    with torch_api.uncounted(live), torch.no_grad():
        live.as_strided_(shape, stride)


@dataclass(frozen=True, slots=True)
class CountWrite(InputEffect):
    """Operators in place give a view of an input another shape: autograd counts that as a write."""

    index: int
    phase: ClassVar[Phase] = "memory"
    done: ClassVar[str] = "gives a view of an input another shape"

    @property
    def counted(self) -> tuple[int, ...]:
        """The input."""
        return (self.index,)

    @classmethod
    def run(cls, effects: Sequence[Self], call: Call) -> None:
        """It is counted before the graph runs."""

    @classmethod
    def lines(cls, effects: Sequence[Self], code: Code) -> Iterable[str]:
        """None: the same."""
        return ()


@dataclass(frozen=True, slots=True)
class ClearGrad(InputEffect):
    """The program sets the `.grad` of an input to None."""

    index: int
    done: ClassVar[str] = "sets .grad to None"

    @classmethod
    def run(cls, effects: Sequence[Self], call: Call) -> None:
        """Clear them."""
        for each in effects:
            call.inputs[each.index].grad = None

    @classmethod
    def lines(cls, effects: Sequence[Self], code: Code) -> Iterable[str]:
        """Clear them in generated code."""
        return (f"{code.inputs[each.index]}.grad = None" for each in effects)


@dataclass(frozen=True, slots=True)
class SetRequiresGrad(InputEffect):
    """The program sets `requires_grad` of an input."""

    index: int
    on: bool
    done: ClassVar[str] = "sets requires_grad of an input"

    @classmethod
    def run(cls, effects: Sequence[Self], call: Call) -> None:
        """Set them."""
        for each in effects:
            call.inputs[each.index].requires_grad_(each.on)

    @classmethod
    def lines(cls, effects: Sequence[Self], code: Code) -> Iterable[str]:
        """Set them in generated code."""
        return (f"{code.inputs[each.index]}.requires_grad_({each.on})" for each in effects)


@dataclass(frozen=True, slots=True)
class MarkOutput(Effect):
    """An output is a parameter that the program has created, or has attributes that it has set."""

    place: int
    """of the output"""
    parameter: bool
    attributes: tuple[tuple[str, Any], ...]
    """numbers and text, by name"""

    @classmethod
    def run(cls, effects: Sequence[Self], call: Call) -> None:
        """Mark them."""
        for each in effects:
            each.mark(call.outputs[each.place])

    @classmethod
    def lines(cls, effects: Sequence[Self], code: Code) -> Iterable[str]:
        """Mark them in generated code."""
        return (f"{code.bind(each.mark, 'mark')}({code.outputs[each.place]})" for each in effects)

    @classmethod
    def merge(
        cls, ones: Sequence[Self], others: Sequence[Self], places: Mapping[int, int]
    ) -> Sequence[Self]:
        """Both runs mark the same outputs."""
        if [*ones] != [*others]:
            raise ProgramsDiffer(
                "one side of a question of data gives a parameter, or sets attributes of a result"
            )
        return ones

    def mark(self, tensor: torch.Tensor) -> None:
        """Give a tensor the class and the attributes; it stays the object that it is."""
        if self.parameter:
            tensor.__class__ = torch.nn.Parameter
        vars(tensor).update(self.attributes)
