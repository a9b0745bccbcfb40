"""A pass, the context that it may read, and the loop that runs a list of passes."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from foretrace.autograd.backward.unpack_hooks import read_by_hooks
from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.autograd.eager_history.overwritten_saved import OverwrittenSaved
from foretrace.forks import cached_property
from foretrace.ir.program.interface import Output, Role
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.values.tensor_type import TangentStrides
from foretrace.ir.values.value import Value
from foretrace.lowering.cuts.cut import Level, read_by_gradients, written_over
from foretrace.lowering.cuts.decomposition_tracer import Table
from foretrace.lowering.partition.policies import SAVE_ALL, Policy
from foretrace.lowering.pipelines.verify import DIFFERENTIATED, Infer, verify_graph


@dataclass(frozen=True, eq=False)
class Context:
    """What the passes of one cut read beside the graph; no pass changes it."""

    recorded: Recording
    semantics: TargetSemantics
    """what operators mean on the target"""
    level: Level
    """which ops stay whole, as the caller asks for it"""
    around: bool = True
    """the grad mode that the history is relative to"""
    also: Collection[Value] = ()
    """values that the graph has to compute, beside those of its outputs"""
    loss: int | None = None
    """the index of the output to differentiate; None: tangents are inputs"""
    tangents: TangentStrides | None = None
    """which tangents there are, and their strides; None: all, as their outputs lie"""
    table: Table | None = None
    """decompositions, by operator"""
    policy: Policy = SAVE_ALL
    """what a step keeps of its forward for its own backward"""
    numbers: Literal["tensors"] | None = None
    """what computes numbers of data: tensors, or Python"""
    watch: "Watch | None" = None
    """is called after each pass"""

    @cached_property
    def forward_level(self) -> Level:
        """The level of a forward cut: an op is opened where a gradient reads what is inside it."""
        if not self.level.written:
            return self.level
        read = read_by_gradients(self.recorded.ops) | self._read_by_hooks
        return replace(self.level, read=read) if read else self.level

    @cached_property
    def joint_level(self) -> Level:
        """The level of a joint cut: an op is opened where an unpack hook reads what is inside."""
        read = self._read_by_hooks
        return replace(self.level, read=read) if read else self.level

    @property
    def _read_by_hooks(self) -> frozenset[Value]:
        return read_by_hooks(self.recorded) if self.recorded.hooks else frozenset()

    @cached_property
    def overwritten(self) -> OverwrittenSaved:
        """What autograd saves of the program and the program writes over."""
        return written_over(self.recorded, self.semantics)


CUT_SUBGRAPHS = "cut subgraphs"
"""The pass after which the programs that ops hold are of the stage of the graph"""
Change: TypeAlias = Callable[[Graph, Context], Graph]
"""What a pass does: it returns a new graph, or the same one, and writes to neither."""


@dataclass(frozen=True, slots=True, eq=False)
class Pass:
    """One step on the way from a record to a graph: valid graph in, valid graph out."""

    name: str
    purpose: str
    """one line, with a verb"""
    change: Change
    stage: str = ""
    """the stage of docs/stages.md whose rules hold afterwards; empty: that of the graph's kind"""


def as_pass(name: str, stage: str = "") -> Callable[[Change], Pass]:
    """Turn a function into a pass; the first line of its docstring is the purpose."""

    def named(change: Change) -> Pass:
        return Pass(name, (change.__doc__ or "").partition("\n")[0], change, stage)

    return named


Watch: TypeAlias = Callable[[Pass, Graph, Graph], None]
"""What is called with a pass, the graph before it and the graph after it."""


@dataclass(frozen=True, slots=True, eq=False)
class PassRun:
    """One pass over the graph of a cut: its input and its output."""

    done: Pass
    before: Graph
    after: Graph


class History:
    """A watch that keeps each graph."""

    def __init__(self) -> None:
        self.runs = list[PassRun]()

    def __call__(self, done: Pass, before: Graph, after: Graph) -> None:
        """Keep both."""
        self.runs.append(PassRun(done, before, after))


def make_graph(passes: Sequence[Pass], kind: str, context: Context) -> Graph:
    """The graph of a record after a list of passes.

    Args:
        passes: those of the cut, in order.
        kind: the name of the cut, which is the stage of the last graph.
        context: the record, and what is asked of the cut.

    Raises:
        Refusal: the program has no such cut.
    """
    return run_passes(passes, start(kind, context.recorded), context)


def start(kind: str, recorded: Recording) -> Graph:
    """The record itself as a graph: its tree, its outputs, then the new contents of inputs."""
    written = [
        Output(each.value, Role("mutation", recorded.inputs[each.index].role.name))
        for each in recorded.mutations
    ]
    return Graph(list(recorded.inputs), recorded.ops, [*recorded.outputs, *written], kind)


def run_passes(passes: Sequence[Pass], graph: Graph, context: Context) -> Graph:
    """The graph after a list of passes; `context.watch` sees each."""
    for each in passes:
        before, graph = graph, each.change(graph, context)
        if context.watch is not None:
            context.watch(each, before, graph)
    return graph


def verifying(recorded: Recording, infer: Infer | None) -> Watch:
    """A watch that checks the graph after each pass that changed it by docs/stages.md.

    Raises:
        Refusal: when called: the graph breaks a rule; it names the pass.
    """
    trees = False  # whether the programs that ops hold are still as they were recorded

    def verify(done: Pass, before: Graph, after: Graph) -> None:
        nonlocal trees
        trees = (trees or before.ops is recorded.ops) and done.name != CUT_SUBGRAPHS
        if changed(before, after):
            subgraphs = DIFFERENTIATED if trees else ""
            verify_graph(
                after, recorded, infer, stage=done.stage, subgraphs=subgraphs, source=done.name
            )

    return verify


def changed(before: Graph, after: Graph) -> bool:
    """Whether a pass has added, dropped, replaced or moved anything."""
    if before is after:
        return False
    return any(
        getattr(before, part) != getattr(after, part) for part in ("inputs", "ops", "outputs")
    )
