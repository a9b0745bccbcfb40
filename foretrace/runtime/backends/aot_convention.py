"""A pair as torch hands it to compilers: its names, its order, one gradient for each input.

Forward: `primals_1`, ... in; new contents of inputs, outputs, saved tensors, saved sizes out.
Backward: saved sizes, saved tensors, `tangents_1`, ... in; a gradient or None for each primal out.
Tensors that the program reached from outside its arguments are attributes of the forward's module,
or primals if they have a gradient.
Source: torch/_functorch/_aot_autograd/graph_compile.py and torch/_functorch/partitioners.py.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import sympy
import torch
from torch import fx

from foretrace import torch_api
from foretrace.ir.program.interface import Input, Output, Role, Signature, size_input
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.value import Value
from foretrace.lowering.cuts.dead_code import needs
from foretrace.lowering.emit.calling_convention import Slot, arranged, as_attributes
from foretrace.lowering.emit.fx import to_fx
from foretrace.lowering.emit.graph_module import interpretable
from foretrace.lowering.partition.partition import Pair, Saved
from foretrace.lowering.reinplace.in_place_calls import COPY
from foretrace.runtime.backends.compiled_half import Half

ORDER = ("mutation", "output", "saved")
"""The order of a forward's outputs."""
STATIC = ("parameter", "buffer")
"""Kinds of inputs that are the same tensor at each call"""
GRADIENTS = "gradient_of"
"""Key of a backward's `meta`: for each output, the index of the primal that it is a gradient of."""
RESULTS = "num_fwd_outputs"
"""Key of a forward's `meta`: the number of its outputs that are not saved tensors or sizes."""


class TorchHalves:
    """Builds the halves of one program.

    Args:
        symbols: its sizes.
        fakes: makes the `val`s.
    """

    def __init__(self, symbols: Symbols, fakes: torch_api.FakeTensors) -> None:
        self.symbols, self.fakes = symbols, fakes

    def whole(self, graph: Graph, label: str) -> Half:
        """The forward of a program without a backward; `label` as of a `Half`."""
        return self._first(graph, label, lambda n: f"arg{n}_1")

    def forward(self, pair: Pair) -> Half:
        """The first half."""
        return self._first(pair.forward, "", lambda n: f"primals_{n + 1}")

    def _first(self, graph: Graph, label: str, name: Callable[[int], str]) -> Half:
        order = sorted(range(len(graph.outputs)), key=lambda i: _rank(graph.outputs[i]))
        places = _passed(graph)
        slots = [Slot(name(n), i) for n, i in enumerate(places)]
        module = interpretable(arranged(self._fx(graph), slots, order, attribute_inputs(graph)))
        roles = [graph.inputs[i].role for i in places], [graph.outputs[i].role for i in order]
        _describe(module, *roles)
        module.meta[RESULTS] = sum(output.role.kind != "saved" for output in graph.outputs)
        return Half(module, graph, tuple(places), _inverse(order), label)

    def backward(
        self,
        pair: Pair,
        graph: Graph,
        forward: Half,
        passed: Sequence[bool] | None = None,
        *,
        counts: Sequence[int],
        drop: bool = False,
    ) -> Half:
        """A second half; what is saved goes by its name in the forward.

        Args:
            pair: the pair.
            graph: its backward, or one for some of the tangents, with the same inputs.
            forward: its first half.
            passed: which of the tangents it takes; None: all.
            counts: for each input of the forward that requires grad, how many tensors its gradient
                is: that of a plain tensor may be a wrapping one.
            drop: whether an input without a gradient has no output; else it is None.
        """
        names = _saved_names(pair, forward)
        count, total = len(names), len(graph.inputs)
        there = passed if passed is not None else [True] * (total - count)
        order = sorted(range(count), key=lambda i: graph.inputs[i].size is None)
        order += [i for i, yes in enumerate(there, start=count) if yes]
        names += [f"tangents_{n}" for n in range(1, total - count + 1)]
        outputs, primals = _gradients(pair, counts)
        there = [place is not None or not drop for place in outputs]
        outputs = [place for place, yes in zip(outputs, there, strict=True) if yes]
        slots = [Slot(names[i], i) for i in order]
        module = interpretable(arranged(self._fx(graph), slots, outputs, {}))
        module.meta[GRADIENTS] = [p for p, yes in zip(primals, there, strict=True) if yes]
        places = tuple(outputs.index(place) for place in range(sum(counts)))
        return Half(module, graph, tuple(order), places)

    def _fx(self, graph: Graph) -> fx.GraphModule:
        named = Graph(graph.inputs, graph.ops, graph.outputs, "graph_module", graph.reads)
        return to_fx(named, self.symbols, self.fakes, needs)


def _describe(module: fx.GraphModule, inputs: Sequence[Role], outputs: Sequence[Role]) -> None:
    """Give the ends of a graph torch's descriptors, as AOTAutograd does."""
    found = Signature(tuple(inputs), tuple(outputs)).descriptors
    placeholders = module.graph.find_nodes(op="placeholder")
    for node, each in zip(placeholders, found.inputs, strict=True):
        node.meta["desc"] = each
    module.graph.output_node().meta["desc"] = list(found.outputs)


def with_sizes(pair: Pair, symbols: Symbols) -> Pair:
    """The pair with every symbol of the backward's inputs handed over, as compilers expect it.

    Only sizes that the forward gets as inputs: others are there as a tensor's dimension.
    """
    inputs = pair.backward.inputs
    there = {item.size for item in inputs if item.size is not None}
    passed = {item.size for item in pair.forward.inputs if item.size is not None}
    used = {symbols.simplify(s) for item in inputs for s in item.value.type.symbols}
    free = {s for size in used if isinstance(size, sympy.Basic) for s in size.free_symbols}
    more = sorted(free & passed - there, key=str)
    roles = [Role("saved", str(size)) for size in more]
    place = sum(item.role.kind == "saved" for item in inputs)
    added = [size_input(size, role) for size, role in zip(more, roles, strict=True)]
    outputs = [Output(size, role) for size, role in zip(more, roles, strict=True)]
    reason = "the size of what the backward gets"
    return Pair(
        replace(pair.forward, outputs=[*pair.forward.outputs, *outputs]),
        replace(pair.backward, inputs=[*inputs[:place], *added, *inputs[place:]]),
        (*pair.saved, *(Saved(size, 0, reason, None) for size in more)),
    )


def _rank(output: Output) -> tuple[int, bool]:
    saved_size = output.role.kind == "saved" and isinstance(output.value, sympy.Basic)
    return (ORDER.index(output.role.kind), saved_size)


def _passed(graph: Graph) -> list[int]:
    """The inputs that a call passes."""
    return [i for i, item in enumerate(graph.inputs) if not is_attribute(item, graph)]


def is_attribute(item: Input, graph: Graph) -> bool:
    """Whether an input is an attribute of the module: one from outside the arguments, without grad.

    Not one that the graph writes to.
    """
    outside = item.role.kind in ("captured", "constant") and not item.value.type.requires_grad
    written = (op.args[0] for op in graph.ops if op.target is COPY)
    returned = (output.value for output in graph.outputs)
    return outside and all(value is not item.value for value in (*returned, *written))


def attribute_inputs(graph: Graph) -> dict[int, tuple[str, torch.Tensor]]:
    """The inputs that are attributes of the module, with their names."""
    return as_attributes(
        (i, item) for i, item in enumerate(graph.inputs) if is_attribute(item, graph)
    )


def _inverse(order: Sequence[int]) -> tuple[int, ...]:
    places = {old: new for new, old in enumerate(order)}
    return tuple(places[i] for i in range(len(order)))


def _saved_names(pair: Pair, forward: Half) -> list[str]:
    """The names of the nodes that the forward returns as saved values."""
    returned: Any = forward.module.graph.output_node().args[0]
    kinds = [output.role.kind for output in pair.forward.outputs]
    return [
        str(getattr(returned[place], "name", "saved"))
        for place, kind in zip(forward.outputs, kinds, strict=True)
        if kind == "saved"
    ]


def _gradients(pair: Pair, counts: Sequence[int]) -> tuple[list[int | None], list[int]]:
    """For each primal, the outputs that are its gradient; and the primal of each of these."""
    inputs = pair.forward.inputs
    requiring = [i for i, item in enumerate(inputs) if item.value.type.requires_grad]
    ends = accumulate(counts)
    owned = {i: range(end - n, end) for i, n, end in zip(requiring, counts, ends, strict=True)}
    primals = [*enumerate(_passed(pair.forward))]
    both = [(n, place) for n, i in primals for place in owned.get(i, (None,))]
    return [place for _, place in both], [n for n, _ in both]


def metadata_of(
    recorded: Recording, forward: Half, backward: Half | None, static: Collection[int]
) -> Any:
    """What torch says of a forward to the compiler of it; `static`: arguments that are parameters.

    Its outputs are those of the graph: a view of an input is taken outside of it, and so is no
    output, and what autograd follows to an input is one.
    """
    hidden = {recorded.inputs[m.index].role.name for m in recorded.mutations if m.hidden}
    returned = forward.graph.outputs
    news = {o.role.name for o in returned if o.role.kind == "mutation"}
    passed = [forward.graph.inputs[place] for place in forward.inputs]
    saved = [_saved(o.value, forward) for o in returned if o.role.kind == "saved"]
    fixed = (item.role.kind in STATIC or item.argument in static for item in passed)
    return torch_api.aot_metadata.forward_metadata(
        [_input(item, news, hidden) for item in passed],
        [_output(o.value, recorded) for o in returned if o.role.kind == "output"],
        [] if backward is None else backward.examples[len(saved) :],
        None if backward is None else sorted(saved, key=lambda each: each is None),
        [place for place, yes in enumerate(fixed) if yes],
    )


def _input(item: Input, written: Collection[str], hidden: Collection[str]) -> Any:
    if item.size is not None:
        return torch_api.aot_metadata.input_info()
    name, follows = item.role.name, item.value.type.requires_grad
    seen = name in written and not (name in hidden and follows)
    return torch_api.aot_metadata.input_info(
        is_leaf=item.leaf or not follows,
        requires_grad=follows,
        mutates_data=name in written,
        mutations_hidden_from_autograd=not seen,
        mutations_under_no_grad_or_inference_mode=seen and follows,  # else it is an output
    )


def _output(value: Any, recorded: Recording) -> Any:
    if not isinstance(value, Value):
        return torch_api.aot_metadata.output_info()
    followed, wants = value.type.requires_grad, recorded.differentiable(value)
    return torch_api.aot_metadata.output_info(_open(value), followed=followed, wants=wants)


def _saved(value: Any, forward: Half) -> tuple[set[int], bool] | None:
    if not isinstance(value, Value):
        return None
    return _open(value), any(item.value is value for item in forward.graph.inputs)


def _open(value: Value) -> set[int]:
    """The dimensions of open size."""
    return {n for n, size in enumerate(value.type.shape) if isinstance(size, sympy.Basic)}
