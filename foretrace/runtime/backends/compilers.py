"""A program through compilers: the calls of fw_compiler, bw_compiler, inference_compiler.

They are called when and with what AOTAutograd calls them (`aot_convention.py`): the forward's at
once; the backward's at once if it has open sizes, since compiling it may then add guards, and else
when it first runs.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar, Final

import sympy
import torch
from torch import fx

from foretrace import torch_api
from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.errors import Refusal
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.walk import binds, leaves_that_run
from foretrace.ir.source.call_site import asking_line
from foretrace.ir.values.tensor_type import TangentStrides
from foretrace.lowering.cuts.cut import Level
from foretrace.lowering.partition.partition import Pair, partition
from foretrace.lowering.partition.policies import MIN_CUT, Policy
from foretrace.lowering.pipelines.kinds import UNTRAINED_LEAVES, Pipeline
from foretrace.lowering.pipelines.partial_tangents import partial_backward
from foretrace.lowering.pipelines.passes import Context, Pass, make_graph, run_passes
from foretrace.lowering.pipelines.rewrites import (
    open_by_table,
    order_losses,
    recompute,
)
from foretrace.lowering.reinplace.final_copies import written_at_end
from foretrace.lowering.subclasses.boundary import Edges, gradient_counts
from foretrace.operators.abstract_tensors.sparse_layouts import layout_of
from foretrace.runtime.backends.aot_convention import TorchHalves, metadata_of, with_sizes
from foretrace.runtime.backends.autograd_function import Flat, Partial, numbers_of
from foretrace.runtime.backends.compiled_half import STEP, WHOLE, Compiler, Half
from foretrace.runtime.backends.scalar_prelude import NOTHING, InferenceGraph, found_early

LEAVES: Final = Level(written=False)


@dataclass(frozen=True, slots=True)
class TorchCompilers:
    """A compiler for each kind of graph, and the passes that the graphs went through."""

    forward: Compiler
    backward: Compiler
    inference: Compiler
    decompositions: Mapping[Any, Callable[..., Any]] | None = None
    policy: Policy = MIN_CUT
    writes: bool = False
    """the compiler knows graphs that write to their inputs at their end"""
    retypes: bool = False
    """the compiler asks FakeTensor again for the types of a graph"""
    name: str = ""
    """of a backend of torch's"""
    level: Level = LEAVES
    """which ops of a pair stay whole"""
    drop: bool = False
    """whether a backward has no output in the place of a gradient that is None"""
    static: Collection[int] = ()
    """arguments that are the same tensors at each call"""
    relaid: ClassVar[bool] = False
    saves_written: ClassVar[bool] = False

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The passes over each graph before a compiler gets it, or before it is split."""

        def check(graph: Graph, _: Context) -> Graph:
            _check_sizes(graph, retypes=self.retypes)
            _check_dense(graph)
            return graph

        return (
            Pass("check compilers", "Refuse what torch's compilers do not take.", check),
            open_by_table,
        )

    def context(self, recorded: Recording, semantics: TargetSemantics) -> Context:
        """The context of the passes over its graphs."""
        return Context(
            recorded, semantics, self.level, table=self.decompositions, policy=self.policy
        )

    def metadata(self, recorded: Recording, forward: Half, backward: Half | None = None) -> Any:
        """What torch says of a forward; None for Inductor, which would take addresses for fixed."""
        return None if self.name else metadata_of(recorded, forward, backward, self.static)

    def whole(self, recorded: Recording, semantics: TargetSemantics) -> InferenceGraph:
        """The callable of a forward that is not trained."""
        context = self.context(recorded, semantics)
        graph = make_graph(UNTRAINED_LEAVES, "aten", context)
        halves, early = TorchHalves(recorded.symbols, semantics.fakes), NOTHING
        written, writes = frozenset[int](), self.writes and recorded.asks_gradients
        if writes:
            early = found_early(graph, recorded)
            graph = run_passes((order_losses,), early.with_numbers(graph), context)
        graph = run_passes((*self.passes, recompute), graph, context)
        if writes:
            graph, written = written_at_end(graph, recorded, semantics.may_raise)
        edges = Edges(graph)
        half = halves.whole(edges.graph, STEP if recorded.asks_gradients else WHOLE)
        with torch_api.compiling(semantics.fakes.mode, self.metadata(recorded, half)):
            run = half.compiled(self.inference, half.examples, self.name)
        if recorded.asks_gradients:
            run = _keeping(run)
        return InferenceGraph(edges.around(run), early, written)

    def halves(
        self, joint: Graph, recorded: Recording, semantics: TargetSemantics, then: Pipeline = ()
    ) -> tuple[Pair, Flat, Flat, Partial]:
        """The pair of a joint graph, the callable of each half, and that of some tangents."""
        context = self.context(recorded, semantics)
        passes = (*self.passes, *then)
        joint = run_passes(passes, joint, context)
        pair = with_sizes(partition(joint, recorded, semantics, self.policy), recorded.symbols)
        halves = TorchHalves(recorded.symbols, semantics.fakes)
        counts = gradient_counts(pair.backward)
        ends = Edges(pair.forward, counts), Edges(pair.backward, counts)
        flat = replace(pair, forward=ends[0].graph, backward=ends[1].graph)
        forward = halves.forward(flat)
        owned = ends[0].gradients if ends[0].wraps else counts
        backward, filled = self._second(halves, flat, flat.backward, forward, owned)
        metadata = self.metadata(recorded, forward, backward)
        both = CompiledPair(self, flat, forward, backward, halves, metadata)

        def partial(strides: TangentStrides) -> Flat:
            there = replace(context, tangents=strides)
            part = partial_backward(joint, pair, there, passes)
            edges = Edges(part, counts)
            arrived = edges.spread([each is not None for each in strides], "tangent", part)
            half, filled = self._second(halves, flat, edges.graph, forward, owned, arrived)
            return edges.around(filled(Later(both, half)))

        second = ends[1].around(filled(both.backward))
        return pair, ends[0].around(both.forward), second, partial

    def _second(
        self,
        halves: TorchHalves,
        pair: Pair,
        graph: Graph,
        forward: Half,
        counts: Sequence[int],
        passed: Sequence[bool] | None = None,
    ) -> tuple[Half, Callable[[Flat], Flat]]:
        """A second half, and what puts the gradients that are None among its results."""
        there = [output.value is not None for output in graph.outputs]
        if not self.drop or all(there):
            half = halves.backward(pair, graph, forward, passed, counts=counts, drop=self.drop)
            return half, lambda run: run
        kept = replace(graph, outputs=[o for o in graph.outputs if o.value is not None])
        ends = accumulate(counts)
        fewer = [sum(there[end - n : end]) for n, end in zip(counts, ends, strict=True)]
        half = halves.backward(pair, kept, forward, passed, counts=fewer, drop=True)
        return half, lambda run: _filled(run, there)


@dataclass(frozen=True, slots=True, eq=False)
class CompilersBackend:
    """A backend that is compilers: `torch.compile` calls it, `foretrace.compile` calls these."""

    compilers: TorchCompilers
    compile: Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]
    """takes a graph of Dynamo's, and example inputs"""

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """A callable of the graph's inputs."""
        return self.compile(module, inputs)


def _filled(run: Flat, there: Sequence[bool]) -> Flat:
    """The function with None in the places of what its graph has dropped."""

    def filled(*inputs: Any) -> Sequence[Any]:
        results = iter(run(*inputs))
        return [next(results) if yes else None for yes in there]

    return filled


def _keeping(run: Flat) -> Flat:
    """A step's graph: kernels keep what its backward reads, and autograd follows nothing.

    Under no_grad some keep nothing (decision 009).
    """

    def kept(*inputs: Any) -> Sequence[Any]:
        with torch_api.kernels_below_autograd(), torch.enable_grad():
            return run(*inputs)

    return kept


def _check_sizes(graph: Graph, *, retypes: bool) -> None:
    """FakeTensor takes such an operator's sizes for data's, also where numbers decide them."""
    for op in leaves_that_run(graph.ops):
        sized = hasattr(op.target, "tags") and torch_api.sized_by_data(op.target)
        asked = sized and (retypes or (op.outs and binds(op)))
        if asked and not torch_api.has_fake_rule(op.target):
            raise Refusal(
                f"data may decide the sizes of what {op.target} returns, and torch's compilers"
                " have no rule for it",
                kind="data-dependent",
                at=op.origin.frame,
                do=('use backend="eager"', "or compute it outside of the compiled program"),
            )


def _check_dense(graph: Graph) -> None:
    for item in graph.inputs:
        if item.value.type.sparse:
            layout = layout_of(item.value.type.sparse)
            reads = (op.origin.frame for op in graph.ops if item.value in op.operands)
            raise Refusal(
                f"{item.role} is {layout}, which torch's compilers do not take",
                kind="unsupported tensor",
                at=next(reads, None),
                do=('use backend="eager"', "or pass it dense: .to_dense()"),
            )


class CompiledPair:
    """Both halves, each called as the pair's graph is; the backward is compiled later.

    It is compiled at once if it gets sizes.
    """

    def __init__(
        self,
        compilers: TorchCompilers,
        pair: Pair,
        forward: Half,
        backward: Half,
        halves: TorchHalves,
        metadata: Any,
    ) -> None:
        self.inputs, self.symbols = pair.backward.inputs, halves.symbols
        self.compilers = compilers
        with torch_api.compiling(halves.fakes.mode, metadata):
            with torch_api.reported_strides() as strides:
                self.forward = forward.compiled(compilers.forward, forward.examples, compilers.name)
            saved = [i for i, o in enumerate(pair.forward.outputs) if o.role.kind == "saved"]
            self._strides = [strides[forward.outputs[i]] for i in saved] if strides else []
            self.context = torch_api.tracing_context()
            self.backward = Later(self, backward)
            if pair.open:
                self.backward.compile()

    def examples(self, backward: Half) -> list[Any]:
        """Inputs of a backward; a saved tensor has the strides that the forward gave it."""
        pairs = zip(backward.examples, backward.inputs, strict=True)
        return [self._laid(example, source) for example, source in pairs]

    def _laid(self, example: Any, source: int) -> Any:
        chosen = self._strides[source] if source < len(self._strides) else None
        if chosen is None or not isinstance(example, torch.Tensor):
            return example
        # open strides are compared by their hints: what is asked here is no guard
        hints = [self.symbols.hint(size) for size in self.symbols.sizes(example.stride())]
        return example if hints == list(chosen) else example.as_strided(example.shape, chosen)


class Later:
    """A backward of a pair that is compiled when it first runs, in the context of its forward.

    What its compiler then assumes of sizes is no guard of the call any more: it is checked here.
    """

    def __init__(self, both: CompiledPair, half: Half) -> None:
        self.both, self.half, self.examples = both, half, both.examples(half)
        self._run: Flat | None = None
        self._assumed: list[sympy.Basic] = []

    def compile(self) -> Flat:
        """Compile it now; Dynamo looks neither at the compiler nor at what it makes."""
        by = self.both.compilers
        compile = torch.compiler.disable(self.half.compiled)
        self._run = run = torch.compiler.disable(compile(by.backward, self.examples, by.name))
        return run

    def __call__(self, *inputs: Any) -> Any:
        """Run it."""
        run = self._run
        if run is None:
            before = len(self.both.symbols.asked())
            with torch_api.compiling_later(self.both.context):
                run = self.compile()
            self._assumed = self.both.symbols.asked()[before:]
        if self._assumed:
            self._check(inputs)
        return run(*inputs)

    def _check(self, inputs: Sequence[Any]) -> None:
        numbers = numbers_of(self.both.inputs, inputs)
        for condition in self._assumed:
            if condition.xreplace(numbers) == sympy.false:
                raise Refusal(
                    f"guard broken: {condition}, which the compiler of the backward relied on",
                    kind="guard broken",
                    at=asking_line(),
                    do="compile with dynamic=False, or run a backward with such sizes first",
                )
