"""Steps of Python's between numbers that data decides, as one operator that a compiler calls.

Inductor would put expressions of sympy in their place, which are simplified, and has no code for
all of Python's functions. What it calls as it is, it leaves as it is.
"""

import builtins
import inspect
import math
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import sympy
import torch
from torch import fx

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.source.call_site import asking_line

READ: Final = torch.ops.aten._local_scalar_dense.default
HOMES: Final = {module.__name__: module for module in (operator, math, builtins, torch)}
"""Where functions are looked up by name"""


@torch.library.custom_op("foretrace::step", mutates_args=())
def step(function: str, whole: bool, numbers: list[torch.types.Number]) -> torch.Tensor:
    """Apply a Python function to numbers: a tensor of one float64, or int64 if it is an integer."""
    home, _, name = function.partition(":")
    found = getattr(HOMES[home], name)(*numbers)
    return torch.tensor(found, dtype=torch.int64 if whole else torch.float64)


@step.register_fake
def _(function: str, whole: bool, numbers: list[torch.types.Number]) -> torch.Tensor:
    return torch.empty((), dtype=torch.int64 if whole else torch.float64)


def with_opaque_steps(module: fx.GraphModule) -> fx.GraphModule:
    """The module, which calls the operator for each step, and reads the number that it gives."""
    _read_once(module.graph)
    steps = [node for node in module.graph.nodes if _is_step(node)]
    for node in steps:
        symbol = node.meta["foretrace"].result
        name = f"{_home(node.target)}:{node.target.__name__}"
        with module.graph.inserting_before(node):
            args = (name, symbol.is_integer is True, list(node.args))
            step = module.graph.call_function(torch.ops.foretrace.step.default, args)
        node.target, node.args = READ, (step,)
        node.meta["unbacked_bindings"] = {symbol: ()}
    if steps:
        module.recompile()
    return module


@contextmanager
def numbers_refused() -> Iterator[None]:
    """The refusal of a compiler that asks for a number which only a run has."""
    try:
        yield
    except torch_api.GuardOnDataDependentSymNode as error:
        raise Refusal(
            f"the compiler asks for a number that data decides: {str(error).partition(' (')[0]}",
            kind="data-dependent",
            at=asking_line(),
            do=('use backend="eager"', "or compute with the tensor itself, not with its number"),
        ) from error


def _read_once(graph: fx.Graph) -> None:
    """Let each number be read once: the first node alone gives a symbol its number."""
    first: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        op = node.meta.get("foretrace") if node.target is READ else None
        if op is not None and first.setdefault(op.result, node) is not node:
            node.replace_all_uses_with(first[op.result])
            graph.erase_node(node)


def _is_step(node: fx.Node) -> bool:
    op: Any = node.meta.get("foretrace") if node.op == "call_function" else None
    known = op is not None and isinstance(op.result, sympy.Symbol)
    return known and inspect.isroutine(node.target) and torch_api.is_from_data(op.result)


def _home(function: Any) -> str:
    return next(n for n, m in HOMES.items() if getattr(m, function.__name__, None) is function)
