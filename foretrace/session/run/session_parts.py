"""Parts of a session: what it assumes, what it knows of tensors, and what it answers for them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from foretrace.ir.program.recording import Input
from foretrace.ir.program.tensor_type import Size
from foretrace.ir.pydata.location import Location
from foretrace.ir.pydata.state import Change
from foretrace.ir.source.state_change_lines import Lines
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.tensor_queries import TensorAnswers, view_unknown
from foretrace.python_state.effects.counters import SymbolicCounters
from foretrace.session.run.append_only import AppendOnlyContainers
from foretrace.session.run.grad_accumulators import RunLeaves
from foretrace.session.run.grad_attributes import Gradients
from foretrace.tracer.functionalization.alias import written
from foretrace.tracer.recorder.autograd_hooks import Hooking
from foretrace.tracer.recorder.recorder import Recorder


@dataclass(frozen=True, slots=True)
class Assumed:
    """What a run takes for known of the Python state that the program finds."""

    counts: SymbolicCounters = field(default_factory=SymbolicCounters)
    """numbers that earlier runs have shown to be counted with"""
    fills: AppendOnlyContainers = field(default_factory=AppendOnlyContainers)
    """containers of which the program may read nothing"""
    moved: Sequence[Change] = ()
    """places with other tensors than earlier captures found there"""
    together: bool = False
    """whether arguments that share memory are views of one input"""


@dataclass(slots=True, eq=False)
class KnownTensors:
    """What a run knows of the tensors that it is given or reaches, and how it calls them."""

    names: dict[int, str] = field(default_factory=dict)
    """of tensors that the program may reach from outside, by id"""
    taken: set[str] = field(default_factory=set)
    """the names that inputs have"""
    abstract: dict[int, Abstract] = field(default_factory=dict)
    """the abstract tensor for each real one, by its id"""
    themselves: set[int] = field(default_factory=set)
    """ids of module tensors that the program has as they are"""
    rebound: set[int] = field(default_factory=set)
    """indices of inputs that the program binds to other tensors"""
    as_given: list[Any] = field(default_factory=list)
    """the placeholders of arguments; in the place of those that share memory, their views"""
    views: dict[int, tuple[Abstract, torch.Tensor]] = field(default_factory=dict)
    """for such a placeholder, by id: that of the memory, and the real tensor"""
    counted: list[tuple[tuple[Location, int] | str, sympy.Symbol]] = field(default_factory=list)
    """numbers that the program counts with, and the symbols in their places"""
    lines: dict[tuple[int, tuple[type, ...]], Lines] = field(default_factory=dict)
    """the lines of the program's functions, by how many ran and which classes there are"""

    def unique(self, name: str) -> str:
        """Take the name, with a number after it if an input has it already."""
        count, found = 0, name
        while found in self.taken:
            count += 1
            found = f"{name}_{count}"
        self.taken.add(found)
        return found

    def forget(self) -> None:
        """Let go of the abstract tensors, at the end of a run."""
        self.as_given.clear()
        self.views.clear()
        self.abstract.clear()


class RunAnswers(TensorAnswers):
    """Those of one run.

    Args:
        recorder: what records the program.
        inputs: the inputs so far.
        gradients: what knows the memory of inputs.
        leaves: what changes leaves; None where no call can change what it was given.
    """

    def __init__(
        self,
        recorder: Recorder,
        inputs: list[Input],
        gradients: Gradients,
        leaves: RunLeaves | None,
    ) -> None:
        self.hooking: Any = Hooking(recorder)
        self._recorder, self._inputs = recorder, inputs
        self._gradients, self._leaves = gradients, leaves

    def set_requires_grad(self, tensor: Abstract, wanted: bool) -> bool:
        """As `RunLeaves.switch`."""
        return self._leaves is not None and self._leaves.switch(tensor, wanted)

    def set_data(self, tensor: Abstract, other: torch.Tensor) -> bool:
        """As `RunLeaves.take`."""
        if self._leaves is not None:
            self._leaves.take(tensor, other)
        return self._leaves is not None

    def version(self, tensor: Abstract) -> int:
        """How often memory was written to that the program has made."""
        if self._recorder.autograd.inferred:  # an inference tensor has no version counter
            raise view_unknown()
        return written(tensor, self._recorder.scope.log, self._inputs)

    def storage_size(self, tensor: Abstract, needed: Size, number: int) -> Size:
        """As `Gradients.room`."""
        return self._gradients.room(tensor, needed, number)
