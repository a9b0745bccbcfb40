"""Tangents that a caller passes: their sizes and strides."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import sympy
from torch import Tensor

from foretrace.errors import Refusal
from foretrace.ir.program.interface import Input
from foretrace.ir.program.recording import Recording
from foretrace.ir.symbols.substitution import Numbers
from foretrace.ir.values.tensor_type import Size, SubclassStrides
from foretrace.operators.abstract_tensors.subclass_types import (
    with_inner_layouts,
    wrapping_now,
    wraps,
)

APPLIED = (sympy.Function, sympy.Max, sympy.Min)
"""What sizes consist of beside sums and products"""


def sizes_by_data(item: Input, tangent: Tensor, known: Numbers) -> Numbers:
    """The sizes, with those that data has decided, as the gradient of a result has them.

    Two that are added or multiplied in a size cannot be distinguished: one is put in terms of the
    other, so that what the size is in strides is known. `agree` checks it after the run.
    """
    found = dict(known)
    for size, number in zip(item.value.type.shape, tangent.shape, strict=False):
        if isinstance(size, int) or size in found:
            continue
        rest = sympy.expand(size.xreplace(found))
        parts = (*sorted(rest.free_symbols, key=str), *sorted(rest.atoms(*APPLIED), key=str))
        part = next((each for each in parts if _linear(rest, each)), None)
        found[size] = number
        if part is None:
            continue
        step = rest.coeff(part)
        solved = {part: sympy.expand((number - (rest - step * part)) / step)}
        found = {name: _put(solved, each) for name, each in found.items()} | solved
    return found


def _linear(size: sympy.Expr, part: sympy.Expr) -> bool:
    step = size.coeff(part)
    return step != 0 and not (size - step * part).has(part)


def _put(solved: dict[sympy.Expr, sympy.Expr], each: int | sympy.Expr) -> int | sympy.Expr:
    return each if isinstance(each, int) else sympy.expand(each.xreplace(solved))


def _number(size: Size, sizes: Numbers) -> int:
    if isinstance(size, int):
        return size
    with suppress(TypeError):  # what is compared is known in part alone
        size = sympy.expand(size.xreplace(sizes))
    if not size.is_Integer:
        raise Refusal(
            f"the strides of a tangent depend on {size}, which data decides while the graph runs",
            kind="wrong tangents",
            do="let the program return a loss, and name it: cut(..., loss=0)",
        )
    return int(size)


def strides_of(item: Input, tangent: Tensor, sizes: Numbers) -> tuple[Size, ...]:
    """The strides that a tangent is to be taken in: its own, or those of its output if equal.

    With open sizes they are those of its order in memory.
    """
    expected = item.value.type
    shape, stride = (
        tuple(_number(n, sizes) for n in part) for part in (expected.shape, expected.stride)
    )
    if tuple(tangent.shape) != shape or tangent.dtype != expected.dtype:
        raise _wrong(item, tangent, shape)
    if expected.wrapped or wraps(type(tangent)):
        return _as_it_holds(item, tangent)
    if tangent.stride() == stride or not tangent.numel():
        return expected.stride
    known = expected.symbols
    return expected.ordered(tangent.stride()).stride if known else tangent.stride()


def _wrong(item: Input, tangent: Tensor, shape: Sequence[int]) -> Refusal:
    return Refusal(
        f"the {item.role} is {tangent.dtype}{list(tangent.shape)},"
        f" its output is {item.value.type.dtype}{list(shape)}",
        kind="wrong tangents",
        do="pass tangents of the outputs' shapes and dtypes",
    )


def _as_it_holds(item: Input, tangent: Tensor) -> tuple[Size, ...]:
    """The strides of a subclass's tangent: those of its inner tensors decide the backward."""
    now, then = wrapping_now(tangent), item.value.type.wrapped
    if now is None or then is None or now.kind is not then.kind:
        raise Refusal(
            f"the {item.role} is a {now or 'plain tensor'}, its output is a {then or 'plain one'}",
            kind="wrong tangents",
            do="pass a tangent of the class of the output",
        )
    return SubclassStrides(tangent.stride(), now)


def lay_out(tangent: Tensor, stride: Sequence[Size], sizes: Numbers) -> Tensor:
    """A tangent with such strides, its lazy conjugation or negation resolved."""
    if isinstance(stride, SubclassStrides):
        return with_inner_layouts(tangent, stride, stride.wrapped)
    steps = tuple([_number(n, sizes) for n in stride])
    put_off = tangent.is_conj() or tangent.is_neg()
    if not put_off and (tangent.stride() == steps or not tangent.numel()):
        return tangent
    return tangent.new_empty_strided(tangent.shape, steps).copy_(tangent)


def agree(
    recorded: Recording, wanted: Sequence[Input], tangents: Sequence[Tensor], results: Sequence[Any]
) -> None:
    """Check the tangents of what data has sized, which is known when the graph has run.

    Raises:
        Refusal: one is of another shape than its output.
    """
    if not any(item.value.type.symbols for item in wanted):
        return
    followed = (
        r
        for o, r in zip(recorded.outputs, results, strict=False)
        if recorded.differentiable(o.value)
    )
    for item, tangent, result in zip(wanted, tangents, followed, strict=False):
        if tangent.shape != result.shape:
            raise _wrong(item, tangent, result.shape)
