"""A program's outputs from its graph's results: live inputs, views of their memory.

A call of a cut builds tensors, generated code builds expressions, an exported graph builds ops.
How each output is built is decided here for all three; a subclass does the steps.
"""

from abc import ABC, abstractmethod
from typing import Final, Generic, TypeAlias, TypeVar

from foretrace.ir.program.interface import Output, Relation
from foretrace.ir.program.op import ViewStep
from foretrace.ir.program.recording import Recording
from foretrace.ir.program.walk import MissingHistory
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value

T = TypeVar("T")
Lacking: TypeAlias = MissingHistory | Relation
"""What an output lacks"""
VIEWED: Final = ("loose", "view")
"""What is a view of an input, taken under no_grad"""
RESULTS: Final = (None, "leaf")
"""How an output that is no view may lack a history, so that it is the graph's result"""


class OutputViews(ABC, Generic[T]):
    """Builds the outputs of one program.

    Views are taken in the order in which the run took them: autograd adds up their gradients so.
    """

    def __init__(self, recorded: Recording) -> None:
        self.recorded = recorded
        self.views: dict[Tree, T] = {}
        """outputs by value: one that is returned twice is one object again"""

    def all(self) -> list[T]:
        """Build all outputs, in the order of the program."""
        built = {place: self.output(place, output) for place, output in self.recorded.in_run_order}
        return [built[place] for place in range(len(self.recorded.outputs))]

    def output(self, place: int | None, output: Output) -> T:
        """Build one output; `place` is None for the base of other views."""
        value = output.value
        if not isinstance(value, Value):
            return self.constant(place, value)
        if output.same_as is not None:
            return self.live(output.same_as)
        plain = output.view_of is None and output.relation is None
        if plain and self.recorded.missing(value) in RESULTS:
            return self.result(place, value)
        if value in self.views:
            return self.views[value]
        if output.view_of is None or output.view_type is None:
            built = self.result(place, value)
        else:
            built = self._view(place, value, output, output.view_of, output.view_type)
        lacks = self.lacks(place, value, output)
        base = output.base if lacks in VIEWED else None
        built = built if lacks is None else self.marked(built, lacks, base)
        self.views[value] = built = self.named(value, built)
        return built

    def _view(
        self, place: int | None, value: Value, output: Output, index: int, seen: TensorType
    ) -> T:
        """View the memory of a written input again."""
        live, followed = self.live(index), self.follows(place, value)
        joined = output.separate and followed and self.recorded.followed(value)
        if output.through is not None:
            passed = output.through.same_as
            live = self.views[output.through.value] if passed is None else self.live(passed)
        elif joined or (self.recorded.ends_followed(index) and not followed):
            live = self.detached(live, always=joined)
        if followed and output.step is not None:
            view = self.taken(live, output.step, seen)
        else:
            view = self.strided(live, seen, index)
        if joined:
            return self.joined(view, place, value)
        if output.detached:
            view = self.detached(view, always=True)
        if place is not None and self.recorded.is_new_leaf(value):
            return self.leaf_in_memory(view, place, value)
        return view

    def leaf_in_memory(self, view: T, place: int, value: Value) -> T:
        """A leaf that the program creates in that memory: the graph's own, where it gives it."""
        return view

    def lacks(self, place: int | None, value: Value, output: Output) -> Lacking | None:
        """What an output does not have that its value has: a history, a base, a version counter."""
        return self.recorded.missing(value) or output.relation

    def named(self, value: Value, built: T) -> T:
        """A name for an output that was built."""
        return built

    @abstractmethod
    def constant(self, place: int | None, item: Tree) -> T:
        """A number, or a constant of the program."""

    @abstractmethod
    def result(self, place: int | None, value: Value) -> T:
        """The graph's result for a value."""

    @abstractmethod
    def live(self, index: int) -> T:
        """An input, after it was written to."""

    @abstractmethod
    def follows(self, place: int | None, value: Value) -> bool:
        """Whether autograd follows a view to the input."""

    @abstractmethod
    def detached(self, of: T, *, always: bool) -> T:
        """The same memory without a history; `always`: as another tensor, too."""

    @abstractmethod
    def taken(self, of: T, step: ViewStep, seen: TensorType) -> T:
        """The view that the program's own call takes."""

    @abstractmethod
    def strided(self, of: T, seen: TensorType, index: int) -> T:
        """The view by sizes, strides and offset; `index`: the input whose memory it is."""

    @abstractmethod
    def joined(self, view: T, place: int | None, value: Value) -> T:
        """The memory of a view with the history of the graph's result."""

    @abstractmethod
    def marked(self, built: T, lacks: Lacking, base: int | None) -> T:
        """The tensor without it; `base`: the input that it is a view of, taken under no_grad."""
