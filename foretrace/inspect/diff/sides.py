"""The two sides of a comparison: recordings, graphs, names of nodes, differences of types."""

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from torch import fx

from foretrace.errors import Frame
from foretrace.inspect.diff.difference import Seen
from foretrace.ir.program.interface import Input, Target
from foretrace.ir.program.op import Op, target_name
from foretrace.ir.program.origin import ModuleCall
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.values.tensor_type import DTYPE_NAMES, TensorType
from foretrace.ir.values.value import Value
from foretrace.lowering.partition.partition import SAVED_COPY, Pair as Halves

LISTED = 3
"""The most names in a list; the others are counted."""


class OfProgram(Protocol):
    """The part of a Program that a comparison needs."""

    recorded: Recording

    @property
    def target(self) -> Target:
        """The target of the capture."""


class CutLike(Protocol):
    """The part of a Cut that a comparison needs."""

    graph: Graph
    loss: int | None
    pair: Halves | None

    @property
    def program(self) -> OfProgram:
        """The program of the cut."""

    @property
    def graph_module(self) -> fx.GraphModule:
        """The graph module, which names the nodes and runs."""


class Side:
    """One of the two cuts: its recording, its graph, and the names of its nodes."""

    def __init__(self, cut: CutLike) -> None:
        self.cut, self.recorded, self.graph = cut, cut.program.recorded, cut.graph
        self.target, self.kind = cut.program.target, cut.graph.kind
        self.names: dict[Op, str] = {}
        modules = cut.graph_module.named_modules()
        for path, module in modules:
            for node in module.graph.nodes if isinstance(module, fx.GraphModule) else ():
                op = node.meta.get("foretrace")
                if isinstance(op, Op):
                    self.names.setdefault(op, f"{path}.{node.name}" if path else node.name)
        saved = cut.pair.saved if cut.pair is not None else ()
        self.copies: dict[Value, Value] = {
            out: each.op.operands[-1]
            for each in saved
            if each.op is not None and each.op.choice is not None
            for out in each.op.outs
            if each.op.choice.what == SAVED_COPY
        }
        """the values that the forward copies for the backward, by their copies"""
        self.all_names = tuple(node.name for node in cut.graph_module.graph.nodes)

    @property
    def label(self) -> str:
        """`joint@cpu`."""
        return f"{self.kind}@{self.target.name}"

    @property
    def differentiates(self) -> bool:
        """Whether it has gradients."""
        return any(output.role.kind == "gradient" for output in self.graph.outputs)

    @property
    def program(self) -> tuple[Frame | None, str]:
        """The identity of the program: the line that defines it, and the class of its module."""
        first = self.recorded.ops[0].target if self.recorded.ops else None
        root = first.qualified_class if isinstance(first, ModuleCall) else ""
        return self.recorded.requires.defined, root

    @property
    def program_text(self) -> str:
        """The program in words."""
        frame, root = self.program
        return root or (f"{frame.function} ({frame.file}:{frame.line})" if frame else "a program")

    def name_of(self, value: Value) -> str:
        """The name of a value's node."""
        for item in self.graph.inputs:
            if item.value is value:
                return item.role.name
        op = next((op for op in self.graph.ops if value in op.outs), None)
        return repr(value.type) if op is None else self.names.get(op, target_name(op.target))

    def seen(self, ops: Iterable[Op]) -> tuple[Seen, ...]:
        """The nodes of ops."""
        return tuple(
            Seen(
                self.names.get(op, target_name(op.target)),
                str(op.called[0]),
                tuple(repr(out.type) for out in op.outs),
            )
            for op in ops
        )


def paired_inputs(
    left: Sequence[Input], right: Sequence[Input]
) -> tuple[list[tuple[Input, Input]], tuple[list[Input], list[Input]]]:
    """Pairs of inputs of one role, then of arguments by position; and the other inputs.

    Saved values are left out, as their names say nothing.
    """
    left, right = ([item for item in side if item.role.kind != "saved"] for side in (left, right))
    theirs = {item.role: item for item in right}
    found = [(item, theirs[item.role]) for item in left if item.role in theirs]
    mine, others = {id(a) for a, _ in found}, {id(b) for _, b in found}
    rest = [item for item in left if id(item) not in mine]
    over = [item for item in right if id(item) not in others]
    for item in [item for item in rest if item.argument is not None]:
        other = next((o for o in over if o.argument == item.argument), None)
        if other is not None:
            found.append((item, other))
            rest.remove(item)
            over.remove(other)
    return found, (rest, over)


def aspects(left: TensorType, right: TensorType, *, moved: bool) -> list[tuple[str, Any, Any]]:
    """The differences between two types; `moved`: the targets are on different devices."""
    if left is right or left == right:
        return []
    found: list[tuple[str, Any, Any]] = []
    if left.dtype != right.dtype:
        found.append(("dtype", _dtype(left), _dtype(right)))
    if left.shape != right.shape:
        found.append(("shape", left.shape, right.shape))
    elif left.stride != right.stride:
        found.append(("strides", left.stride, right.stride))
    for name in ("requires_grad", "lazy", "sparse"):
        a, b = getattr(left, name), getattr(right, name)
        if a != b:
            found.append((name, a, b))
    if left.device != right.device and not moved:
        found.append(("device", left.device, right.device))
    return found


def _dtype(type: TensorType) -> str:
    return DTYPE_NAMES.get(type.dtype, str(type.dtype).removeprefix("torch."))


def aspect_text(found: tuple[str, Any, Any]) -> str:
    """`f32 on the left, bf16 on the right`; without sizes, as each op has its own."""
    aspect, left, right = found
    if aspect in ("shape", "strides"):
        return f"other {'sizes' if aspect == 'shape' else aspect}"
    if aspect == "requires_grad":
        return f"requires grad on the {'left' if left else 'right'} only"
    return f"{left} on the left, {right} on the right"


def listed(names: Sequence[str], most: int = LISTED) -> str:
    """`x, y and 12 more`."""
    if len(names) > most:
        return f"{', '.join(names[: most - 1])} and {len(names) - most + 1} more"
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
