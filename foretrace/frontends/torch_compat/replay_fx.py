"""Runs a torch.fx graph of a front end such as Dynamo as the program, node by node.

An op has the line and the module of its node: the code that fx generates has no line of the user.
"""

import inspect
import re
import types
from typing import Any

from torch import fx

from foretrace import torch_api
from foretrace.errors import Frame
from foretrace.ir.program.origin import ModuleCall
from foretrace.ir.source.call_site import LIBRARY_DIRS, Sources
from foretrace.ir.source.graph_lines import line_of_node
from foretrace.tracer.recorder.recorder import Recorder

ROOT = re.compile(r"^[LG]\['\w+'\]\.?")
"""The head of Dynamo's module paths: the variable of the outermost module."""


class NodeSources(Sources):
    """The user's line of the running node."""

    def __init__(self) -> None:
        super().__init__()
        self.node: fx.Node | None = None
        self._known: dict[fx.Node, Frame | None] = {}

    def run(self, node: fx.Node) -> None:
        """Note the node that runs."""
        self.node = node

    def here(self, above: int = 1) -> Frame | None:
        """The innermost line of the user in the node's stack, else that of the program."""
        node = self.node
        if node is not None and node not in self._known:
            self._known[node] = line_of_node(node, LIBRARY_DIRS)
        return (self._known[node] if node is not None else None) or self.defined


def first_line(module: fx.GraphModule) -> Frame | None:
    """The first line of the user in a graph."""
    lines = (line_of_node(node, LIBRARY_DIRS) for node in module.graph.nodes)
    return next(filter(None, lines), None)


class Replay(fx.Interpreter):
    """The graph as a callable with a signature; ops belong to the module of their node."""

    def __init__(self, module: fx.GraphModule, sources: NodeSources) -> None:
        super().__init__(module)
        self.extra_traceback = False  # a refusal has the user's line already
        self.sources = sources
        self.recorder: Recorder | None = None
        self._calls: dict[Any, ModuleCall | None] = {(): None}
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        names = [str(node.name) for node in module.graph.find_nodes(op="placeholder")]
        self.__signature__ = inspect.Signature([inspect.Parameter(name, kind) for name in names])

    def __call__(self, *args: Any) -> Any:
        """Run the graph."""
        return self.run(*args)

    def run_node(self, n: fx.Node) -> Any:
        """Run one node."""
        self.sources.run(n)
        if self.recorder is not None:
            self.recorder.scope.set_module(self._module_of(n))
        as_python = torch_api.data_call(n)
        if as_python is None:
            return super().run_node(n)
        args, _ = self.fetch_args_kwargs_from_env(n)
        return as_python(*args)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Call what stands where the target did: a capture sees what switches torch's state."""
        if type(target) is types.BuiltinFunctionType and target in torch_api.STANDS:
            place, key = torch_api.STANDS[target]
            target = vars(place)[key]
        return super().call_function(target, args, kwargs)

    def _module_of(self, node: fx.Node) -> ModuleCall | None:
        """The module calls around the node in the front end."""
        stack = tuple((node.meta.get("nn_module_stack") or {}).values())
        for depth in range(1, len(stack) + 1):
            if stack[:depth] not in self._calls:
                path, kind = stack[depth - 1]
                self._calls[stack[:depth]] = _call(path, kind, self._calls[stack[: depth - 1]])
        return self._calls[stack]


def _call(path: str, kind: Any, outer: ModuleCall | None) -> ModuleCall:
    path = ROOT.sub("", path)
    qualified = kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"
    return ModuleCall(path, qualified.rpartition(".")[2], qualified, outer)
