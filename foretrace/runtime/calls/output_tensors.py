"""The tensors that a call of a cut returns: results of its graph, live inputs, views of them."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final

import sympy
import torch
from torch import Tensor

from foretrace.ir.program.effect import Call
from foretrace.ir.program.interface import Output
from foretrace.ir.program.op import ViewStep
from foretrace.ir.program.recording import Recording
from foretrace.ir.values.nested import map_tree
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value
from foretrace.lowering.cuts.output_views import Lacking, OutputViews
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


def loose(tensor: Tensor, base: Tensor | None = None) -> Tensor:
    """The tensor as a view that is taken under no_grad: it requires grad, without a history.

    `base`: what it is a view of; None: a tensor that nobody has.
    """
    with torch.no_grad():
        if base is not None:
            return base.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        leaf = tensor.detach().requires_grad_()
        return torch.ops.aten.alias.default(leaf)  # view_as has other strides where a size is 1


def _view_of_data(tensor: Tensor) -> Tensor:
    """The tensor as a view of one that nobody has, with a version counter of its own."""
    return tensor.data.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


MARKS: Final[Mapping[Lacking, Callable[..., Tensor]]] = MappingProxyType(
    {
        "leaf": Tensor.requires_grad_,
        "loose": loose,
        "spent": after_backward,
        "data": attrgetter("data"),
        "view of data": _view_of_data,
        "owner": Tensor.detach,
        "view": loose,
    }
)
"""How a tensor is left without what it lacks, as in eager"""
OF_GRADIENTS: Final = ("leaf", "loose")


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

    def lacks(self, place: int | None, value: Value, output: Output) -> Lacking | None:
        """A history only if it requires grad in this call, or if a backward has run of it."""
        lacks = super().lacks(place, value, output)
        if lacks not in OF_GRADIENTS or place is None:
            return lacks
        return lacks if self._results[place].requires_grad else None

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

    def marked(self, built: Any, lacks: Lacking, base: int | None) -> Any:
        """The tensor, to autograd as in eager."""
        return MARKS[lacks](built, *([] if base is None else [self.live(base)]))
