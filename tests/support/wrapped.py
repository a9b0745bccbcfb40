"""Tensor classes that wrap others, and how two of their tensors are compared."""

from collections.abc import Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.testing._internal.two_tensor import TwoTensor

from tests.support.bits import tensor_differences

aten = torch.ops.aten
SAME = (aten.detach.default, aten.clone.default, aten.alias.default)


class Int8(Tensor):
    """A weight in eight bits with a scale for each row, as torchao has it; `mm` computes in f32."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, rows: Tensor, _scale: Tensor, turned: bool) -> Self:
        shape, stride = (rows.shape, rows.stride())
        if turned:
            shape, stride = shape[::-1], stride[::-1]
        return torch.Tensor._make_wrapper_subclass(cls, shape, strides=stride, dtype=torch.float32)

    def __init__(self, rows: Tensor, scale: Tensor, turned: bool) -> None:
        self.rows, self.scale, self.turned = rows, scale, turned

    @classmethod
    def of(cls, weight: Tensor) -> "Int8":
        scale = weight.abs().amax(1, keepdim=True) / 127
        return cls((weight / scale).round().to(torch.int8), scale, False)

    def dequantized(self) -> Tensor:
        whole = self.rows.to(torch.float32) * self.scale
        return whole.t() if self.turned else whole

    def __tensor_flatten__(self) -> Any:
        return ["rows", "scale"], self.turned

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, turned: Any, _size: Any, _stride: Any) -> "Int8":
        return cls(inner["rows"], inner["scale"], turned)

    @classmethod
    def __torch_dispatch__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in SAME:
            (w,) = args
            return cls(func(w.rows), func(w.scale), w.turned)
        if func is aten.t.default:
            (w,) = args
            return cls(w.rows, w.scale, not w.turned)
        if func in (aten.mm.default, aten.addmm.default):
            plain = [each.dequantized() if isinstance(each, cls) else each for each in args]
            return func(*plain, **(kwargs or {}))
        raise NotImplementedError(f"Int8: {func}")


class Scaled(Function):
    """Linear over integers: the scale comes after."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Int8, b: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w.rows.to(x.dtype).t() * w.scale.t() + b

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (x, w), (g,) = ctx.saved_tensors, gradients
        return (g * w.scale.t()) @ w.rows.to(g.dtype), g.t() @ x, g.sum(0)


class ByFunction(Int8):
    """A weight with a `linear` of its own, which is an autograd.Function."""

    @classmethod
    def __torch_function__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.linear:
            return Scaled.apply(*args, **(kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Masked(Tensor):
    """A tensor of which some elements are not there."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor, _mask: Tensor) -> Self:
        return torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), dtype=held.dtype
        )

    def __init__(self, held: Tensor, mask: Tensor) -> None:
        self.held, self.mask = held, mask

    def __tensor_flatten__(self) -> Any:
        return ["held", "mask"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, _none: Any, _size: Any, _stride: Any) -> "Masked":
        return cls(inner["held"], inner["mask"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.sum.default:
            (x,) = args
            return torch.where(x.mask, x.held, 0).sum()
        masks = [each.mask for each in args if isinstance(each, cls)]
        plain = [each.held if isinstance(each, cls) else each for each in args]
        mask = masks[0] if len(masks) == 1 else masks[0] & masks[1]
        return cls(func(*plain, **(kwargs or {})), mask)


def two(*shape: int, grad: bool = False) -> TwoTensor:
    """A TwoTensor of random numbers."""
    return TwoTensor(torch.randn(*shape), torch.randn(*shape)).requires_grad_(grad)


def nested(*shape: int, grad: bool = False) -> TwoTensor:
    """One of two such."""
    return TwoTensor(two(*shape), two(*shape)).requires_grad_(grad)


def masked(*shape: int, grad: bool = False) -> Masked:
    """One of random numbers, with about half of them there."""
    return Masked(torch.randn(*shape), torch.rand(*shape) > 0.5).requires_grad_(grad)


def held(tensor: Any) -> Iterator[tuple[str, Tensor]]:
    """The plain tensors in one, by name."""
    if not hasattr(tensor, "__tensor_flatten__"):
        yield "", tensor
        return
    for name in tensor.__tensor_flatten__()[0]:
        yield from ((f"{name}.{inner}", each) for inner, each in held(getattr(tensor, name)))


def made_alike(tensor: Any, change: Any) -> Any:
    """One of the same classes, with another tensor for each plain one in it."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return change(tensor)
    names, context = tensor.__tensor_flatten__()
    inner = {name: made_alike(getattr(tensor, name), change) for name in names}
    return type(tensor).__tensor_unflatten__(inner, context, tensor.shape, tensor.stride())


def differences(eager: Any, found: Any) -> list[str]:
    """What differs between two results, in class, metadata, layout or any bit."""
    if isinstance(eager, tuple | list):
        return [d for pair in zip(eager, found, strict=True) for d in differences(*pair)]
    if eager is None or found is None or type(eager) is not type(found):
        return [] if eager is found is None else [f"{type(eager)} in eager, {type(found)} found"]
    outer = [(t.shape, t.stride(), t.dtype, t.requires_grad) for t in (eager, found)]
    wrong = [] if outer[0] == outer[1] else [f"{outer[0]} in eager, {outer[1]} found"]
    mine, theirs = dict(held(eager)), dict(held(found))
    wrong += [] if mine.keys() == theirs.keys() else [f"{[*mine]} in eager, {[*theirs]} found"]
    for name in mine.keys() & theirs.keys():
        wrong += tensor_differences(mine[name], theirs[name], name)
    return wrong
