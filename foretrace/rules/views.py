"""Views turned round: what a tensor holds after a view of it got other content."""

from collections.abc import Callable
from typing import Any

import torch

from foretrace.ir.op import Value, ViewStep

aten = torch.ops.aten

Call = Callable[..., Value]
"""Records the call of an operator with these arguments, and gives its result"""
Inverse = Callable[[ViewStep, Value, Value, Call], Value]


def put_back(step: ViewStep, base: Value, new: Value, call: Call) -> Value | None:
    """`base` with the view `step` of it replaced by `new`; None where only strides can tell."""
    inverse = VIEW_INVERSES.get(step.func)
    return inverse(step, base, new, call) if inverse else None


def _scatter_of(func: Any) -> Inverse:
    """The inverse of a view of a part: the scatter with the same arguments."""
    return lambda step, base, new, call: call(func, base, new, *step.args[1:])


def _reshape(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    return call(aten.reshape.default, new, list(base.type.shape))


def _transpose(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    return call(aten.transpose.int, new, *step.args[1:])


def _t(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    return call(aten.t.default, new)


def _permute(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    dims = [d % len(base.type.shape) for d in step.args[1]]
    return call(aten.permute.default, new, [dims.index(i) for i in range(len(dims))])


def _squeeze(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    return call(aten.squeeze.dim, new, step.args[1])


def _same(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    return new


def _unbind(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    dim = step.args[1] if len(step.args) > 1 else 0
    return call(aten.select_scatter.default, base, new, dim, step.position)


# ---- views that read the same bytes otherwise ----------------------------------------------------


def _as_real(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    real, imaginary = (call(aten.select.int, new, -1, part) for part in (0, 1))
    return call(aten.complex.default, real, imaginary)


def _as_complex(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    return call(aten.view_as_real.default, new)


def _part(step: ViewStep, base: Value, call: Call, part: int) -> Value:
    whole = call(aten.clone.default, base) if base.type.lazy else base
    return call(aten.select.int, call(aten.view_as_real.default, whole), -1, part)


def _real(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    return call(aten.complex.default, new, _part(step, base, call, 1))


def _imaginary(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    return call(aten.complex.default, _part(step, base, call, 0), new)


def _conjugate(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    return call(aten.conj_physical.default, new) if new.type.dtype.is_complex else new


def _adjoint(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    return _conjugate(step, base, call(aten.transpose.int, new, -2, -1), call)


def _negative(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    return call(aten.neg.default, new)


def _bits(step: ViewStep, base: Value, new: Value, call: Call) -> Value:
    return call(aten.view.dtype, new, base.type.dtype)


VIEW_INVERSES: dict[Any, Inverse] = {
    aten.select.int: _scatter_of(aten.select_scatter.default),
    aten.slice.Tensor: _scatter_of(aten.slice_scatter.default),
    aten.diagonal.default: _scatter_of(aten.diagonal_scatter.default),
    aten.view.default: _reshape,
    aten.transpose.int: _transpose,
    aten.t.default: _t,
    aten.permute.default: _permute,
    aten.unsqueeze.default: _squeeze,
    aten.detach.default: _same,
    aten.alias.default: _same,
    aten.unbind.int: _unbind,
    aten.view_as_real.default: _as_real,
    aten.view_as_complex.default: _as_complex,
    aten.real.default: _real,
    aten.imag.default: _imaginary,
    aten.conj.default: _conjugate,
    aten._conj.default: _conjugate,
    aten.mH.default: _adjoint,
    aten.adjoint.default: _adjoint,
    aten.matrix_H.default: _adjoint,
    aten._neg_view.default: _negative,
    aten.view.dtype: _bits,
}
"""How the content of a base follows from new content of a view of it; the rest is strided."""
