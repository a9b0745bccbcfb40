"""Autograd's nodes, where a program asks for them: gradient edges, and whether a backward runs one.

`get_gradient_edge` and `register_multi_grad_hook` come to a node by one function of torch's; the
hooks of the latter ask in which backward they run, and which nodes it runs.
Source: torch/autograd/graph.py; THPEngine in torch/csrc/autograd/python_engine.cpp, and
`_will_engine_execute_node` in torch/csrc/autograd/init.cpp.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import torch
from torch.autograd.graph import GradientEdge

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.op import GradientCall, Op, Write
from foretrace.ir.program.origin import ModuleCall
from foretrace.ir.source.call_site import asking_line
from foretrace.ir.values.value import Value
from foretrace.tracer.functionalization.autograd_leaves import value_of
from foretrace.tracer.recorder.function_target import FunctionCall
from foretrace.tracer.recorder.recorder import Recorder
from foretrace.tracer.subclasses.dispatch import known_as

LEAF = (
    "A leaf node was passed to _will_engine_execute_node but we are currently running"
    " autograd.grad(). This is currently not supported."
)


class Metadata(NamedTuple):
    """What torch knows of the gradient that comes to a node."""

    shape: Any
    dtype: torch.dtype
    device: torch.device
    is_nested_tensor: bool = False
    is_cpp_nested_tensor: bool = False


class Node:
    """The node that a value comes from; of a leaf, the one that accumulates its gradient."""

    def __init__(self, value: Value, leaf: bool, gradient: Metadata) -> None:
        self.value, self.leaf, self._input_metadata = value, leaf, [gradient]

    def __getattr__(self, name: str) -> NoReturn:
        raise Refusal(
            f"the program reads {name} of a node of autograd's, which does not exist while it is"
            " captured",
            kind="autograd inside",
            at=asking_line(),
            do="ask for a gradient of its edge, or register the hook on the tensor",
        )


@dataclass(slots=True)
class Task:
    """One backward that a program runs.

    `ops`: those of the program so far; `asked` and `wanted`: what the gradients are of, and what
    lies on the way there, None for all leaves; `adds`: whether they go to `.grad`.
    """

    number: int
    ops: list[Op]
    roots: list[Value]
    asked: Sequence[Value]
    wanted: set[Value] | None
    adds: bool
    by_itself: Callable[[Op], bool] = field(default=lambda _: False)
    """whether the body of an op has no part in its derivative"""
    _reached: set[Value] = field(default_factory=set)
    _beside: set[Value] = field(default_factory=set)
    """what the same op gives that is reached by another result"""
    _last: dict[Value, Op] = field(default_factory=dict)
    """the op of each value that is gone through last, of those that give it a gradient"""

    def complete_after(self) -> dict[Op, list[Value]]:
        """By the op that is gone through last, what has all of its gradient then."""
        self._look()
        found = dict[Op, list[Value]]()
        for value, op in self._last.items():
            found.setdefault(op, []).append(value)
        return found

    def _look(self) -> None:
        if not self._reached:
            self._reached.update(self.roots)
            self._back(self.ops)

    def runs(self, value: Value, *, leaf: bool) -> bool:
        """Whether it runs the node of a value.

        Raises:
            Refusal: another result of the node is reached alone.
        """
        self._look()
        if value in self._beside and value not in self._reached:
            raise Refusal(
                "a hook for several gradients (register_multi_grad_hook) on one of several results"
                " of an op, of which a backward reaches another",
                kind="hook",
                at=asking_line(),
                do="register it on what is computed of the result: y = y.view_as(y)",
            )
        if value not in self._reached or not (self.wanted is None or value in self.wanted):
            return False
        if leaf and value in self.asked and not self.adds:
            raise RuntimeError(LEAF)
        return True

    def _back(self, ops: Iterable[Op]) -> None:
        """Follow the edges of autograd's nodes from the last op to the first."""
        for op in reversed(list(ops)):
            through = isinstance(op.target, ModuleCall | GradientCall)
            unit = isinstance(op.target, FunctionCall) or op.leaf or op.writes or self.by_itself(op)
            if through or not unit:
                self._back(op.body or ())
            elif not self._reached.isdisjoint(op.outs):
                hidden = isinstance(op.target, Write) and not op.target.followed
                on = op.args[:1] if hidden else op.operands if op.origin.grad_mode else ()
                followed = [v for v in on if v.type.requires_grad]
                self._reached.update(followed)
                self._last.update(dict.fromkeys(followed, op))
                self._beside.update(op.outs)


class Edges:
    """Nodes and backwards of one run.

    Args:
        recorder: what records the program.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.tasks: list[Task] = []
        """the backwards that are running, each inside of the one before"""
        self.count = 0

    def stand_ins(self) -> dict[str, Callable[..., Any]]:
        """In the place of three functions of torch's."""
        return {"node": self.node, "task": self._task, "runs": self._runs}

    def known(self, tensor: Any) -> Value:
        """What a tensor has, or an edge is of."""
        if isinstance(tensor, GradientEdge):
            return self._value(tensor.node)
        return value_of(known_as(tensor, self.recorder), self.recorder)

    def node(self, tensor: Any) -> Any:
        """As torch's function finds the node of a tensor, or of an edge."""
        if isinstance(tensor, GradientEdge):
            return tensor.node
        if isinstance(tensor, torch.Tensor) and torch_api.node_of(tensor) is not None:
            return torch_api.node_of(tensor)  # of a level of torch.func
        recorder = self.recorder
        with recorder.unwatched:
            if recorder.aliasing.rebased:
                recorder.view_rebased()
            value = recorder.autograd.place(self.known(tensor))
        if not value.type.requires_grad:
            raise AssertionError("Expected gradient function to be set")
        gradient = Metadata(tensor.shape, tensor.dtype, tensor.device)
        return Node(value, bool(tensor.is_leaf), gradient)

    def _value(self, node: Any) -> Value:
        if isinstance(node, Node):
            return node.value
        leaf = torch_api.accumulated_by(node)
        if leaf is None:
            raise Refusal(
                "a node of autograd's from outside of the program",
                kind="autograd inside",
                at=asking_line(),
                do="compute it inside, of leaves",
            )
        with self.recorder.unwatched:
            return self.recorder.autograd.place(self.known(leaf))

    def _task(self) -> int:
        return self.tasks[-1].number if self.tasks else -1

    def _runs(self, node: Any) -> bool:
        if not self.tasks:
            raise RuntimeError("_will_engine_execute_node outside of a backward")
        leaf = node.leaf if isinstance(node, Node) else True
        return self.tasks[-1].runs(self._value(node), leaf=leaf)
