"""The state of a loaded step by role: `exp_avg of model.0.weight`, `lr of group 0`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from functools import partial
from typing import Any, Final, NoReturn

import torch

from foretrace.errors import Refusal
from foretrace.ir.program.recording import Input
from foretrace.ir.program.tensor_type import TensorType
from foretrace.ir.pydata.containers import LEAF, take_apart
from foretrace.ir.pydata.members import MISSING
from foretrace.ir.pydata.state import StateRead, tensor_of
from foretrace.ir.source.call_site import asking_line
from foretrace.serialization.state.state_objects import other_state, shown

FIXED: Final = "the program has the names that it has: change what they hold"

CONSTANT: Final = (
    "give one of list(loaded.python_state); the graph has all others as they were when it was"
    " captured"
)


class NamedTensors(MutableMapping[str, Any]):
    """Tensors and open numbers that a program goes on from, as its signature names them.

    Tensors are given as they are, and are written to in place; numbers are bound.

    Args:
        inputs: of the program.
        inside: ids of tensors that objects and optimizers of the file hold.
    """

    def __init__(self, inputs: Iterable[Input], inside: Iterable[int]) -> None:
        known = frozenset(inside)
        self._inputs = dict[str, Input]()
        for item in inputs:
            own = item.owner is None and item.gradient_of is None and id(item.tensor) in known
            if item.read is not None or (own and item.tensor is not None):
                self._add(item)

    def _add(self, item: Input) -> None:
        """One more; several captures may name the same, or others alike."""
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

    def __setitem__(self, name: str, given: Any) -> None:
        """Let the program go on from this.

        Raises:
            Refusal: the program has no such name, or goes on from what is of another form there.
        """
        self._checked(name, given)()

    def __delitem__(self, name: str) -> NoReturn:
        """Refuse.

        Raises:
            Refusal: always.
        """
        raise Refusal(f"{name} cannot be removed", kind="wrong call", at=asking_line(), do=FIXED)

    def update(self, given: Any = (), /, **more: Any) -> None:
        """Take all that is given, or nothing of it.

        Raises:
            Refusal: as for one.
        """
        pairs = given.items() if isinstance(given, Mapping) else given
        steps = [self._checked(name, each) for name, each in [*pairs, *more.items()]]
        for step in steps:
            step()

    def _checked(self, name: str, given: Any) -> Callable[[], Any]:
        """What taking one comes to."""
        item = self._inputs.get(name)
        if item is None:
            raise other_state(f"the artifact lacks {name!r:.60}", do=CONSTANT)
        read, now = item.read, self[name]
        if read is not None and read.kind is not None:
            if type(given) is not read.kind:
                raise other_state(
                    f"{name} is {shown(given)}, and the program counts with a {read.kind.__name__}",
                    do=f"give a {read.kind.__name__}",
                )
            tensor_of(given, read.kind)
            return partial(_bind, read, given)
        if not isinstance(given, torch.Tensor) or not _fits(item.value.type, given):
            raise other_state(f"{name} is {shown(given)}, in the artifact {shown(now)}")
        if read is None or (isinstance(now, torch.Tensor) and now.shape == given.shape):
            return partial(_copy, now, given)
        return partial(_bind, read, given.detach().clone())


def _same(one: Input, other: Input) -> bool:
    """Whether both are the same tensor, or read at the same place."""
    if one.read is None or other.read is None:
        return one.read is other.read and one.tensor is other.tensor
    places = [
        (id(each.place.holder), each.place.key, each.number, each.kind)
        for each in (one.read, other.read)
    ]
    return all(
        a is b or (not isinstance(a, torch.Tensor) and a == b) for a, b in zip(*places, strict=True)
    )


def _fits(there: TensorType, given: torch.Tensor) -> bool:
    """Whether it is of that dtype, and of that shape but for open sizes."""
    if given.dtype != there.dtype or len(given.shape) != len(there.shape):
        return False
    sizes = zip(there.shape, given.shape, strict=True)
    return all(type(size) is not int or size == now for size, now in sizes)


def _copy(now: torch.Tensor, given: torch.Tensor) -> None:
    with torch.no_grad():
        now.copy_(given)


def _found(read: StateRead) -> Any:
    """What is at a place, in a container or alone."""
    now = read.place.now
    if read.structure is LEAF:
        return now
    leaves, form = take_apart(now)
    return leaves[read.number][1] if form == read.structure else MISSING


def _bind(read: StateRead, item: Any) -> None:
    """Let the place hold another, and all else that it held."""
    if read.structure is not LEAF:
        leaves, form = take_apart(read.place.now)
        held = [leaf for _, leaf in leaves]
        held[read.number] = item
        item = form.build(iter(held))
    read.place.bind(item)
