"""Inverses of views: the content of a base after a write to a view of it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from foretrace.errors import Refusal
from foretrace.ir.program.op import Op, ViewStep
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value

aten = torch.ops.aten

Append = Callable[..., Op]
"""Appends the call of an operator with (args, kwargs)"""
Call = Callable[..., Value]
"""Appends the call of an operator with these arguments, and returns its result"""
Inverse = Callable[[ViewStep, Value, Value, Call], Value]


def put_back(
    steps: Sequence[ViewStep], bases: Sequence[Value], new: Value, append: Append
) -> Value:
    """The first base, with `new` as the content of the view at the end of `steps`.

    Args:
        steps: from the base to the view, at least one.
        bases: the base of each step.
        new: the new content of the view.
        append: records a call.

    Raises:
        Refusal: the view reads memory as another type, or memory that the base does not show.
    """

    def call(func: Any, *args: Tree, **kwargs: Tree) -> Value:
        return append(func, args, kwargs).outs[0]

    if any(step.func not in VIEW_INVERSES for step in steps):
        return _put_by_place(steps, bases, new, append)
    content = new
    for step, base in zip(reversed(steps), reversed(bases), strict=True):
        content = VIEW_INVERSES[step.func](step, base, content, call)
    return content


def _put_by_place(
    steps: Sequence[ViewStep], bases: Sequence[Value], new: Value, append: Append
) -> Value:
    """The same for any view: the view of `arange` has the positions of its elements."""
    whole, types = bases[0], [*(base.type for base in bases), new.type]
    same = (new.type.dtype, new.type.lazy) == (whole.type.dtype, whole.type.lazy)
    if not same or len({type.dtype.itemsize for type in types}) > 1:
        raise Refusal(
            "the program writes to a view that reads its memory as another type",
            kind="no functional form",
            do="write to the tensor that it is a view of",
        )
    options = {"dtype": torch.int64, "device": whole.type.device}
    numbers = append(aten.arange.default, (whole.type.numel,), options).outs[0]
    places = append(aten.view.default, (numbers, list(whole.type.shape))).outs[0]
    if any(step.by_strides for step in steps):
        _check_contiguous(whole.type)
    for step, seen in zip(steps, types[1:], strict=True):
        if step.base.type.dtype == seen.dtype and step.func not in SAME_PLACES:
            places = append(step.func, *step.of(places)).outs[step.position]
    put_off = [PUT_OFF[step.func] for step in steps if step.func in PUT_OFF]
    for undo in (each for each in dict.fromkeys(put_off) if put_off.count(each) % 2):
        if new.type.dtype.is_complex or undo is aten.neg.default:
            new = append(undo, (new,)).outs[0]
    return append(aten.put.default, (whole, places, new)).outs[0]


def _check_contiguous(type: TensorType) -> None:
    if type.stride != type.contiguous().stride:
        raise Refusal(
            "the program writes through as_strided to a tensor that is not contiguous",
            kind="no functional form",
            do="write to the tensor that it is a view of, or make that contiguous",
        )


def _scatter_of(func: Any) -> Inverse:
    """The inverse of a view of a part: the scatter op with the same arguments."""
    return lambda step, base, new, call: call(func, base, new, *step.args[1:])


def _reshape(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    return call(aten.reshape.default, new, list(base.type.shape))


def _permute(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    dims = [d % len(base.type.shape) for d in step.args[1]]
    return call(aten.permute.default, new, [dims.index(i) for i in range(len(dims))])


def _same(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    return new


def _unbind(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    dim = step.args[1] if len(step.args) > 1 else 0
    return call(aten.select_scatter.default, base, new, dim, step.position)


def _split(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    _, sizes, *rest = step.args
    dim = rest[0] if rest else step.kwargs.get("dim", 0)
    if isinstance(sizes, (list, tuple)):
        start = sum(sizes[: step.position])
        stop = start + sizes[step.position]
    else:
        start = step.position * sizes
        stop = start + new.type.shape[dim]
    return call(aten.slice_scatter.default, base, new, dim, start, stop)


# ---- views that read the same bytes otherwise ----------------------------------------------------


def _as_real(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    real, imaginary = (call(aten.select.int, new, -1, part) for part in (0, 1))
    return call(aten.complex.default, real, imaginary)


def _part(step: ViewStep, base: Value, call: Call, part: int) -> Value:
    whole = call(aten.clone.default, base) if base.type.lazy else base
    return call(aten.select.int, call(aten.view_as_real.default, whole), -1, part)


def _other_size(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    """The same bytes as elements of another size. torch requires that they are contiguous.

    Where sizes are symbolic, a kernel may return an empty tensor with other strides than its type.
    """
    straight = 0 not in new.type.shape and new.type.stride == new.type.contiguous().stride
    if not straight and new.type.dtype.itemsize != base.type.dtype.itemsize:
        new = call(aten.clone.default, new, memory_format=torch.contiguous_format)
    return call(aten.view.dtype, new, base.type.dtype)


def _conjugate(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    return call(aten.conj_physical.default, new) if new.type.dtype.is_complex else new


def _adjoint(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    return _conjugate(step, base, call(aten.transpose.int, new, -2, -1), call)


CONJUGATIONS = (aten._conj, aten.conj, aten.mH, aten.adjoint, aten.matrix_H)
PUT_OFF: dict[Any, Any] = {
    **{packet.default: aten.conj_physical.default for packet in CONJUGATIONS},
    aten._neg_view.default: aten.neg.default,
}
"""Lazy views, each with the operator that it puts off, which is its own inverse"""

SAME_PLACES = frozenset(
    (aten.view.dtype, aten._conj.default, aten.conj.default, aten._neg_view.default)
)
"""Views whose elements are at the positions of the base's, if their sizes in bytes are equal. They
read bytes as another type or sign, which positions do not have"""

VIEW_INVERSES: dict[Any, Inverse] = {
    aten.select.int: _scatter_of(aten.select_scatter.default),
    aten.slice.Tensor: _scatter_of(aten.slice_scatter.default),
    aten.diagonal.default: _scatter_of(aten.diagonal_scatter.default),
    aten.view.default: _reshape,
    aten.transpose.int: lambda step, base, new, call: call(aten.transpose.int, new, *step.args[1:]),
    aten.t.default: lambda step, base, new, call: call(aten.t.default, new),
    aten.permute.default: _permute,
    aten.unsqueeze.default: _reshape,
    aten.squeeze.default: _reshape,
    aten.squeeze.dim: _reshape,
    aten.squeeze.dims: _reshape,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    aten.unsafe_split.Tensor: _split,
    aten.unsafe_split_with_sizes.default: _split,
    aten._unsafe_view.default: _reshape,
    aten.lift.default: _same,
    aten.detach.default: _same,
    aten.alias.default: _same,
    aten.unbind.int: _unbind,
    aten.view_as_real.default: _as_real,
    aten.view_as_complex.default: lambda step, base, new, call: call(
        aten.view_as_real.default, new
    ),
    aten.real.default: lambda step, base, new, call: call(
        aten.complex.default, new, _part(step, base, call, 1)
    ),
    aten.imag.default: lambda step, base, new, call: call(
        aten.complex.default, _part(step, base, call, 0), new
    ),
    aten.conj.default: _conjugate,
    aten._conj.default: _conjugate,
    aten.mH.default: _adjoint,
    aten.adjoint.default: _adjoint,
    aten.matrix_H.default: _adjoint,
    aten._neg_view.default: lambda step, base, new, call: call(aten.neg.default, new),
    aten.view.dtype: _other_size,
}
"""The content of a base, from new content of a view of it; other views go by position."""
