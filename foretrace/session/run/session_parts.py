"""Parts of a session: what it assumes, knows of tensors and answers, and its watched recorder."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch

from foretrace.ir.pydata.state import Change
from foretrace.ir.source.state_change_lines import Lines
from foretrace.ir.values.tensor_type import Size
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.abstract_tensors.tensor_queries import TensorAnswers, view_unknown
from foretrace.operators.schemas.cache import lasts
from foretrace.python_state.access.monitor import AccessMonitor
from foretrace.python_state.code.first_imports import FirstImports
from foretrace.python_state.effects.counters import SymbolicCounters
from foretrace.session.run.append_only import AppendOnlyContainers
from foretrace.session.run.grad_accumulators import RunLeaves
from foretrace.session.run.grad_attributes import Gradients
from foretrace.tracer.functionalization.alias import written
from foretrace.tracer.functionalization.autograd_leaves import value_of
from foretrace.tracer.recorder.autograd_hooks import Hooking
from foretrace.tracer.recorder.modes_inside import is_inference
from foretrace.tracer.recorder.recorder import Recorder
from foretrace.tracer.recorder.run_inputs import RunInputs


@dataclass(frozen=True, slots=True)
class Assumed:
    """What a run assumes of the Python state that the program finds."""

    counts: SymbolicCounters = field(default_factory=SymbolicCounters)
    """numbers that earlier runs have shown to be counted with"""
    fills: AppendOnlyContainers = field(default_factory=AppendOnlyContainers)
    """containers of which the program may read nothing"""
    moved: Sequence[Change] = ()
    """places with other tensors than earlier captures found there"""
    own: frozenset[int] = frozenset()
    """ids of arguments that the program has by another way, too: no stand-ins are"""
    together: bool = False
    """whether arguments that share memory are views of one input"""
    labelled: bool = False
    """whether module tensors on another device than the target have stand-ins, by whose label
    autocast casts, also where the program may compare them with what they stand for"""
    switches: bool = True
    """whether the program may switch torch's ambient state"""
    as_they_are: frozenset[str] = frozenset()
    """functions of `math` and of torch, by their full names, for which the program finds no
    stand-ins: it does more with them than to call them"""
    first_calls: bool = False
    """whether a refused first call runs as Python, which a memo counts"""
    imports: FirstImports = field(default_factory=FirstImports)
    """the modules that the program is the first to import"""
    late: list[FunctionType] = field(default_factory=list)
    """functions that runs have come to, to which no name leads"""


@dataclass(slots=True, eq=False)
class KnownTensors:
    """What a run knows of the tensors that it is passed or reaches, and their names."""

    names: dict[int, str] = field(default_factory=dict)
    """of tensors that the program may reach from outside, by id"""
    taken: set[str] = field(default_factory=set)
    """the names that inputs have"""
    abstract: dict[int, Abstract] = field(default_factory=dict)
    """the abstract tensor for each real one, by its id"""
    reached: set[int] = field(default_factory=set)
    """ids of inputs that the program had by a way other than that by which they are inputs"""
    own: frozenset[int] = frozenset()
    """ids of arguments that it had by another way, too, or may have had"""
    themselves: set[int] = field(default_factory=set)
    """ids of module tensors that the program has as they are"""
    rebound: set[int] = field(default_factory=set)
    """indices of inputs that the program binds to other tensors"""
    lines: dict[tuple[int, tuple[type, ...]], Lines] = field(default_factory=dict)
    """the lines of the program's functions, by how many ran and which classes there are"""

    sees_switches: bool = False
    """whether it would see where the program switches torch's ambient state"""

    def unique(self, name: str) -> str:
        """Take the name, with a number after it if an input has it already."""
        count, found = 0, name
        while found in self.taken:
            count += 1
            found = f"{name}_{count}"
        self.taken.add(found)
        return found


class RunAnswers(TensorAnswers):
    """Answers what tensors of one run are asked.

    Args:
        recorder: what records the program.
        inputs: the inputs so far.
        gradients: what knows the memory of inputs.
        leaves: what changes leaves; None where no call can change its arguments.
    """

    def __init__(
        self,
        recorder: Recorder,
        inputs: RunInputs,
        gradients: Gradients,
        leaves: RunLeaves | None,
    ) -> None:
        self.asks_inference = False
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

    @property
    def refuses_text(self) -> bool:  # type: ignore[override]
        """As of what leaves nothing behind: a print."""
        outside = self._gradients.outside
        return outside is not None and outside.holes is not None

    def is_inference(self, tensor: Abstract) -> bool:
        """Whether it is one in eager; which inputs are is asked of later calls."""
        self.asks_inference = True
        inputs = self._inputs.with_real()
        such = [item.value for item, real in inputs if item.size is None and real.is_inference()]
        return is_inference(self._recorder, value_of(tensor, self._recorder), such)

    def version(self, tensor: Abstract) -> int:
        """How often memory of the program's own was written to."""
        if self._recorder.autograd.inference.seen:  # an inference tensor has no version counter
            raise view_unknown()
        return written(tensor, self._recorder.scope.log, self._inputs)

    def storage_size(self, tensor: Abstract, needed: Size, number: int) -> Size:
        """As `Gradients.room`."""
        return self._gradients.room(tensor, needed, number)


RECORD = Recorder.__torch_dispatch__
"""Not by `super()`, which takes a tenth of a microsecond at each op"""


class WatchedRecorder(Recorder):
    """Records as its base does, and lets nobody watch meanwhile."""

    above = Recorder.above + 1
    """One more frame of ours is between"""

    unwatched: AccessMonitor

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Record one call, unseen: nobody has watched since torch asked for this mode."""
        outside = self.unwatched
        outside.resting += 1
        try:
            return RECORD(self, func, types, args, kwargs)
        finally:
            outside.ended()()

    def user_code(self) -> AbstractContextManager[None]:
        """Inside, the program's own code runs again: it is watched."""
        return self.unwatched.again()

    def learning(self, func: Any) -> AbstractContextManager[None]:
        """Inside, what an operator of the user's asks to say what it returns is watched."""
        return nullcontext() if lasts(func) else self.unwatched.aside()
