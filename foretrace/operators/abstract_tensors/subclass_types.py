"""Tensors of a class that wraps others: `__tensor_flatten__` names what they hold.

What an op on one does is what the class's `__torch_dispatch__` does. To autograd, which is above
it, such a tensor has a shape, strides and a dtype as any other, and no memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Parameter

from foretrace import torch_api
from foretrace.errors import Attempt, Refusal
from foretrace.ir.program.op import Choice, Op
from foretrace.ir.program.tensor_type import TensorType
from foretrace.operators.abstract_tensors.sparse_layouts import SPARSE

DISPATCHED = Choice("wrapper", "dispatched", "the class of an operand says what the op does")
"""Of an op on such tensors; its body is what that does"""


def wraps(kind: type) -> bool:
    """Whether tensors of a class are made of those that they hold, and nothing else.

    One that gives its part of what several processes hold (`to_local`) is more than that.
    """
    if kind is torch.Tensor or kind is Parameter:  # nearly all are, and to ask takes time
        return False
    if not issubclass(kind, torch.Tensor) or hasattr(kind, "to_local"):
        return False
    both = hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")
    dispatches = getattr(kind, "__torch_dispatch__", None)
    return both and getattr(dispatches, "__func__", None) is not None


class Metadata:
    """The second thing that `__tensor_flatten__` gives; compared as its class compares it."""

    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held

    def __hash__(self) -> int:
        return hash(type(self.held))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Metadata) or type(other.held) is not type(self.held):
            return False
        with Attempt(Exception):
            return self.held is other.held or bool(self.held == other.held)
        return False


@dataclass(frozen=True, slots=True)
class Wrapping:
    """What a tensor of such a class holds, and all that it is made of again with that."""

    kind: type
    names: tuple[str, ...]
    inner: tuple[TensorType, ...]
    context: Metadata

    def __str__(self) -> str:
        return self.kind.__name__

    def make(self, inner: tuple[Any, ...], shape: Any, stride: Any) -> Any:
        """A tensor of the class that holds these.

        Raises:
            Refusal: its `__tensor_unflatten__` gives one of another class.
        """
        kind: Any = self.kind
        held = dict(zip(self.names, inner, strict=True))
        made = kind.__tensor_unflatten__(held, self.context.held, torch.Size(shape), tuple(stride))
        if type(made) is not kind:
            raise Refusal(
                f"{self}.__tensor_unflatten__ gives a {type(made).__name__}",
                kind="unsupported tensor",
                do=f"let it give a {self}, as a classmethod of cls",
            )
        return made


def wrapping_of(
    tensor: torch.Tensor, type_of: Callable[[torch.Tensor], TensorType]
) -> Wrapping | None:
    """What a tensor holds, each of a type that is asked for; None of one that holds none."""
    if not wraps(type(tensor)):
        return None
    names, context = flattened(tensor)
    inner = tuple(type_of(getattr(tensor, name)).with_grad(False) for name in names)
    return Wrapping(type(tensor), names, inner, Metadata(context))


def plain_parts(tensor: Any) -> Iterator[torch.Tensor]:
    """The tensors that have the memory of one: what it holds or stores; else itself."""
    if tensor.layout in SPARSE:
        yield from torch_api.stored_in(tensor)
        return
    if not wraps(type(tensor)):
        yield tensor
        return
    for name in flattened(tensor)[0]:
        yield from plain_parts(getattr(tensor, name))


def flattened(tensor: Any) -> tuple[tuple[str, ...], Any]:
    """What `__tensor_flatten__` gives.

    Raises:
        Refusal: that is not names of tensors, and what else the class needs.
    """
    name, attempt = type(tensor).__name__, Attempt(Exception)
    with attempt:
        names, context = tensor.__tensor_flatten__()
        if names and all(isinstance(getattr(tensor, each), torch.Tensor) for each in names):
            return tuple(names), context
    raise Refusal(
        f"{name}.__tensor_flatten__ does not give names of tensors and a context",
        kind="unsupported tensor",
        do=f"let {name}.__tensor_flatten__ give the names of its inner tensors, and what else"
        " __tensor_unflatten__ needs",
    )


def held_by(tensor: torch.Tensor) -> Wrapping | None:
    """What a tensor of a call holds; open sizes are numbers. None of one that holds none."""
    return wrapping_of(tensor, _type_now)


def _type_now(tensor: torch.Tensor) -> TensorType:
    facts = tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device
    if tensor.layout is torch.strided and (wrapped := held_by(tensor)) is not None:
        return TensorType(*facts, wrapped=wrapped)
    lazy = "conj" * tensor.is_conj() + "neg" * tensor.is_neg()
    return TensorType(*facts, tensor.storage_offset(), lazy=lazy)


def holding_alike(tensor: Any, stride: tuple[Any, ...], wrapped: Wrapping) -> Any:
    """A tensor of a class that wraps others, of which what it holds lies as told.

    Raises:
        Refusal: it holds something else.
    """
    now = held_by(tensor)
    if now == wrapped and tensor.stride() == tuple(stride):
        return tensor
    told = Holds("a tangent", wrapped)
    if now is None or (now.kind, now.names, now.context) != (
        wrapped.kind,
        wrapped.names,
        wrapped.context,
    ):
        raise _other_tangent(told(tensor))
    held = [
        _lying(getattr(tensor, name), type, told)
        for name, type in zip(wrapped.names, wrapped.inner, strict=True)
    ]
    return wrapped.make(tuple(held), tensor.shape, stride)


def _lying(tensor: torch.Tensor, type: TensorType, told: "Holds") -> torch.Tensor:
    if tuple(tensor.shape) != type.shape or tensor.dtype != type.dtype:
        raise _other_tangent(told(tensor))
    if type.wrapped is not None:
        laid: torch.Tensor = holding_alike(tensor, type.stride, type.wrapped)
        return laid
    if tensor.stride() == type.stride:
        return tensor
    return tensor.new_empty_strided(tensor.shape, type.stride).copy_(tensor)


def _other_tangent(what: str) -> Refusal:
    return Refusal(
        f"a gradient arrives that no backward was made for: {what}",
        kind="wrong tangents",
        do="use backend='eager', which calls the class itself",
    )


@dataclass(frozen=True, slots=True)
class Holds:
    """Whether a tensor of a call holds what that of the capture held; calls give the difference."""

    name: str
    wrapped: Wrapping | None

    def __call__(self, tensor: Any) -> str:
        """In words; empty if there is none."""
        try:
            now = held_by(tensor)
        except Refusal as refusal:
            return refusal.what
        return "" if now == self.wrapped else self._told(now)

    def _told(self, now: Wrapping | None) -> str:
        then = self.wrapped
        if now is None or then is None or now.kind is not then.kind:
            return f"{self.name} is a {now or 'plain tensor'}, in the capture a {then}"
        if (now.names, now.context) != (then.names, then.context):
            return (
                f"the metadata of {self.name} is {now.context.held!r:.60},"
                f" in the capture {then.context.held!r:.60}"
            )
        pairs = zip(then.names, now.inner, then.inner, strict=True)
        name, found, before = next((n, a, b) for n, a, b in pairs if a != b)
        return f"{self.name}.{name} is {_lies(found)}, in the capture {_lies(before)}"


def _lies(type: TensorType) -> str:
    return f"{type!r} with strides {list(type.stride)} at {type.offset}"


class _Called(torch.nn.Module):
    """The call of such a target, for a graph."""

    def __init__(self, target: Callable[..., Any]) -> None:
        super().__init__()
        self.target = target

    def forward(self, *args: Any) -> Any:
        """What the target gives."""
        return self.target(*args)


class Unwrap:
    """Target that gives what a tensor holds; no gradient goes through it."""

    __name__ = "unwrap"

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def __call__(self, tensor: Any) -> tuple[Any, ...]:
        """The inner tensors."""
        return tuple([getattr(tensor, name) for name in self.names])

    def as_module(self) -> torch.nn.Module:
        """The call as a module."""
        return _Called(self)


class Wrap:
    """Target that makes a tensor of those that it is to hold."""

    __name__ = "wrap"

    def __init__(self, type: TensorType) -> None:
        self.type = type

    def __call__(self, *inner: Any) -> Any:
        """The tensor."""
        return self.type.wrapped.make(inner, self.type.shape, self.type.stride)

    def as_module(self) -> torch.nn.Module:
        """The call as a module."""
        return _Called(self)


def dispatched(op: Op) -> bool:
    """Whether an op is one on tensors that wrap others, and autograd is above what it is made of.

    A composite is not: eager takes it apart before the class is asked.
    """
    return op.choice is DISPATCHED
