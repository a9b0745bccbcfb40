"""The tensors that a call of a cut returns: results of its graph, live inputs, views of them."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import sympy
import torch
from torch import Tensor

from foretrace.ir.program.effect import Call
from foretrace.ir.program.op import ViewStep
from foretrace.ir.program.recording import Recording
from foretrace.ir.program.walk import MissingHistory
from foretrace.ir.values.nested import map_tree
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value
from foretrace.lowering.cuts.output_views import OutputViews
from foretrace.runtime.calls.untrainable_results import after_backward


class _InMemory(torch.autograd.Function):
    """Gives a tensor's memory the history of another that has the same content."""

    @staticmethod
    def forward(ctx: Any, memory: Tensor, result: Tensor) -> Tensor:
        return memory.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, gradients[0]


in_memory: Any = _InMemory.apply


def put_there(leaf: Tensor, memory: Tensor) -> Tensor:
    """The leaf of a graph, which has other memory from now on, of the same content."""
    leaf.data = memory
    return leaf


def loose(tensor: Tensor) -> Tensor:
    """The tensor as a view that is taken under no_grad: it requires grad, without a history."""
    leaf = tensor.detach().requires_grad_()
    with torch.no_grad():
        return torch.ops.aten.alias.default(leaf)  # view_as has other strides where a size is 1


MARKS: Final[Mapping[MissingHistory, Callable[[Tensor], Tensor]]] = MappingProxyType(
    {"leaf": Tensor.requires_grad_, "loose": loose, "spent": after_backward}
)
"""How a tensor that requires grad is left without a history, as in eager"""


class OutputTensors(OutputViews[Any]):
    """Builds the outputs of one call; its `outputs` are the graph's results.

    Whether a result requires grad in this call decides: it may run under no_grad.
    """

    def __init__(self, recorded: Recording, call: Call) -> None:
        super().__init__(recorded)
        self.call, self._results = call, call.outputs

    def constant(self, place: int | None, item: Tree) -> Any:
        """A number of this call, or the constant."""
        return item if place is None or not isinstance(item, sympy.Basic) else self._results[place]

    def result(self, place: int | None, value: Value) -> Any:
        """The result."""
        return None if place is None else self._results[place]

    def live(self, index: int) -> Any:
        """The input."""
        return self.call.inputs[index]

    def follows(self, place: int | None, value: Value) -> bool:
        """Whether the graph's own result has a history, if the program returns one."""
        if place is None:
            return True
        return self._results[place].requires_grad and self.recorded.followed(value)

    def missing(self, place: int | None, value: Value, *, separate: bool) -> MissingHistory | None:
        """Only of what requires grad in this call, or what a backward has run of."""
        missing = self.recorded.missing(value)
        if missing is None or place is None:
            return None
        return missing if self._results[place].requires_grad or missing == "spent" else None

    def detached(self, of: Any, *, always: bool) -> Any:
        """The same memory."""
        return of.detach()

    def taken(self, of: Any, step: ViewStep, seen: TensorType) -> Any:
        """The view by its own operator."""
        size = self.call.size
        where = map_tree(step.args[1:], lambda n: size(n) if isinstance(n, sympy.Basic) else n)
        return step.func(of, *where)

    def strided(self, of: Any, seen: TensorType, index: int) -> Any:
        """The view; the input may begin elsewhere in its memory than the example did."""
        size, before = self.call.size, self.recorded.inputs[index].value.type.offset
        shape, stride = (tuple(map(size, part)) for part in (seen.shape, seen.stride))
        offset = size(seen.offset) - size(before) + self.live(index).storage_offset()
        return of.as_strided(shape, stride, offset)

    def leaf_in_memory(self, view: Any, place: int, value: Value) -> Any:
        """The result, as other results depend on it."""
        return put_there(self._results[place], view)

    def joined(self, view: Any, place: int | None, value: Value) -> Any:
        """The view, with the result's history."""
        return in_memory(view, self.result(place, value))

    def marked(self, built: Any, missing: MissingHistory) -> Any:
        """The tensor, which requires grad as in eager."""
        return MARKS[missing](built)
