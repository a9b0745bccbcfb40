"""The state of a loaded step by role: `exp_avg of model.0.weight`, `lr of group 0`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import partial
from typing import Any, Final, NoReturn

import torch

from foretrace.errors import Refusal
from foretrace.ir.program.interface import Input
from foretrace.ir.pydata.containers import LEAF, named_leaves
from foretrace.ir.pydata.members import MISSING
from foretrace.ir.pydata.state import StateRead, tensor_of
from foretrace.ir.source.call_site import asking_line
from foretrace.ir.values.tensor_type import TensorType
from foretrace.serialization.state.state_objects import other_state, shown

FIXED: Final = "the program has the names that it has: change what they hold"

CONSTANT: Final = (
    "give one of list(loaded.python_state); the graph has all others as they were when it was"
    " captured"
)


class NamedTensors(MutableMapping[str, Any]):
    """The tensors and open numbers in a program's Python state, by their names in its signature.

    Reading returns the tensor itself. Setting copies into a tensor in place, and binds a number.

    Args:
        inputs: of the program.
        inside: ids of the tensors in objects and optimizers of the file.
    """

    def __init__(self, inputs: Iterable[Input], inside: Iterable[int]) -> None:
        known = frozenset(inside)
        self._inputs = dict[str, Input]()
        for item in inputs:
            own = item.owner is None and item.gradient_of is None and id(item.tensor) in known
            if item.read is not None or (own and item.tensor is not None):
                self._add(item)

    def _add(self, item: Input) -> None:
        """Add an input; captures may share one, or use its name for another."""
        name, count = item.role.name, 1
        while name in self._inputs and not _same(self._inputs[name], item):
            count += 1
            name = f"{item.role.name} ({count})"
        self._inputs.setdefault(name, item)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{name!r}: {shown(item)}" for name, item in self.items()) + "}"

    def __iter__(self) -> Iterator[str]:
        return iter(self._inputs)

    def __len__(self) -> int:
        return len(self._inputs)

    def __getitem__(self, name: str) -> Any:
        item = self._inputs[name]
        return item.tensor if item.read is None else _found(item.read)

    def __setitem__(self, name: str, value: Any) -> None:
        """Set one.

        Raises:
            Refusal: the program has no such name, or the value has another form.
        """
        self._setter(name, value)()

    def __delitem__(self, name: str) -> NoReturn:
        """Refuse the removal."""
        raise Refusal(f"{name} cannot be removed", kind="wrong call", at=asking_line(), do=FIXED)

    def update(self, values: Any = (), /, **more: Any) -> None:
        """Set all of them, or none where one is refused.

        Raises:
            Refusal: as for one.
        """
        pairs = values.items() if isinstance(values, Mapping) else values
        steps = [self._setter(name, each) for name, each in [*pairs, *more.items()]]
        for step in steps:
            step()

    def _setter(self, name: str, value: Any) -> Callable[[], Any]:
        """Check a value; return the function that sets it."""
        item = self._inputs.get(name)
        if item is None:
            raise other_state(f"the artifact lacks {name!r:.60}", do=CONSTANT)
        read, now = item.read, self[name]
        if read is not None and read.kind is not None:
            if type(value) is not read.kind:
                raise other_state(
                    f"{name} is {shown(value)}, and the program counts with a {read.kind.__name__}",
                    do=f"give a {read.kind.__name__}",
                )
            tensor_of(value, read.kind)
            return partial(_bind, read, value)
        if not isinstance(value, torch.Tensor) or not _fits(item.value.type, value):
            raise other_state(f"{name} is {shown(value)}, in the artifact {shown(now)}")
        if read is None or (isinstance(now, torch.Tensor) and now.shape == value.shape):
            return partial(_copy, now, value)
        return partial(_bind, read, value.detach().clone())


def _same(one: Input, other: Input) -> bool:
    """Whether both are the same tensor, or reads of the same place."""
    if one.read is None or other.read is None:
        return one.read is other.read and one.tensor is other.tensor
    places = [
        (id(each.place.holder), each.place.key, each.number, each.kind)
        for each in (one.read, other.read)
    ]
    return all(
        a is b or (not isinstance(a, torch.Tensor) and a == b) for a, b in zip(*places, strict=True)
    )


def _fits(type: TensorType, tensor: torch.Tensor) -> bool:
    """Whether a tensor has the dtype of a type, and its shape but for open sizes."""
    if tensor.dtype != type.dtype or len(tensor.shape) != len(type.shape):
        return False
    sizes = zip(type.shape, tensor.shape, strict=True)
    return all(not isinstance(size, int) or size == now for size, now in sizes)


def _copy(now: torch.Tensor, value: torch.Tensor) -> None:
    with torch.no_grad():
        now.copy_(value)


def _found(read: StateRead) -> Any:
    """The leaf that a place has, alone or in a container."""
    now = read.place.now
    if read.structure is LEAF:
        return now
    leaves, form = named_leaves(now)
    return leaves[read.number][1] if form == read.structure else MISSING


def _bind(read: StateRead, item: Any) -> None:
    """Bind a place to another leaf; other leaves of its container stay."""
    if read.structure is not LEAF:
        leaves, form = named_leaves(read.place.now)
        items = [leaf for _, leaf in leaves]
        items[read.number] = item
        item = form.build(iter(items))
    read.place.bind(item)
