"""Operators and graphs as lines of text that a record keeps, and where two lists part."""

from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

BEFORE, AFTER = 5, 150  # lines kept around the first that differs
SHORT: Final = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "float64": "f64"}


def leaves_of(module: fx.GraphModule) -> list[str]:
    """Of a graph, node by node."""
    found = []
    for node in module.graph.nodes:
        if node.op == "call_function" and "getitem" not in str(node.target):
            given = pytree.tree_map_only(
                fx.Node, lambda n: n.meta.get("val"), (list(node.args), dict(node.kwargs))
            )
            found.append(line(str(node.target), given, node.meta.get("val")))
    return found


def nodes_of(module: fx.GraphModule) -> list[str]:
    """A graph to the last argument: every node with its type and device."""
    return [
        f"{node.name}: {described(node.meta.get('val'))} {places(node.meta.get('val'))}"
        f" = {node.op} {node.target}({node.args}, {node.kwargs})"
        for node in module.graph.nodes
    ]


def places(tree: Any) -> str:
    """The devices of the tensors."""
    found = [str(item.device) for item in pytree.tree_leaves(tree) if isinstance(item, Tensor)]
    return " ".join(dict.fromkeys(found))


def line(name: str, given: Any, results: Any) -> str:
    """One operator."""
    return f"{name.removeprefix('aten.')}({described(given)}) -> {described(results)}"


def described(tree: Any) -> str:
    """Tensors by type, all else as it is."""
    return ", ".join(map(leaf, pytree.tree_leaves(tree)))


def leaf(item: Any) -> str:
    """A tensor's dtype, sizes and strides; a number."""
    if isinstance(item, Tensor):
        name = str(item.dtype).removeprefix("torch.")
        strides = list(item.stride()) if item.layout is torch.strided else item.layout
        return f"{SHORT.get(name, name)}{list(item.shape)}{strides}".replace(" ", "")
    return f"{item!s:.60}"


def apart(eager: Iterable[str], ours: Iterable[str]) -> dict[str, Any]:
    """Both lists around the first line in which they differ, and what only one of them has."""
    eager, ours = list(eager), list(ours)
    pairs = zip(eager, ours, strict=False)
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(eager), len(ours)))
    window = slice(max(0, first - BEFORE), first + AFTER)
    return {"apart_at": first, "eager": eager[window], "ours": ours[window]}
