"""Each node of a graph beside a target that is not here: its kernel there, its types on `meta`."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import torch
from torch import fx

from foretrace import torch_api
from foretrace.errors import Attempt
from foretrace.ir.program.interface import Target
from foretrace.operators.targets.build import build_of, key_at, served_by

NUMBERS: Final = (torch.SymInt, torch.SymFloat, torch.SymBool)
ERRORS: Final = (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError)
"""What operators raise on `meta`, as of data or for want of a kernel"""
NONE: Final = "none"
UNKNOWN: Final = "not known"


@dataclass(frozen=True, slots=True)
class NodeThere:
    """A node that calls an operator.

    `key`: the dispatch key of the call; `kernel`: that of the kernel which serves it, "none", or
    "not known"; `on_meta`: why it does not run there; `differs`: how its types do, there.
    """

    node: str
    op: str
    key: str
    kernel: str
    on_meta: str = ""
    differs: str = ""

    @property
    def wrong(self) -> bool:
        """Whether the device has no kernel for it, or gives other types."""
        return self.kernel == NONE or bool(self.differs)

    @property
    def said(self) -> str:
        """What a reader has to know; empty where a kernel serves it, and its types are right."""
        if self.kernel in {NONE, UNKNOWN}:
            return f"its kernel for {self.key}: {self.kernel}"
        return f"other types on meta: {self.differs}" if self.differs else self.on_meta

    def to_dict(self) -> dict[str, str]:
        """The fields, as JSON."""
        return asdict(self)


def nodes_there(
    graph: fx.GraphModule, target: Target, hint: Callable[[Any], int]
) -> Iterator[NodeThere]:
    """Each call of an operator, also in graphs that an operator holds. Nothing runs on a device.

    Args:
        graph: a cut's, captured for the target.
        target: the device.
        hint: the number of an open size in the captured run.
    """
    for module in graph.modules():
        for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
            if isinstance(node.target, torch_api.OpOverload):
                yield _node_there(node, target, _Numbers(hint))


def _node_there(node: fx.Node, target: Target, numbers: "_Numbers") -> NodeThere:
    key, kernel = _kernel(node, target)
    on_meta, differs = numbers.compared(node)
    return NodeThere(node.name, str(node.target), key, kernel, on_meta, differs)


def _kernel(node: fx.Node, target: Target) -> tuple[str, str]:
    op: Any = node.target
    operands = _tensors([each.meta.get("val") for each in node.all_input_nodes])
    there = {each.layout for each in operands if each.device.type == target.device.type}
    device: Any = None if operands else node.kwargs.get("device")
    build = build_of(target)
    if not there and (device is None or torch.device(device).type != target.device.type):
        key = torch_api.backend_key(operands[0].device.type if operands else "cpu")
        has = torch_api.has_computed_kernel(op.name(), key)
        return key, key if has else NONE
    if build is None:
        return torch_api.backend_key(target.device.type), UNKNOWN
    asked: Any = node.kwargs.get("layout")
    key = key_at(build, op, there, asked)
    ours = op.namespace == "aten" and torch.__version__.startswith(build.version)
    return key, served_by(op, build, key) or (NONE if ours and build.complete else UNKNOWN)


class _Numbers:
    """Runs a node on `meta`, with the numbers of the captured run for open sizes."""

    def __init__(self, hint: Callable[[Any], int]) -> None:
        self.hint = hint

    def compared(self, node: fx.Node) -> tuple[str, str]:
        """Why the operator does not run on `meta`, and how its types differ there."""
        with Attempt(*ERRORS) as attempt, torch_api.plain_torch():
            call = node.args, node.kwargs
            args, kwargs = fx.map_arg(call, lambda each: self._on_meta(each.meta["val"]))
            op: Any = node.target
            found = op(*args, **{n: _moved(each) for n, each in kwargs.items()})
            pairs = zip(_tensors(found), _tensors(node.meta["val"]), strict=True)
            wrong = [f"{_form(one)}, not {_form(two)}" for one, two in self._numbered(pairs)]
        if attempt.error is not None:
            return str(attempt.error).partition("\n")[0] or type(attempt.error).__name__, ""
        return "", "; ".join(wrong)

    def _numbered(self, pairs: Any) -> Iterator[tuple[Any, Any]]:
        for found, val in pairs:
            known = self._on_meta(val)
            if _form(found) != _form(known):
                yield found, known

    def _on_meta(self, val: Any) -> Any:
        if isinstance(val, (list, tuple)):
            return type(val)(map(self._on_meta, val))
        if isinstance(val, NUMBERS):
            return self.hint(torch_api.expression(val))
        if not isinstance(val, torch.Tensor):
            return val
        size, stride = ([self._on_meta(n) for n in each] for each in (val.shape, val.stride()))
        return torch.empty_strided(size, stride, dtype=val.dtype, device="meta")


def _moved(item: Any) -> Any:
    return torch.device("meta") if isinstance(item, torch.device) else item


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch_api.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _form(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{[*tensor.shape]}"  # strides are a kernel's
