"""A graph module with its inputs and outputs in another order and by other names.

torch's own entry points each have a calling convention; this is how a cut gets one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import fx

from foretrace.ir.program.interface import Input
from foretrace.lowering.emit.graph_module import module_of


@dataclass(frozen=True, slots=True)
class Slot:
    """One input of the new module: an input of the old one, or one that nothing reads."""

    name: str
    input: int | None = None
    val: Any = None
    """for an input that nothing reads: its `meta["val"]`"""


def arranged(
    module: fx.GraphModule,
    slots: Sequence[Slot],
    outputs: Sequence[int | None],
    attributes: Mapping[int, tuple[str, torch.Tensor]],
    own: Sequence[range] = (),
) -> fx.GraphModule:
    """The module with other inputs and outputs, and the same nodes between.

    Args:
        module: a cut's graph module.
        slots: its inputs, in the new order.
        outputs: for each new output, which of the old ones it is; None gives None.
        attributes: inputs of the old module that the new one holds as attributes, with their names.
        own: positions of outputs; those of one range have to be different nodes, as they are known
            by name.
    """
    graph, root = fx.Graph(), _attributes_of(module)
    old = dict(enumerate(module.graph.find_nodes(op="placeholder")))
    env: dict[fx.Node, fx.Node] = {}
    for slot in slots:
        node = graph.placeholder(slot.name)
        node.meta["val"] = slot.val
        if slot.input is not None:
            env[old[slot.input]] = node
            node.meta = dict(old[slot.input].meta)
    for index, (name, tensor) in attributes.items():
        root[name] = tensor
        env[old[index]] = graph.get_attr(name)
        env[old[index]].meta = dict(old[index].meta)
    for node in module.graph.nodes:
        if node.op not in ("placeholder", "output"):
            env[node] = graph.node_copy(node, env.__getitem__)
    results: Any = fx.map_arg(module.graph.output_node().args[0], env.__getitem__)
    picked = [None if i is None else results[i] for i in outputs]
    for positions in own:
        _copy_repeated(graph, picked, positions)
    graph.output(tuple(picked))
    return module_of(root, graph, type(module).__name__)


def as_attributes(inputs: Iterable[tuple[int, Input]]) -> dict[int, tuple[str, torch.Tensor]]:
    """Inputs that a new module holds, by their place in the old one, named as torch names them."""
    found = [(i, item.live()) for i, item in inputs]
    there = [(i, tensor) for i, tensor in found if tensor is not None]
    return {i: (f"_tensor_constant{n}", tensor) for n, (i, tensor) in enumerate(there)}


def constants_passed(
    module: fx.GraphModule, inputs: list[Any]
) -> tuple[list[Any], list[torch.Tensor]]:
    """Let the tensors that a graph holds be its last inputs; the examples, and these tensors.

    A program reads a tensor from outside as it is at each call, and may write to it; a compiler
    takes the elements of a constant once.
    """
    graph, passed, found = module.graph, list(inputs), list[torch.Tensor]()
    last = max(graph.find_nodes(op="placeholder"), default=None)
    for node in graph.find_nodes(op="get_attr"):
        tensor = attrgetter(node.target)(module)
        if not isinstance(tensor, torch.Tensor):
            continue
        with graph.inserting_after(last) if last else graph.inserting_before():
            last = graph.placeholder(node.name)
        last.meta.update(node.meta)
        node.replace_all_uses_with(last)
        graph.erase_node(node)
        passed.append(node.meta.get("val", tensor))
        found.append(tensor)
    if found:
        module.recompile()
    return passed, found


def _attributes_of(module: fx.GraphModule) -> dict[str, Any]:
    """The attributes that the module's nodes name."""
    named = (node.target for node in module.graph.nodes if node.op in ("call_module", "get_attr"))
    return {name: attrgetter(name)(module) for name in map(str, named)}


def _copy_repeated(graph: fx.Graph, results: list[Any], positions: range) -> None:
    """Put a copy in the place of a node that an earlier one of the positions has already."""
    seen: set[fx.Node] = set()
    for i in positions:
        if results[i] in seen:
            copy = graph.call_function(torch.ops.aten.clone.default, (results[i],))
            copy.meta = dict(results[i].meta)
            results[i] = copy
        seen.add(results[i])
