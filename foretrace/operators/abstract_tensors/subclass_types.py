"""Wrapper subclasses as a part of a type: the inner tensors that `__tensor_flatten__` names.

The class's `__torch_dispatch__` says what an op does. To autograd, which is above it, such a tensor
has a shape, strides and a dtype, and no memory.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import Parameter

from foretrace import torch_api
from foretrace.errors import Attempt, Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import Choice
from foretrace.ir.values.tensor_type import TensorType
from foretrace.operators.abstract_tensors.sparse_layouts import SPARSE

DISPATCHED = Choice("wrapper", "dispatched", "the class of an operand says what the op does")
"""The choice of an op on wrapper subclasses; its body is what `__torch_dispatch__` runs"""


def wraps(kind: type) -> bool:
    """Whether tensors of a class consist of their inner tensors and nothing else.

    A class with `to_local` has a part of what several processes have, too.
    """
    if kind is torch.Tensor or kind is Parameter:  # the common case, fast
        return False
    if not issubclass(kind, torch.Tensor) or hasattr(kind, "to_local"):
        return False
    both = hasattr(kind, "__tensor_flatten__") and hasattr(kind, "__tensor_unflatten__")
    dispatches = getattr(kind, "__torch_dispatch__", None)
    return both and getattr(dispatches, "__func__", None) is not None


class Metadata:
    """The context that `__tensor_flatten__` returns; compared by its own `==`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return hash(type(self.value))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Metadata) or type(other.value) is not type(self.value):
            return False
        with Attempt(Exception):
            return self.value is other.value or bool(self.value == other.value)
        return False


@dataclass(frozen=True, slots=True)
class Wrapping:
    """The class of a wrapper, the types of its inner tensors, and its metadata.

    `followed`: which of them require grad, and whether each is a leaf. The class's
    `__torch_dispatch__` is below autograd, so their types do not have it.
    """

    kind: type
    names: tuple[str, ...]
    inner: tuple[TensorType, ...]
    context: Metadata
    followed: tuple[tuple[str, bool], ...] = ()

    def __str__(self) -> str:
        return self.kind.__name__

    @property
    def form(self) -> tuple[type, tuple[str, ...], Metadata]:
        """All but the types of the inner tensors."""
        return self.kind, self.names, self.context

    @property
    def from_start(self) -> "Wrapping":
        """The same, with what it holds at the start of memory of its own, as new content lies."""
        inner = (
            each.but(offset=0, wrapped=each.wrapped and each.wrapped.from_start)
            for each in self.inner
        )
        return replace(self, inner=tuple(inner))

    def make(self, inner: tuple[Any, ...], shape: Any, stride: Any) -> Any:
        """A tensor of the class with these inner tensors.

        Raises:
            Refusal: its `__tensor_unflatten__` returns one of another class.
        """
        kind: Any = self.kind
        named, size = dict(zip(self.names, inner, strict=True)), torch.Size(shape)
        new = kind.__tensor_unflatten__(named, self.context.value, size, tuple(stride))
        if type(new) is not kind:
            raise Refusal(
                f"{self}.__tensor_unflatten__ gives a {type(new).__name__}",
                kind="unsupported tensor",
                do=f"let it give a {self}, as a classmethod of cls",
            )
        return new


def wrapping_of(
    tensor: torch.Tensor, type_of: Callable[[torch.Tensor], TensorType]
) -> Wrapping | None:
    """The wrapping of a tensor, its inner types by `type_of`; None of a tensor that wraps none."""
    if not wraps(type(tensor)):
        return None
    names, context = flattened(tensor)
    parts = [getattr(tensor, name) for name in names]
    inner = tuple(type_of(part).with_grad(False) for part in parts)
    named = zip(names, parts, strict=True)
    followed = tuple((name, part.is_leaf) for name, part in named if part.requires_grad)
    return Wrapping(type(tensor), names, inner, Metadata(context), followed)


def plain_parts(tensor: Any) -> Iterator[torch.Tensor]:
    """The plain tensors with the memory of a tensor: inner or stored ones, or itself."""
    if tensor.layout in SPARSE:
        yield from torch_api.stored_in(tensor)
        return
    if not wraps(type(tensor)):
        yield tensor
        return
    for name in flattened(tensor)[0]:
        yield from plain_parts(getattr(tensor, name))


def flattened(tensor: Any) -> tuple[tuple[str, ...], Any]:
    """The names and the context that `__tensor_flatten__` returns.

    Raises:
        Refusal: it returns something else.
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


def wrapping_now(tensor: torch.Tensor) -> Wrapping | None:
    """The wrapping of a tensor of a call, with numbers for sizes; None of one that wraps none."""
    return wrapping_of(tensor, _type_now)


def _type_now(tensor: torch.Tensor) -> TensorType:
    facts = tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device
    if tensor.layout is torch.strided and (wrapped := wrapping_now(tensor)) is not None:
        return TensorType(*facts, wrapped=wrapped)
    lazy = "conj" * tensor.is_conj() + "neg" * tensor.is_neg()
    return TensorType(*facts, tensor.storage_offset(), lazy=lazy)


def with_inner_layouts(tensor: Any, stride: tuple[Any, ...], wrapped: Wrapping) -> Any:
    """A wrapper tensor with the layouts of a wrapping: itself, or a copy.

    Raises:
        Refusal: class, metadata, or an inner shape or dtype differ.
    """
    now = wrapping_now(tensor)
    if now == wrapped and tensor.stride() == tuple(stride):
        return tensor
    holds = Holds("a tangent", wrapped)
    if now is None or now.form != wrapped.form:
        raise _other_tangent(holds(tensor))
    pairs = zip(wrapped.names, wrapped.inner, strict=True)
    inner = tuple([_laid_out(getattr(tensor, name), type, holds) for name, type in pairs])
    return wrapped.make(inner, tensor.shape, stride)


def _laid_out(tensor: torch.Tensor, type: TensorType, holds: "Holds") -> torch.Tensor:
    if tuple(tensor.shape) != type.shape or tensor.dtype != type.dtype:
        raise _other_tangent(holds(tensor))
    if type.wrapped is not None:
        laid: torch.Tensor = with_inner_layouts(tensor, type.stride, type.wrapped)
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
    """Compares the wrapping of a call's tensor with that of the capture, `wrapped`."""

    name: str
    wrapped: Wrapping | None

    def __call__(self, tensor: Any) -> str:
        """The difference in words; empty if there is none."""
        try:
            now = wrapping_now(tensor)
        except Refusal as refusal:
            return refusal.what
        return "" if now == self.wrapped else self._difference(now)

    def _difference(self, now: Wrapping | None) -> str:
        then = self.wrapped
        if now is None or then is None or now.kind is not then.kind:
            return f"{self.name} is a {now or 'plain tensor'}, in the capture a {then}"
        if now.form != then.form:
            return (
                f"the metadata of {self.name} is {now.context.value!r:.60},"
                f" in the capture {then.context.value!r:.60}"
            )
        if now.followed != then.followed:
            return f"other tensors that {self.name} holds require grad than in the capture"
        pairs = zip(then.names, now.inner, then.inner, strict=True)
        name, found, before = next((n, a, b) for n, a, b in pairs if a != b)
        return f"{self.name}.{name} is {_described(found)}, in the capture {_described(before)}"


def _described(type: TensorType) -> str:
    return f"{type!r} with strides {list(type.stride)} at {type.offset}"


class _Called(torch_api.OfGraph):
    """The call of a target as a module."""

    def __init__(self, target: Callable[..., Any]) -> None:
        super().__init__()
        self.target = target

    def forward(self, *args: Any) -> Any:
        """Call the target."""
        return self.target(*args)


class Unwrap:
    """Target that returns the inner tensors of a wrapper; no gradient goes through it."""

    __name__ = "unwrap"

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def __call__(self, tensor: Any) -> tuple[Any, ...]:
        """The inner tensors; of a leaf among them, its memory alone."""
        parts = [getattr(tensor, name) for name in self.names]
        return tuple([part.detach() if part.requires_grad else part for part in parts])

    def as_module(self) -> torch.nn.Module:
        """The call as a module."""
        return _Called(self)


class Wrap:
    """Target that wraps inner tensors."""

    __name__ = "wrap"

    def __init__(self, type: TensorType) -> None:
        self.type = type

    def __call__(self, *inner: Any) -> Any:
        """The wrapper tensor."""
        return self.type.wrapped.make(inner, self.type.shape, self.type.stride)

    def as_module(self) -> torch.nn.Module:
        """The call as a module."""
        return _Called(self)


def dispatched(op: Op) -> bool:
    """Whether an op is one on wrapper subclasses, so that autograd is above its body.

    A composite is not: eager decomposes it before it calls the class.
    """
    return op.choice is DISPATCHED
