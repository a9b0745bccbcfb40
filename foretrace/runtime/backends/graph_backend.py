"""Any backend `fn(graph_module, example_inputs)`: it gets the two halves, autograd joins them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Protocol

import torch

from foretrace.autograd.derivatives.target_semantics import Captured, TargetSemantics
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.walk import called_in
from foretrace.ir.values.tensor_type import TangentStrides
from foretrace.lowering.cuts.cut import Level
from foretrace.lowering.cuts.dead_code import needs
from foretrace.lowering.emit.fx import to_fx
from foretrace.lowering.emit.graph_module import interpretable
from foretrace.lowering.emit.python_source import Source
from foretrace.lowering.partition.outer_views import OuterViews, outer_views
from foretrace.lowering.partition.partition import Pair, partition
from foretrace.lowering.partition.policies import SAVE_ALL, Policy
from foretrace.lowering.pipelines.counterparts import Taking
from foretrace.lowering.pipelines.forward import unmark_leaves
from foretrace.lowering.pipelines.kinds import DERIVED, UNTRAINED, UNTRAINED_LEAVES, Pipeline
from foretrace.lowering.pipelines.partial_tangents import partial_backward
from foretrace.lowering.pipelines.passes import Context, make_graph, run_passes
from foretrace.lowering.pipelines.rewrites import recompute
from foretrace.lowering.subclasses.boundary import Edges
from foretrace.runtime.backends.autograd_function import (
    BackwardHalf,
    Flat,
    Partial,
    TrainableCall,
)
from foretrace.runtime.backends.compiled_half import LABELS, STEP, WHOLE, Compiler, Half
from foretrace.runtime.backends.double_backward import GradientsAgain, parameters, straight_call
from foretrace.runtime.backends.eager import add_surrounded, seen_by_autograd
from foretrace.runtime.backends.inline_guards import Undo
from foretrace.runtime.backends.scalar_prelude import InferenceGraph
from foretrace.runtime.calls.core import check_leaves, core_of, switched_first
from foretrace.runtime.calls.epilogue import (
    CoreCall,
    check_changes,
    end_lines,
    register_hooks,
)
from foretrace.runtime.calls.kept_gradients import check_kept
from foretrace.runtime.guards.abandoned import Abandoned
from foretrace.runtime.guards.argument_guards import result_text
from foretrace.runtime.guards.guarded_entry import Entry, Guards


def pair_with(compilers: "Callable[[], Compilers]") -> Callable[..., Entry]:
    """A builder of entries with compiled graphs; each entry has compilers of its own."""

    def build(captured: Captured, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry:
        (recorded, switched), source = switched_first(captured.recorded), Source()
        call = join(recorded, captured.semantics, compilers())  # it may add guards on sizes
        guards, early, abandoned = Guards(source, captured.recorded), call.early, Abandoned()
        guards.call(args, kwargs, early.asked.values())
        guards.kernels()
        guards.outside(call.reads)
        check_changes(recorded)
        guards.write()
        inside = source.inner()
        names, ops = [guards.inputs[index] for index in switched], [*called_in(recorded.ops)]
        inside.add(*(f"{name}.requires_grad_()" for name in names))
        back = [f"{name}.requires_grad_(False)" for name in names]
        undo = Undo(source, ops, abandoned, captured.semantics.may_raise, first=back)
        leaves = core_lines(inside, recorded, guards.inputs, call, undo)
        last = register_hooks(inside, recorded, guards.inputs, leaves)
        inside.add(*last, *end_lines(inside, recorded, guards.inputs, leaves))
        follows = isinstance(call, TrainableCall) or recorded.gives_followed
        grad_on = follows and not recorded.requires.grad_mode
        add_surrounded(source, inside.lines, grad_on=grad_on)
        return guards.entry(abandoned)

    return build


def core_lines(
    source: Source,
    recorded: Recording,
    inputs: list[str],
    call: "TrainableCall | InferenceCall",
    undo: Undo | None,
) -> list[str]:
    """Lines that call the core of a program, and write back; expressions of what it returns.

    `undo`: abandons the call where it cannot go on; None: it raises.
    """
    early, graphs = call.early, source.bind(call, "graphs")
    early.write(source, recorded, inputs, undo)
    core = CoreCall(source, recorded, inputs, call.written, call.views)
    core.begin(graphs, list(map(str, early.numbers)))
    if undo is not None:
        source.lines = undo.around(source.lines)
    return core.end()


def join(
    recorded: Recording,
    semantics: TargetSemantics,
    backend: "Compilers",
    taking: Taking | None = None,
) -> "TrainableCall | InferenceCall":
    """A call from inputs to `core_of(recorded)`, which trains if anything it gives is followed.

    `taking`: what its graphs take of what has run before.

    Raises:
        Refusal: an op on the way of a gradient has no derivative, or what is returned keeps one.
    """
    check_leaves(recorded)
    alone = not core_of(recorded).gives_followed  # no gradient has to add up as in eager
    views = outer_views(recorded, semantics, trained=not alone)
    core = core_of(recorded, views)
    if not core.gives_followed:
        return InferenceCall(backend.whole(core, semantics), core, views)
    check_kept(recorded)
    context = Context(core, semantics, backend.level)
    joint = make_graph(DERIVED, "joint", context)
    rewritten = [
        recorded.inputs[m.index].value
        for m in recorded.mutations
        if recorded.writes_followed(m) or (backend.saves_written and not m.rebound)
    ]
    then = () if taking is None else taking.passes
    pair, forward, backward, some = backend.halves(joint, core, semantics, then)
    half = BackwardHalf(pair, backward, some, relaid=backend.relaid)
    again = None
    if not core.makes_leaves:
        again = GradientsAgain(core, semantics, pair, partial(_flat, backend=backend), taking)
    return TrainableCall(core, pair, forward, half, rewritten=rewritten, views=views, again=again)


def _flat(
    recorded: Recording, semantics: TargetSemantics, backend: "Compilers", taking: Taking
) -> Flat:
    """A function of the inputs of a program, by the graphs of its pair."""
    call, source = join(recorded, semantics, backend, taking), Source()
    names = parameters(source, recorded.inputs, recorded.symbols)
    inside = source.inner()
    leaves = core_lines(inside, recorded, names, call, None)
    inside.add(f"return {result_text(inside, recorded.out_structure, leaves)}")
    add_surrounded(source, inside.lines, grad_on=True)
    return source.function("gradients", ", ".join(names))


class Compilers(Protocol):
    """Compiles the graphs of one program."""

    @property
    def relaid(self) -> bool:
        """Whether a tangent with other strides than its output's has a backward of its own."""

    @property
    def level(self) -> Level:
        """Which ops of a pair stay whole."""

    @property
    def saves_written(self) -> bool:
        """Whether the first half may hand over memory of an input that the call writes to."""

    def whole(self, recorded: Recording, semantics: TargetSemantics) -> InferenceGraph:
        """The callable of a forward that is not trained."""

    def halves(
        self, joint: Graph, recorded: Recording, semantics: TargetSemantics, then: Pipeline = ()
    ) -> tuple[Pair, Flat, Flat | None, Partial]:
        """The pair of a joint graph, the callable of each half, and a builder for some tangents.

        `then`: passes over the joint graph before it is split.
        Without a second half, one is built for tangents with the strides of their outputs.
        """


class ByBackend:
    """A torch.compile backend: called with the forward, and with the backward of a pair."""

    relaid: ClassVar[bool] = True
    saves_written: ClassVar[bool] = False
    level: ClassVar[Level] = Level(written=False)

    def __init__(self, compile: Compiler, policy: Policy = SAVE_ALL, name: str = "") -> None:
        self.compile, self.policy, self.name = compile, policy, name
        """the policy is of a step; the name, of a backend of torch's"""

    def whole(self, recorded: Recording, semantics: TargetSemantics) -> InferenceGraph:
        """The forward, its ops as written, compiled by the backend.

        Functions are opened: autograd does not follow it, and no graph has what they keep in `ctx`.
        """
        level = Level(written=True, open=(seen_by_autograd,))
        context = Context(recorded, semantics, level, policy=self.policy)
        graph = make_graph(UNTRAINED, "export", context)
        results = (out for op in graph.ops for out in op.outs)
        if any(value.type.wrapped for value in (*(i.value for i in graph.inputs), *results)):
            context = replace(context, level=Level(written=False))
            graph = make_graph(UNTRAINED_LEAVES, "aten", context)
        # leaves are created after the call
        graph = run_passes((unmark_leaves, recompute), graph, context)
        return InferenceGraph(self._compiled(graph, recorded, semantics))

    def halves(
        self, joint: Graph, recorded: Recording, semantics: TargetSemantics, then: Pipeline = ()
    ) -> tuple[Pair, Flat, Flat | None, Partial]:
        """The pair, and each half compiled by the backend: the second when it first runs.

        With open sizes at once, as the backend may add guards on them.
        """
        # As eager saves: a value that runs again would make an input needed that eager does not
        # need, and writing to it before the backward an error.
        context = Context(recorded, semantics, Level(False))
        joint = run_passes(then, joint, context)
        pair = partition(joint, recorded, semantics, "save_all")

        def some(strides: TangentStrides) -> Flat:
            whole = strides == pair.strides
            graph = (
                pair.backward
                if whole
                else partial_backward(joint, pair, replace(context, tangents=strides), then)
            )
            if None in strides:
                return straight_call(graph, recorded.symbols)
            return self._compiled(graph, recorded, semantics)

        forward = self._compiled(pair.forward, recorded, semantics)
        return pair, forward, some(pair.strides) if pair.open else None, some

    def _compiled(self, graph: Graph, recorded: Recording, semantics: TargetSemantics) -> Flat:
        edges = Edges(graph)
        module = interpretable(to_fx(edges.graph, recorded.symbols, semantics.fakes, needs))
        inputs, outputs = len(edges.graph.inputs), len(edges.graph.outputs)
        places = (*range(inputs),), (*range(outputs),)
        label = "" if graph.kind in LABELS else STEP if recorded.asks_gradients else WHOLE
        half = Half(module, edges.graph, *places, label, boxes=False)
        return edges.around(half.compiled(self.compile, half.examples, self.name))


class InferenceCall:
    """Calls a graph that autograd does not follow; inputs, and leaves in it, may require grad."""

    reads: ClassVar[None] = None

    def __init__(self, whole: InferenceGraph, recorded: Recording, views: OuterViews) -> None:
        self.views = views
        self.forward, self.early, self.written = whole.run, whole.early, whole.written
        trains = any(item.value.type.requires_grad for item in recorded.inputs)
        self.silent = trains or recorded.makes_leaves

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        """Run it."""
        if not self.silent:
            return self.forward(*inputs)
        with torch.no_grad():
            return self.forward(*inputs)
