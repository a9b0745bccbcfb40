"""A gradient of a gradient of a pair: its gradients as a program, of which there is a pair in turn.

The program asks for them as eager does with `create_graph`, so its derivative is that of the tree
(decision 048), and the same compilers get it. What the pair has saved is taken and not computed
again; what else it reads of the inputs has to be what it was.
"""

import sys
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from types import FrameType, FunctionType
from typing import Any, Final, Protocol

import sympy
import torch

from foretrace import torch_api
from foretrace.autograd.derivatives.target_semantics import TargetSemantics
from foretrace.errors import Frame, Refusal
from foretrace.ir.program.interface import Input
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.source.call_site import Sources, asking_line
from foretrace.ir.symbols.input_symbols import Dynamic
from foretrace.ir.symbols.symbols import Symbols
from foretrace.lowering.cuts.cut import Level
from foretrace.lowering.emit.python_code import Straight
from foretrace.lowering.emit.python_source import Source
from foretrace.lowering.partition.partition import Pair
from foretrace.lowering.pipelines.counterparts import Taking, original
from foretrace.lowering.pipelines.kinds import TRAINED
from foretrace.lowering.pipelines.passes import Context, make_graph
from foretrace.runtime.backends.autograd_function import Flat, KeptInputs, numbers_of
from foretrace.runtime.backends.compiled_half import version_of
from foretrace.runtime.calls.run_cut import uncast
from foretrace.session.run.run import record
from foretrace.session.run.setup import set_up

BEGIN: Final = 2
"""The number of the first line of a function's body"""
Gradients = Sequence[torch.Tensor | None]


class Building(Protocol):
    """Makes a function of the inputs of a program by its pair."""

    def __call__(self, recorded: Recording, semantics: TargetSemantics, *, taking: Taking) -> Flat:
        """`taking`: what its graphs take of what has run before."""


class GradientsAgain:
    """The program of gradients, for each layout of its arguments: built when it is first asked for.

    Args:
        core: the program of the pair.
        semantics: what its operators mean.
        pair: its graphs, before a compiler got them.
        build: makes the function of a program.
        earlier: what they take themselves, where the program is one of gradients.
    """

    def __init__(
        self,
        core: Recording,
        semantics: TargetSemantics,
        pair: Pair,
        build: Building,
        earlier: Taking | None,
    ) -> None:
        self.core, self.semantics, self.pair = core, semantics, pair
        self._build, self._earlier = build, earlier
        saved = {original(item) for item in pair.saved}
        self._unseen = [i for i, item in enumerate(core.inputs) if item.value not in saved]
        """inputs of which autograd does not see that they were written to, as none is saved"""
        lost = () if earlier is None else earlier.lost
        self._lost = {i for i, item in enumerate(core.inputs) if item.value in lost}
        self._built: dict[Any, Flat | None] = {}

    def keep(self, inputs: Sequence[Any]) -> KeptInputs:
        """The inputs, and how often each was written to that nothing else checks."""
        return inputs, [version_of(inputs[place]) for place in self._unseen]

    def __call__(
        self, kept: KeptInputs, saved: Sequence[Any], tangents: Gradients
    ) -> Gradients | None:
        """The gradients of the inputs that require grad; None: autograd would follow none.

        Raises:
            Refusal: they need what the forward has not saved, and an input does not hold any more.
        """
        inputs, versions = kept
        counted = zip(self._unseen, versions, strict=True)
        written = (i for i, v in counted if v is not None and v != version_of(inputs[i]))
        lost = frozenset(self._lost.union(written))
        casting = torch_api.autocast_devices()
        if not casting <= self.core.requires.autocast:
            why = "asked for under autocast, and the forward ran without"
            raise _refused(why, "ask for it outside of autocast")
        casts = (*((device, torch.get_autocast_dtype(device)) for device in casting),)
        key = lost, casts, *(_layout(each) for each in (*inputs, *tangents, *saved))
        if key not in self._built:
            self._built[key] = self._capture(inputs, tangents, saved, lost)
        run = self._built[key]
        arguments = (*inputs, *(each for each in tangents if each is not None), *saved)
        return None if run is None else run(*(x for x in arguments if isinstance(x, torch.Tensor)))

    def _capture(
        self,
        inputs: Sequence[Any],
        tangents: Gradients,
        saved: Sequence[Any],
        lost: Collection[int],
    ) -> Flat | None:
        there = [place for place, each in enumerate(tangents) if each is not None]
        arguments = [*inputs, *(tangents[place] for place in there), *saved]
        program, lines = self._program(there)
        run = set_up(
            self.semantics.target,
            partial(Dynamic, {}),
            sources=lines,
            values="guard",
            separate=True,
        )
        recorded = record(program, arguments, {}, run)
        if not recorded.gives_followed:
            return None
        tensors = [i for i, each in enumerate(arguments) if isinstance(each, torch.Tensor)]
        own = {tensors[i.argument or 0]: i.value for i in recorded.inputs}
        known = {own[i]: item.value for i, item in enumerate(self.core.inputs) if i in own}
        first = len(arguments) - len(saved)
        kept = {original(s): own[i] for i, s in enumerate(self.pair.saved, first) if i in own}
        others: Sequence[Op] = self.pair.forward.ops
        if self._earlier is not None:
            others, now = self._earlier.ops, {one: new for new, one in known.items()}
            kept = {v: now[one] for v, one in self._earlier.there.items()} | kept
        taking = Taking(others, known, kept, numbers_of(self.core.inputs, inputs))
        taking.lost = {own[i] for i in lost}
        call = self._build(recorded, run.semantics, taking=taking)
        read = next((i for i in lost if own[i] in taking.read), None)
        if read is not None:
            role = self.core.inputs[read].role
            why = f"computed from the {role}, which was written to since the forward ran"
            raise _refused(why, "write to it after the backward")
        return call

    def _program(self, asked: Sequence[int]) -> tuple[Flat, Sources]:
        """The forward as autograd follows it, and the gradients for some of its tangents."""
        core = self.core
        graph = make_graph(TRAINED, "export", Context(core, self.semantics, Level(True)))
        (forward, source), count = _straight(graph, core.symbols), len(core.inputs)
        wanting = [i for i, o in enumerate(core.outputs) if core.differentiable(o.value)]
        outputs = [wanting[place] for place in asked]
        wanted = [i for i, item in enumerate(core.inputs) if item.value.type.requires_grad]

        def gradients(*arguments: Any) -> Sequence[torch.Tensor | None]:
            with uncast():
                results = forward(*arguments[:count])
            ends, begins = [results[i] for i in outputs], [arguments[i] for i in wanted]
            tangents = arguments[count : count + len(outputs)]
            return torch.autograd.grad(ends, begins, tangents, create_graph=True, allow_unused=True)

        return gradients, LinesBehind(forward, source.frames)


def _layout(item: Any) -> Any:
    """All that decides how a program is captured of an argument."""
    if not isinstance(item, torch.Tensor):
        return item
    return item.shape, item.stride(), item.requires_grad


def _refused(why: str, do: str) -> Refusal:
    return Refusal(
        f"a gradient of a gradient is {why}",
        kind="double backward",
        at=asking_line(),
        do=(do, 'or use backend="eager", which torch differentiates again'),
    )


def parameters(source: Source, inputs: Sequence[Input], symbols: Symbols) -> list[str]:
    """Names of a function's parameters; the symbols of their sizes are bound."""
    names, bound = [], set[sympy.Basic]()
    for item in inputs:
        if isinstance(item.size, sympy.Symbol):
            bound.add(item.size)
            source.names.new(str(item.size))
            names.append(str(item.size))
        else:
            names.append(source.names.new(item.role.name))
    for item, name in zip(inputs, names, strict=True):
        for dim, size in enumerate(map(symbols.simplify, item.value.type.shape)):
            if isinstance(size, sympy.Symbol) and size not in bound:
                bound.add(size)
                source.names.new(str(size))
                source.add(f"{size} = {name}.size({dim})")
    return names


def straight_call(graph: Graph, symbols: Symbols) -> Flat:
    """A graph as a function of its flat inputs, in straight-line Python."""
    return _straight(graph, symbols)[0]


def _straight(graph: Graph, symbols: Symbols) -> tuple[FunctionType, Source]:
    source = Source()
    names = parameters(source, graph.inputs, symbols)
    straight = Straight(
        source, symbols, {i.value: name for i, name in zip(graph.inputs, names, strict=True)}
    )
    straight.ops(graph)
    results = [straight.tree(output.value) for output in graph.outputs]
    source.add(f"return ({''.join(result + ', ' for result in results)})")
    return source.function(graph.kind, ", ".join(names)), source


class LinesBehind(Sources):
    """The user's lines behind those of such a function."""

    def __init__(self, function: FunctionType, frames: Mapping[int, Frame]) -> None:
        super().__init__()
        self._code = function.__code__
        self._starts, self._behind = [*frames], [*frames.values()]

    def here(self, above: int = 1) -> Frame | None:
        """The line behind the one that runs; where none does, the line that asks."""
        at: FrameType | None = sys._getframe(above)
        while at is not None and at.f_code is not self._code:
            at = at.f_back
        place = 0 if at is None else bisect_right(self._starts, at.f_lineno - BEGIN)
        return self._behind[place - 1] if place else self.defined
