"""How a tensor differs from the one that a capture saw, in words."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from foretrace import torch_api
from foretrace.ir.pydata.members import MISSING
from foretrace.ir.pydata.plain_data import plain, same, snapshot
from foretrace.ir.values.tensor_type import TensorType
from foretrace.operators.abstract_tensors.sparse_layouts import layout_of, sparse_of
from foretrace.operators.abstract_tensors.subclass_types import plain_parts, wraps
from foretrace.runtime.guards.guard import Shown, differs, shown
from foretrace.session.run.aliased_inputs import overlapping

SPARSE = "number of sparse dimensions"
"""The name of a fact; for a compressed layout its value is the name of the layout"""
FACTS: Mapping[str, Callable[[torch.Tensor], Any]] = MappingProxyType(
    {
        "class": lambda tensor: type(tensor).__name__,
        "dtype": lambda tensor: tensor.dtype,
        "device": lambda tensor: tensor.device,
        "requires_grad": lambda tensor: tensor.requires_grad,
        "number of dimensions": lambda tensor: tensor.dim(),
        "layout": lambda tensor: tensor.layout,
        "conjugate bit": lambda tensor: tensor.is_conj(),
        "negative bit": lambda tensor: tensor.is_neg(),
        "inference mode": lambda tensor: tensor.is_inference(),
        SPARSE: sparse_of,
        "wrapping class": lambda tensor: type(tensor).__name__ if wraps(type(tensor)) else None,
    }
)
"""The properties of a tensor that are compared, beside its sizes and strides."""


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """The properties of a tensor in the capture, to say how another differs."""

    name: str
    facts: tuple[tuple[str, Any], ...]
    shape: tuple[int | None, ...]
    """None for a size that is open"""
    stride: tuple[int | None, ...] | None
    """None for one that does not matter"""

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor, free: frozenset[int]) -> "TensorFacts":
        """All that torch's own check looks at."""
        shape = tuple(None if d in free else n for d, n in enumerate(tensor.shape))
        facts = tuple((what, look(tensor)) for what, look in FACTS.items())
        strided = not free and tensor.layout is torch.strided
        return cls(name, facts, shape, tensor.stride() if strided else None)

    @classmethod
    def of_type(cls, name: str, type: TensorType) -> "TensorFacts":
        """What a graph for the type relies on: not on strides of sizes 0 and 1."""
        facts = (
            ("dtype", type.dtype),
            ("device", type.device),
            ("requires_grad", type.requires_grad),
            ("number of dimensions", len(type.shape)),
            ("layout", layout_of(type.sparse)),
            ("conjugate bit", "conj" in type.lazy),
            ("negative bit", "neg" in type.lazy),
            ("wrapping class", str(type.wrapped) if type.wrapped else None),
            (SPARSE, type.sparse),
        )
        shape = tuple(size if isinstance(size, int) else None for size in type.shape)
        free = type.symbols or type.sparse or 0 in shape
        stride = None if free else _strides(type)
        return cls(name, facts, shape, stride)

    def difference(self, now: Any) -> str:
        """What differs, in words; empty if nothing does."""
        if not isinstance(now, torch.Tensor):
            return f"{self.name} is {shown(now)}, no tensor"
        for what, before in self.facts:
            found = FACTS[what](now)
            if before != found:
                return f"{self.name} has {what} {found}, the capture has {before}"
        for dim, (size, found) in enumerate(zip(self.shape, now.shape, strict=True)):
            if size is not None and size != found:
                return f"size {dim} of {self.name} is {found}, the capture has {size}"
        pairs = zip(self.stride, now.stride(), strict=False) if self.stride else ()
        if any(before is not None and before != found for before, found in pairs):
            return f"{self.name} has strides {now.stride()}, the capture has {self.stride}"
        return ""


class Beside:
    """A tensor that the program has at hand, and that is no input of its graph.

    Of its attributes those are compared that the program's code mentions.
    """

    def __init__(self, name: str, tensor: torch.Tensor, mentioned: frozenset[str]) -> None:
        with torch_api.no_torch_function():  # a class of the user's may answer
            self.facts = TensorFacts.of(name, tensor, frozenset())
        self.mentioned = mentioned
        self.attributes = self._attributes(tensor)

    def _attributes(self, tensor: torch.Tensor) -> dict[str, object]:
        return {name: snapshot(item) if plain(item) else item
                for name, item in vars(tensor).items() if name in self.mentioned}  # fmt: skip

    def __call__(self, tensor: torch.Tensor) -> str:
        """What differs, in words; empty if nothing does."""
        with torch_api.no_torch_function():
            found = self.facts.difference(tensor)
        if found:
            return found
        now, before = self._attributes(tensor), self.attributes
        same_names = now.keys() == before.keys()
        if same_names and all(_same(now[name], item) for name, item in before.items()):
            return ""
        return f"{self.facts.name} has other attributes"


@dataclass(frozen=True, slots=True)
class Absent:
    """Attributes of Python's that a tensor lacked."""

    name: str
    """the tensor's"""

    def __call__(self, names: frozenset[str], space: dict[str, object]) -> str:
        """The first of them that it has now, in words."""
        first = min(names.intersection(space))
        return differs(f"{self.name}.{first}", Shown(MISSING), space[first])


def _same(now: object, before: object) -> bool:
    return now is before or (plain(now) and plain(before) and same(now, before))


def _strides(type: TensorType) -> tuple[int | None, ...]:
    pairs = zip(type.shape, type.stride, strict=True)
    return tuple(int(stride) if size != 1 else None for size, stride in pairs)


def difference(all_facts: Sequence[TensorFacts], *tensors: Any) -> str:
    """The first difference that the C++ check of all tensors found."""
    for facts, tensor in zip(all_facts, tensors, strict=True):
        if found := facts.difference(tensor):
            return found
    same = one_tensor([facts.name for facts in all_facts], *tensors)
    return same or "torch's own check of the tensors failed (modes, or keys of dispatch)"


def one_tensor(names: Sequence[str], *tensors: Any) -> str:
    """Which two of some tensors are one; empty if none are."""
    seen: dict[int, str] = {}
    for name, tensor in zip(names, tensors, strict=True):
        if id(tensor) in seen:
            return f"{seen[id(tensor)]} and {name} are one tensor now"
        seen[id(tensor)] = name
    return ""


OF_TORCH = frozenset({torch.Tensor, torch.nn.Parameter})
"""Classes of tensors that hold no others"""


def disjoint(written: Sequence[torch.Tensor], read: Sequence[torch.Tensor]) -> bool:
    """Whether none of `written` shares memory with another tensor of either."""
    if OF_TORCH.issuperset(map(type, (*written, *read))):
        places = {tensor.untyped_storage().data_ptr(): tensor for tensor in written}
        if len(places) == len(written) and 0 not in places:
            shared = (places.get(t.untyped_storage().data_ptr(), t) is not t for t in read)
            if not any(shared):
                return True
    parts = {
        (id(t), place): part
        for t in {id(t): t for t in (*written, *read)}.values()
        for place, part in enumerate(plain_parts(t))
    }
    memories = dict[int, list[tuple[tuple[int, int], torch.Tensor]]]()
    for key, part in parts.items():
        memories.setdefault(part.untyped_storage().data_ptr(), []).append((key, part))
    mine = {id(t) for t in written}
    return all(
        mine.isdisjoint((one, other))
        for memory, tensors in memories.items()
        if memory
        for ((one, _), _), ((other, _), _) in overlapping(tensors)
    )


class OwnMemory:
    """Whether no tensor that is written shares memory with one that the program keeps.

    Where those begin is looked at in each call, and sorted when that has changed.
    """

    def __init__(self) -> None:
        self._at: tuple[list[int], list[int]] = [], []
        """where the tensors began at the last call, in their order and in order of memory"""

    def separate(self, written: Sequence[torch.Tensor], kept: Sequence[torch.Tensor]) -> bool:
        """Whether it is so; tensors that begin in no memory of the others are not looked at."""
        begins, ascending = self._at
        now = [*map(torch.Tensor.data_ptr, kept)]
        if now != begins:
            ascending = sorted(now)
            self._at = now, ascending
        for tensor in written:
            memory = tensor.untyped_storage()
            first, size = memory.data_ptr(), memory.nbytes()
            begin = bisect_left(ascending, first)
            if begin < len(ascending) and ascending[begin] < first + max(size, 1):
                return disjoint(written, kept)
        return True


def hooks_now(tensor: torch.Tensor) -> tuple[Any, ...]:
    """The hooks of a tensor: on its gradient, and after one is accumulated."""
    return tuple([tuple(table.values()) if table else () for table in torch_api.hooks_of(tensor)])


class Elsewhere:
    """Whether tensors are also in places that must not change, or among other inputs."""

    def __init__(self, objects: Iterable[object]) -> None:
        self.before = {id(each): each for each in objects if isinstance(each, torch.Tensor)}

    def any(self, tensors: Sequence[object], inputs: Sequence[object]) -> bool:
        """Whether one of them is; `inputs` are all inputs of the graph, these among them."""
        found = [*map(id, inputs)]
        return any(id(each) in self.before or found.count(id(each)) > 1 for each in tensors)
