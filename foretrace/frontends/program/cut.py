"""One graph of a program."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NoReturn, TypeAlias

import torch
from torch import fx

from foretrace import torch_api
from foretrace.errors import Refusal, Refusing, counted
from foretrace.forks import cached_property
from foretrace.frontends.program.recording_handle import Tree, shown
from foretrace.inspect.explain.explain import explain
from foretrace.inspect.explain.explanation import Explanation
from foretrace.ir.program.interface import Signature
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.source.call_site import Asked
from foretrace.ir.values.tensor_type import TangentStrides
from foretrace.lowering.cuts.cut import Level
from foretrace.lowering.cuts.dead_code import needs
from foretrace.lowering.emit.fx import to_fx
from foretrace.lowering.partition.partition import Pair, Saved
from foretrace.lowering.partition.step_parts import PARTS
from foretrace.lowering.pipelines.passes import PassRun
from foretrace.lowering.pipelines.verify import verify_module
from foretrace.runtime.calls.compiled import not_copied
from foretrace.runtime.calls.run_cut import run_forward, run_half, run_joint, run_step
from foretrace.runtime.calls.untrainable_results import Untrained, untrained
from foretrace.serialization.archive.stored_cut import Stored
from foretrace.session.patches.collector import UNCOLLECTED

STEP = "step"

Again: TypeAlias = Callable[[TangentStrides], "tuple[Cut, ...]"]


def _nobody_calls(*args: object) -> NoReturn:
    """Stands for `again` in a cut that is never built for other tangents."""
    raise AssertionError(args)


@dataclass(frozen=True, slots=True)
class Remake:
    """Builds a cut again; of a half of a pair, both halves."""

    again: Again = _nobody_calls
    """for other strides of tangents"""
    passes: Callable[[], tuple[PassRun, ...]] = tuple
    """with the graph after each pass"""


class Cut:
    """One graph: callable, printable, explainable."""

    def __init__(
        self, program: Tree, graph: Graph, loss: int | None,
        remake: Remake = Remake(), pair: Pair | None = None, *, stored: Stored | None = None,
    ) -> None:  # fmt: skip
        self.program, self.graph, self.loss, self.pair = program, graph, loss, pair
        self.calls = program.calls
        self.remake_by(remake)
        self.stored = stored or Stored(graph.kind, graph, loss, Level(False), opened=True)
        """the cut in a file"""
        self._module: fx.GraphModule | None = None

    def remake_by(self, remake: Remake) -> None:
        """Set how the cut is built again; each result of `again` is cached."""
        self.again: Again = cache(remake.again)
        self._passes = remake.passes

    def __repr__(self) -> str:
        graph = self.graph
        ends = f"{len(graph.inputs)} in, {len(graph.outputs)} out"
        inside = f"{counted(len(graph.ops), 'op')}, {ends}"
        return shown(f"{graph.kind} cut", self.program, inside)

    def __reduce__(self) -> Any:
        """Refuse a copy or pickle."""
        raise not_copied("a cut", "copy cut.graph_module, or program.save(path)")

    @property
    def signature(self) -> Signature:
        """The roles of inputs and outputs, in the order of the graph module."""
        return self.graph.signature

    @property
    def graph_module(self) -> fx.GraphModule:
        """The cut as a torch.fx.GraphModule with flat inputs and outputs, built on first access."""
        if self._module is None:
            recorded = self.program.recorded
            fakes = self.program.semantics.fakes
            with UNCOLLECTED, torch_api.CleanRoom():
                self._module = to_fx(self.graph, recorded.symbols, fakes, needs)
            if self.program.verify:
                verify_module(self.graph, self._module, recorded.symbols)
        return self._module

    @cached_property
    def untrained(self) -> Untrained:
        """Results that depend on a Function whose backward the cut lacks."""
        return untrained(self.graph, self.calls.recorded)

    @property
    def saved(self) -> tuple[Saved, ...]:
        """The values that the forward half saves for the backward half; empty for other cuts."""
        return self.pair.saved if self.pair is not None else ()

    @property
    def passes(self) -> tuple[PassRun, ...]:
        """The runs of all passes, in order, with the graph after each; the last is the cut's.

        The graph is built again, which takes as long as the cut took.

        Raises:
            Refusal: the cut is of a file, and was built with a function, which no file has.
        """
        return self._passes()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes, in order."""
        return tuple(node.name for node in self.graph_module.graph.nodes)

    def explain(self, name: str) -> Explanation:
        """Why a node is there: its path in the tree, from the user's line down to the op.

        Args:
            name: a node's name; "kept.node" for a node inside an op that was kept whole.

        Raises:
            Refusal: the graph has no such node.
        """
        recorded, module = self.program.recorded, self.graph_module
        with Asked("capture", recorded.requires.defined):
            table = self.program.semantics.table
            return explain(recorded, self.graph, module, name, table, self.pair)

    def __call__(
        self, *args: Any, tangents: Sequence[torch.Tensor] | None = None, **kwargs: Any
    ) -> Any:
        """Run the cut on inputs like those it was captured with.

        Returns:
            What the program returns; for a joint cut, that and the gradients by name; for a half
            of it, its results in the signature's order, as its inputs are. A half checks no
            guards and writes nothing back.

        Raises:
            Refusal: an input breaks what the capture relied on.
        """
        recorded = self.calls.recorded
        asserting = Refusing(partial(asserted, recorded), (RuntimeError,))
        with Asked("capture", recorded.requires.defined), asserting:
            if self.graph.kind in PARTS:
                return run_half(self.graph_module, self.graph, args)
            if self.graph.kind == "joint":
                return run_joint(self, args, kwargs, tangents)
            if self.graph.kind == STEP:
                return run_step(self, args, kwargs)
            return run_forward(self, args, kwargs)


def asserted(recorded: Recording, error: BaseException, trace: object) -> Refusal | None:
    """The refusal of a call in which an assertion of the graph about a guarded value fails."""
    if isinstance(error, Refusal):
        return None
    found = next((each for each in recorded.asked if each.text in str(error)), None)
    if found is None:
        return None
    return Refusal(
        f"guard broken: {found.broken}",
        kind="guard broken",
        at=found.frame,
        do="capture again with inputs like these",
    )
