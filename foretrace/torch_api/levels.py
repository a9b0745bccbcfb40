"""Levels of torch.func transforms and of forward-mode AD."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from graphlib import TopologicalSorter
from heapq import heappop, heappush
from itertools import chain
from typing import Any, NamedTuple

import torch

# The C bindings of functorch and of forward AD; each name is used in one function below.
from torch import _C

# The level of `torch.func.jvp`, and where those of dual numbers are left.
# Which level of dual numbers is on; there is no public way to ask.
from torch.autograd import forward_ad

from foretrace.torch_api.clean_room import plain_torch
from foretrace.torch_api.dispatch import functorch_active
from foretrace.torch_api.tensors import node_of


def followed_by_level(tensor: torch.Tensor) -> bool:
    """Whether a level of `torch.func.grad` or its like, over or not, has a history of the tensor.

    What `torch.func.vjp` gives is called after its level: its tensors are still those of it.
    """
    while _C._functorch.is_batchedtensor(tensor):
        tensor = _C._functorch.get_unwrapped(tensor)
    return bool(_C._functorch.is_gradtrackingtensor(tensor))


# Whether a tensor is one of a level of `torch.func`, over or not, which holds another.
of_a_level: Callable[[torch.Tensor], bool] = _C._functorch.is_functorch_wrapped_tensor
# Whether a tensor is one of torch's first `vmap`, which `torch.autograd.functional` has.
of_old_vmap: Callable[[torch.Tensor], bool] = _C._functorch.is_legacy_batchedtensor
# Makes one of a tensor, as `_vmap` does (2.13).
add_batch_dim: Callable[..., torch.Tensor] = torch._add_batch_dim
# Makes the tensor of one again.
remove_batch_dim: Callable[..., torch.Tensor] = torch._remove_batch_dim


def first_vmap() -> Callable[..., Any]:
    """By which `torch.autograd.grad` maps its backward over a batch of gradients."""
    found: Callable[..., Any] = vars(torch._vmap_internals)["_vmap"]
    return found


@contextmanager
def first_vmap_level() -> Iterator[int]:
    """One more level of it is on, as `_vmap` enters one."""
    try:
        yield _C._vmapmode_increment_nesting()
    finally:
        _C._vmapmode_decrement_nesting()


# What it holds.
under_level: Callable[[torch.Tensor], torch.Tensor] = _C._functorch.get_unwrapped


def mapped_dim(tensor: torch.Tensor) -> int | None:
    """Over which dimension of what it holds `torch.vmap` maps; None if it is of another level."""
    dim: int = _C._functorch.maybe_get_bdim(tensor)
    return dim if _C._functorch.is_batchedtensor(tensor) else None


# How many transforms of `torch.func` are running.
levels: Callable[[], int] = _C._functorch.get_dynamic_layer_stack_depth


def leave_levels(count: int) -> None:
    """Leave transforms that were entered and never left, until `count` are left."""
    _C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(count)


def dual_level() -> int:
    """The level of `torch.autograd.forward_ad` that is on; -1 if none is."""
    level: int = forward_ad._current_level
    return level


def has_tangent(tensor: torch.Tensor) -> bool:
    """Whether a tensor of the caller's is a dual number of the level that is on."""
    if dual_level() < 0:
        return False
    with plain_torch():
        return torch._unpack_dual(tensor, level=dual_level())[1] is not None


def transformed() -> bool:
    """Whether a transform of `torch.func`, or a level of dual numbers, is on."""
    return functorch_active() or dual_level() >= 0


def leave_dual_levels(level: int) -> None:
    """Leave levels of it that were entered and never left, until this one is on."""
    while dual_level() > level:
        forward_ad.exit_dual_level()


# ---- gradients of a level, on a device that is not here ------------------------------------------


class Edge(NamedTuple):
    """An input of a node of autograd's. In the place of a leaf's node is the id of the leaf."""

    node: Any
    at: int
    type: Any
    """the shape, dtype and device of gradients there; None of a leaf that is a root"""

    @classmethod
    def into(cls, node: Any, at: int) -> "Edge":
        """An input of a node; the node of a leaf alone has a variable."""
        leaf = getattr(node, "variable", None)
        return cls(node if leaf is None else id(leaf), at, node._input_metadata[at])

    @classmethod
    def of(cls, tensor: torch.Tensor) -> "Edge":
        """Where the gradient of a tensor arrives."""
        node = node_of(tensor)
        return cls(id(tensor), 0, None) if node is None else cls.into(node, tensor.output_nr)


def level_gradients(
    roots: Sequence[torch.Tensor], gradients: Sequence[Any], keep: bool, again: bool,
    inputs: Sequence[torch.Tensor], *_: object, **__: object,
) -> tuple[Any, ...]:  # fmt: skip
    """What torch's engine gives for tensors of a level of `torch.func`, on whatever device.

    The engine adds up gradients on the current stream of their device, of which a build without the
    device has none. The nodes are torch's. The order in which they run, and what they receive, is
    that of torch/csrc/autograd/engine.cpp (2.13). Nothing is freed, so `keep` changes nothing.

    `again`: whether what it gives has a history.
    """
    begin, asked = list(map(Edge.of, roots)), list(map(Edge.of, inputs))
    with torch.set_grad_enabled(again):
        sums = _Walk(begin, {edge.node for edge in asked}).run(begin, gradients)
    return tuple(sums[edge.node].get(edge.at) for edge in asked)


class _Walk:
    """From roots to what is asked for; `nexts`: by node, its edges, None for those that lead away.

    `waits`: by node, how many edges lead there of nodes that have not run.
    """

    def __init__(self, begin: list[Edge], asked: set[Any]) -> None:
        self.nexts: dict[Any, list[Edge | None]] = {}
        self.sums: dict[Any, dict[int, Any]] = defaultdict(dict)
        self.ready: list[tuple[int, int, Any]] = []
        self._reach([edge.node for edge in begin])
        self._prune(set(asked))
        edges = chain.from_iterable(self.nexts.values())
        self.waits = Counter(edge.node for edge in edges if edge)

    def _reach(self, nodes: list[Any]) -> None:
        while nodes:
            node = nodes.pop()
            if node not in self.nexts:
                edges = () if isinstance(node, int) else node.next_functions
                self.nexts[node] = [Edge.into(*edge) if edge[0] else None for edge in edges]
                nodes += [edge.node for edge in self.nexts[node] if edge]

    def _prune(self, leads: set[Any]) -> None:
        before = {node: [edge.node for edge in to if edge] for node, to in self.nexts.items()}
        for node in TopologicalSorter(before).static_order():
            to = [edge if edge and edge.node in leads else None for edge in self.nexts[node]]
            self.nexts[node] = to if any(to) else []
            leads |= {node} if any(to) else set()

    def run(self, begin: list[Edge], gradients: Sequence[Any]) -> dict[Any, dict[int, Any]]:
        """The sums of the gradients that arrive, by node and input."""
        self._arrive(begin, gradients)
        for node in dict.fromkeys(edge.node for edge in begin):
            self._run_later(node)
        while self.ready:
            node = heappop(self.ready)[2]
            self._arrive(self.nexts[node], _run(node, self.sums[node]))
            for edge in filter(None, self.nexts[node]):
                self.waits[edge.node] -= 1
                self._run_later(edge.node)
        return self.sums

    def _run_later(self, node: Any) -> None:
        if self.nexts[node] and not self.waits[node]:
            heappush(self.ready, (-node._sequence_nr(), id(node), node))

    def _arrive(self, edges: Sequence[Edge | None], gradients: Sequence[Any]) -> None:
        pairs = [(e, g) for e, g in zip(edges, gradients, strict=False) if e and g is not None]
        for edge, gradient in [(edge, _fitted(edge.type, gradient)) for edge, gradient in pairs]:
            known = self.sums[edge.node].get(edge.at)
            self.sums[edge.node][edge.at] = gradient if known is None else known + gradient


def _fitted(kind: Any, gradient: torch.Tensor) -> torch.Tensor:
    """A gradient as a node takes it: `validate_outputs` in engine.cpp."""
    if kind is None:
        return gradient
    if (*gradient.shape,) != (*kind.shape,):
        gradient = gradient.sum_to_size(kind.shape)
    if gradient.dtype != kind.dtype:
        gradient = gradient.to(kind.dtype)
    if gradient.device != kind.device and gradient.dim() == 0:
        gradient = gradient.to(kind.device)
    return gradient


def note_materialized(ctx: Any, value: bool) -> None:
    """As `ctx.set_materialize_grads`, whose flag in C++ cannot be read."""
    ctx.materialize_grads = ctx.ft_materializes = value


def _run(node: Any, sums: dict[int, Any]) -> Sequence[Any]:
    """What a node gives. One of Python's gives as many as its Function takes, tensors or not."""
    types = node._input_metadata
    arrived = [sums.get(at) for at in range(len(types))]
    of_python = isinstance(node, _C._FunctionBase)
    if of_python and getattr(node, "ft_materializes", True):
        arrived = [_zeros(types[at]) if one is None else one for at, one in enumerate(arrived)]
    found = node.apply(*arrived) if of_python else node(*arrived)
    found = found if isinstance(found, tuple) else (found,)
    if not of_python:
        return found
    pairs = zip(found, node.needs_input_grad, strict=False)
    followed = iter([one for one, needed in pairs if needed])
    return [next(followed) if edge[0] is not None else None for edge in node.next_functions]


def _zeros(kind: Any) -> torch.Tensor:
    options = {"dtype": kind.dtype, "layout": torch.strided, "device": kind.device}
    zeros: torch.Tensor = torch.ops.aten.zeros.default([*kind.shape], **options)
    return zeros
