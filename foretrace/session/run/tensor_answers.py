"""What a session answers of its tensors, where C++ or Python asks them without an operator."""

from typing import Any

import torch

from foretrace.ir.program.recording import Input
from foretrace.ir.program.tensor_type import Size
from foretrace.operators.abstract_tensors.abstract_tensor import (
    Abstract,
    TensorAnswers,
    of_a_call,
)
from foretrace.session.run.grad_accumulators import RunLeaves
from foretrace.session.run.grad_attributes import Gradients
from foretrace.tracer.functionalization.alias import written
from foretrace.tracer.recorder.autograd_hooks import Hooking
from foretrace.tracer.recorder.recorder import Recorder


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

    def switch(self, tensor: Abstract, wanted: bool) -> bool:
        """As `RunLeaves.switch`."""
        return self._leaves is not None and self._leaves.switch(tensor, wanted)

    def take(self, tensor: Abstract, other: torch.Tensor) -> bool:
        """As `RunLeaves.take`."""
        if self._leaves is not None:
            self._leaves.take(tensor, other)
        return self._leaves is not None

    def written(self, tensor: Abstract) -> int:
        """How often memory was written to that the program has made."""
        if self._recorder.autograd.inferred:  # an inference tensor has no version counter
            raise of_a_call()
        return written(tensor, self._recorder.scope.log, self._inputs)

    def room(self, tensor: Abstract, needed: Size, number: int) -> Size:
        """As `Gradients.room`."""
        return self._gradients.room(tensor, needed, number)
