"""An fx graph as a module, and its constants as generated code reads them to the last bit."""

from typing import Any

import sympy
import torch
from torch import fx

from foretrace import torch_api
from foretrace.ir.program.names import called_like_a_keyword, escape_keywords
from foretrace.ir.values.nested import leaves, map_tree
from foretrace.ir.values.value import Tree, Value

LITERAL_TYPES = frozenset({
    bool, int, float, str, bytes, type(None), type(...),
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch_api.OpOverload,
})  # fmt: skip
"""Types whose `repr` generated code reads as the same object"""


class Complex(complex):
    """A number that generated code reads as the same one.

    Python reads `-1j` with the real part -0.0, and torch.fx has no word for an infinite part.
    """

    def __repr__(self) -> str:
        return f"complex({self.real!r}, {self.imag!r})"


def size_path(result: Tree, symbol: sympy.Symbol) -> tuple[Any, ...]:
    """The way from what a call returns to the number that the symbol is, as torch has it."""
    if result is symbol:
        return ()
    parts = [(None, result)] if isinstance(result, Value) else list(enumerate(result))
    place, value = next((i, v) for i, v in parts if isinstance(v, Value) and symbol in v.type.shape)
    return torch_api.size_of_result(value.type.shape.index(symbol), place)


def module_of(root: torch.nn.Module | dict[str, Any], graph: fx.Graph, name: str) -> fx.GraphModule:
    """A graph with what it holds, as a module whose code Python reads."""
    calls = {id(n.target): n.target for n in graph.nodes if n.op == "call_function"}
    if any(map(called_like_a_keyword, calls.values())):
        graph.on_generate_code(lambda _: escape_keywords)
    return torch_api.LazyGraphModule(root, graph, class_name=name)


def interpretable(module: fx.GraphModule) -> fx.GraphModule:
    """The module with numbers in its graph that operators take: of complex ones, no subclass.

    Its code, which stays as it is, reads them to the last bit.
    """
    found = [node for node in module.graph.nodes if _complex((*node.args, *node.kwargs.values()))]
    if found:
        module.code  # noqa: B018 - it is written while the graph has them
    for node in found:
        node.args, node.kwargs = map_tree((node.args, node.kwargs), _plain)
    return module


def _complex(arguments: Tree) -> bool:
    return any(type(leaf) is Complex for leaf in leaves(arguments))


def _plain(leaf: Any) -> Any:
    return complex(leaf) if type(leaf) is Complex else leaf
