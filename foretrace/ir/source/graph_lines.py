"""Lines behind the nodes of a torch.fx graph, whose code is generated."""

import re
from collections.abc import Mapping
from types import CodeType, FrameType
from typing import Any, Final

from torch import fx

from foretrace import torch_api
from foretrace.errors import Frame, NodeFrame

LINE: Final = re.compile(r'File "([^"]+)", line (\d+), in (.+)')
GRAPH_CODE: Final = "<eval_with_key>"
"""How torch.fx names the files of what it generates (torch/fx/graph_module.py)"""
CUSTOM: Final = "custom"
"""What `torch.fx.traceback.annotate` says of nodes"""
COPIED: Final = ("nn_module_stack", "source_fn_stack", CUSTOM)
"""Of a node's `meta`, what `torch.export` copies to the nodes that come of it"""


def is_of_graph(code: CodeType) -> bool:
    """Whether torch.fx has generated code."""
    return code.co_filename.startswith(GRAPH_CODE)


def line_of_node(node: fx.Node, library_dirs: tuple[str, ...]) -> Frame | None:
    """The innermost line of the user in a node's `stack_trace`; None where it has none."""
    found = LINE.findall(node.stack_trace or "")
    frames = [Frame(file, int(line), name) for file, line, name in found]
    users = [frame for frame in frames if not frame.file.startswith(library_dirs)]
    return (users or frames)[-1] if frames else None


class GraphLines:
    """The lines of the nodes that run in frames of generated code.

    Who asks keeps the code alive: it is known by its id.
    """

    def __init__(self, library_dirs: tuple[str, ...]) -> None:
        self._library_dirs = library_dirs
        self._nodes: dict[int, dict[int, fx.Node]] = {}
        """by code and line: to list the nodes for each of them would take their square"""

    def of_running(self, at: FrameType) -> NodeFrame | None:
        """The line of the node that runs in a frame; None where it has none."""
        nodes = self._nodes.get(id(at.f_code))
        if nodes is None:
            module: Any = at.f_locals.get("self")
            known = isinstance(module, fx.GraphModule)
            nodes = torch_api.nodes_by_line(module, at.f_code) if known else {}
            self._nodes[id(at.f_code)] = nodes
        node = nodes.get(at.f_lineno)
        line = None if node is None else line_of_node(node, self._library_dirs)
        if node is None or line is None:
            return None
        return NodeFrame(line.file, line.line, line.function, copied_meta(node.meta))


def annotated(frame: Frame, custom: Mapping[str, Any]) -> NodeFrame:
    """A line in a region of `torch.fx.traceback.annotate`."""
    meta = frame.meta if isinstance(frame, NodeFrame) else {}
    return NodeFrame(frame.file, frame.line, frame.function, {**meta, CUSTOM: dict(custom)})


def copied_meta(meta: Any) -> dict[str, Any]:
    """What is copied of the `meta` of a node, or of a graph's module; nothing of no dict."""
    return {name: meta[name] for name in COPIED if name in meta} if type(meta) is dict else {}
