"""torch.fx: nodes appended one after another, and modules whose code waits until it is read."""

import linecache
import logging
from collections.abc import Callable
from operator import attrgetter
from types import CodeType
from typing import Any
from weakref import finalize

import torch
from torch import fx

# A GraphModule that writes its code late, as torch's own compilers hold theirs.
from torch.fx._lazy_graph_module import _LazyGraphModule

# Where torch keeps the code of every GraphModule, by the name of its file.
from torch.fx.graph_module import _loader

# What torch.fx has of a tensor beside the fake one: make_fx calls it for every node.
from torch.fx.passes.shape_prop import TensorMetadata, _extract_tensor_metadata

from foretrace.torch_api.ambient.modes import OfGraph

tensor_metadata: Callable[[torch.Tensor], TensorMetadata] = _extract_tensor_metadata
"""The `meta["tensor_meta"]` of a node (torch/fx/passes/shape_prop.py, 2.13 to 2.15)"""

# How Dynamo writes `tensor.data` into a graph: torch/_dynamo/variables/tensor.py, 2.13 and 2.15.
_READS_DATA: Any = vars(torch._C._autograd)["_get_data_attr"]
_SETS_DATA = getattr(torch.ops.aten, "shallow_copy_data_", None)
"""Of 2.15; 2.13 has a `set_`, and then takes back that it counts as a write"""
_TAKES_BACK = "_lower_version_count_by_1"


def data_call(node: fx.Node) -> Callable[..., Any] | None:
    """What Python calls in the place of a node by which Dynamo reads or sets `tensor.data`."""
    if node.op != "call_function":
        return None
    if node.target is _READS_DATA:
        return attrgetter("data")
    if _name(node.target) == _TAKES_BACK:
        return _itself
    taken_back = any(_name(user.target) == _TAKES_BACK for user in node.users)
    if taken_back or (_SETS_DATA is not None and node.target is _SETS_DATA):
        return _set_data
    return None


def _name(target: Any) -> str:
    return getattr(target, "__name__", "")


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _set_data(tensor: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    tensor.data = new
    return tensor


class Nodes:
    """Makes the nodes of a graph.

    `Graph.create_node` would look through the arguments for symbolic numbers and make the name
    again: three quarters of its time. Source: torch/fx/graph.py, 2.13.
    """

    __slots__ = ("_equal", "_graph", "_names", "_table")

    def __init__(self, graph: fx.Graph) -> None:
        self._graph, self._names = graph, graph._graph_namespace
        self._table = graph._find_nodes_lookup_table
        self._equal: dict[Any, dict[fx.Node, None]] = {}
        """the graph's own lists of nodes with one target, by its id, as to hash it is Python"""

    def append(
        self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], name: str
    ) -> fx.Node:
        """A new node at the graph's insert point.

        `name` is a Python identifier that no node of the graph has and that shadows no builtin.
        """
        graph, names = self._graph, self._names
        node = fx.Node(graph, name, op, target, args, kwargs)
        names._used_names.add(name)
        names._obj_to_name[node] = name
        graph._insert(node)
        kind = id(target) if op == "call_function" else op
        equal = self._equal.get(kind)
        if equal is None:
            equal = self._equal[kind] = self._table.table[self._table._key(node)]
        equal[node] = None
        graph._len += 1
        return node


def set_meta(node: fx.Node, meta: dict[str, Any]) -> None:
    """Give a node another `meta`.

    `Node.__setattr__` would take the node out of the graph's table of targets and put it back.
    Source: torch/fx/node.py, 2.13.
    """
    object.__setattr__(node, "meta", meta)


def nodes_by_line(module: fx.GraphModule, code: CodeType) -> dict[int, fx.Node]:
    """The nodes of a graph by the lines of its code, which is `forward`'s.

    `_lineno_map` has the place of the node for each line of `forward`, counted from its first.
    Source: torch/fx/graph.py, 2.13 and 2.15.
    """
    places = getattr(module, "_lineno_map", None) or {}
    nodes = [*module.graph.nodes]
    first, known = code.co_firstlineno, range(len(nodes))
    return {first + line: nodes[at] for line, at in places.items() if at in known}


class LazyGraphModule(OfGraph, _LazyGraphModule):
    """A GraphModule whose code is written when it is first called, looked at, or recompiled.

    torch's own puts a method with other parameters in the place of `forward` until then, and does
    so again at each recompiling; here whoever looks at `forward` gets that of the graph.
    """

    __jit_unused_properties__: Any = (*fx.GraphModule.__jit_unused_properties__, "code")
    """What TorchScript does not compile: `code` calls Python that it does not know"""

    def recompile(self) -> Any:  # type: ignore[override]
        """Write the code again, except when the module is created."""
        cls = type(self)
        if "forward" in vars(cls):
            return self._real_recompile()
        cls.forward = _Unwritten()  # type: ignore[assignment]
        return None

    def _real_recompile(self) -> Any:
        written = super()._real_recompile()
        finalize(self, _forget_source, type(self).forward.__code__.co_filename)
        return written


def _forget_source(file: str) -> None:
    """Let go of code that was written for a module which is gone: torch keeps all of it for good.

    `_EvalCacheLoader` and linecache had 12 KB of a small graph. Source: torch/fx/graph_module.py.
    """
    _loader.eval_cache.pop(file, None)
    linecache.cache.pop(file, None)


class _Unwritten:
    """The `forward` of a module whose code is not written."""

    def __get__(self, module: LazyGraphModule | None, cls: type[LazyGraphModule]) -> Any:
        if module is None:  # what torch takes for a module that has yet to be compiled
            return cls._lazy_forward
        module.real_recompile()
        return module.forward


# By a cut's kind, the artifact of TORCH_LOGS that shows it, and the name under which TORCH_TRACE
# has it for tlparse, as AOTAutograd calls them. Checked on 2.13.
LOGGED: dict[str, tuple[str, str]] = {
    "joint": ("aot_joint_graph", "aot_joint_graph"),
    "forward": ("aot_graphs", "aot_forward_graph"),
    "backward": ("aot_graphs", "aot_backward_graph"),
    "export": ("aot_graphs", "aot_inference_graph"),
    "aten": ("aot_graphs", "aot_inference_graph"),
}


LOGGER = "torch.foretrace"
"""A name below torch's, as it gives its handlers to no other"""


def _is_traced() -> bool:
    """Whether TORCH_TRACE names a folder; torch itself asks only whether it has any handler."""
    handlers = torch._logging._internal.trace_log.handlers
    return any(getattr(each, "root_dir", None) is not None for each in handlers)


class CaptureLog:
    """One capture in torch's structured log: its number, by which tlparse groups its graphs.

    The number is drawn from torch's own counter, which Dynamo draws from, too, at the first graph
    that is logged. `get_compile_id`, `CompileContext`, `intern_string` and the names of the rows
    are private; checked on 2.13 and with tlparse 0.4.3.
    """

    def __init__(self) -> None:
        self._frame: dict[str, Any] = {}
        self._id: Any = None

    def write(self, name: str, text: Callable[[], str], line: tuple[str, int, str] | None) -> None:
        """A row for a graph; `line`: file, number and function of the user's line, if known."""
        context = torch._guards.CompileContext.try_get()
        if context is not None and context.compile_id is not None:  # Dynamo compiles the program
            _row(name, payload_fn=text)
            return
        first = self._id is None
        if first:
            self._id = torch._dynamo.convert_frame.get_compile_id(self._frame)
        with torch._guards.compile_context(torch._guards.CompileContext(self._id)):
            if first:
                self._begin(line)
            _row(name, payload_fn=text)

    def _begin(self, line: tuple[str, int, str] | None) -> None:
        file, number, function = line or ("<unknown>", 0, "<unknown>")
        frame = {
            "line": number,
            "name": function,
            "filename": torch._logging.structured.intern_string(file),
        }
        _row("dynamo_start", metadata_fn=lambda: {"stack": [frame]})
        about = {
            "compile_id": str(self._id),
            "co_name": function,
            "co_filename": file,
            "co_firstlineno": number,
        }
        _row("compilation_metrics", metadata_fn=lambda: about)


def _row(name: str, **row: Any) -> None:
    """One row of torch's structured log, which is private: there is no other way to tlparse."""
    torch._logging._internal.trace_structured(name, **row)


def log_graph(
    kind: str, module: fx.GraphModule, log: CaptureLog, line: tuple[str, int, str] | None
) -> None:
    """Show a graph where TORCH_LOGS or TORCH_TRACE asks for it; these are private to torch.

    Args:
        kind: the cut's.
        module: the graph.
        log: the capture that it is a cut of.
        line: file, number and function of the first of the user's lines in it.
    """
    artifact, name = LOGGED.get(kind, LOGGED["aten"])
    logger: logging.Logger = torch._logging._internal.getArtifactLogger(LOGGER, artifact)

    def text() -> str:
        text: str = module.print_readable(print_output=False)
        return text

    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("foretrace, %s cut\n%s", kind, text())
    if _is_traced():
        log.write(name, text, line)


def static_inputs(module: fx.GraphModule) -> frozenset[int]:
    """The placeholders of a graph of Dynamo's that are parameters and buffers, by place.

    Source: torch/_functorch/_aot_autograd/frontend_utils.py, 2.13 to 2.15.
    """
    marks = [node.meta.get("tensor_dict") for node in module.graph.find_nodes(op="placeholder")]
    key = "_dynamo_static_input_type"
    return frozenset(place for place, each in enumerate(marks) if each and each.get(key))
