"""Lines behind the nodes of a torch.fx graph, whose code is generated."""

import re
from types import CodeType, FrameType
from typing import Any, Final

from torch import fx

from foretrace import torch_api
from foretrace.errors import Frame, NodeFrame

LINE: Final = re.compile(r'File "([^"]+)", line (\d+), in (.+)')
GRAPH_CODE: Final = "<eval_with_key>"
"""How torch.fx names the files of what it generates (torch/fx/graph_module.py)"""
COPIED: Final = ("nn_module_stack", "source_fn_stack", "custom")
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


def line_of_running(at: FrameType, library_dirs: tuple[str, ...]) -> NodeFrame | None:
    """The line of the node that runs in a frame of generated code; None where it has none."""
    module: Any = at.f_locals.get("self")
    node = torch_api.graph_node_at(module, at) if isinstance(module, fx.GraphModule) else None
    line = None if node is None else line_of_node(node, library_dirs)
    if node is None or line is None:
        return None
    return NodeFrame(line.file, line.line, line.function, copied_meta(node.meta))


def copied_meta(meta: Any) -> dict[str, Any]:
    """What is copied of the `meta` of a node, or of a graph's module; nothing of no dict."""
    return {name: meta[name] for name in COPIED if name in meta} if type(meta) is dict else {}
