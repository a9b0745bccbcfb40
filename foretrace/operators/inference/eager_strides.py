"""Layouts of eager where torch's meta kernels say otherwise; found by all of OpInfo on 2.13."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch

from foretrace import torch_api
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.nested import map_tree
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree
from foretrace.operators.schemas.quirks import (
    COMPLEX_IN_ORDER,
    COMPUTED_OPERAND,
    IN_ORDER,
    INDEXING,
    ITERATED,
    JOINED,
    LOSSES,
    MIXED,
    NONE_ASKED_FOR,
    ONE_EXAMPLE,
    SUGGESTED,
    WHERE_IT_TRAINS,
)
from foretrace.operators.schemas.schema import schema_of

aten = torch.ops.aten

HALVES = (torch.bfloat16, torch.float16)
CHANNELS_LAST: dict[int, tuple[int, ...]] = {4: (4, 1, 3, 2), 5: (5, 1, 4, 3, 2)}
"""By the number of dimensions, strides in the order of a channels-last tensor"""


def as_eager(func: Any, args: Tree, result: Tree, symbols: Symbols) -> Tree:
    """The types of eager's results, where torch's meta kernel says otherwise.

    One example without a batch has one loss, whatever the reduction. The output of batch norm is
    contiguous or channels-last, whatever the strides of its input.
    Sources: LossMultiLabelMargin.cpp, Normalization.cpp in aten/src/ATen/native, torch 2.13.
    """
    if func in ONE_EXAMPLE and len(args[0].shape) <= 1:
        loss, rest = result
        return TensorType((), (), loss.dtype, loss.device), rest
    if func in NONE_ASKED_FOR and False in args[NONE_ASKED_FOR[func] :][:1]:
        return result[0], None
    if func in MIXED:
        result = _with_full_statistics(args, result)
    angle = func in COMPLEX_IN_ORDER and args[0].dtype.is_complex
    loss = func in LOSSES and symbols.same(result.shape, args[1].shape)
    if func in IN_ORDER or angle or loss:
        return map_tree(result, _in_order)
    if func in SUGGESTED:
        return _suggested(result, args[SUGGESTED[func]])
    if func in JOINED and result.device.type == "cpu" and not (result.symbols or 0 in result.shape):
        return _rolled(result, *args)
    if "batch_norm" in func.name():
        input = args[schema_of(func).arguments.index("input")]
        out, *rest = result if isinstance(result, tuple) else (None,)
        if isinstance(out, TensorType) and symbols.same(out.shape, input.shape):
            return _suggested(out, input), *rest
    return result


def _with_full_statistics(args: Tree, result: Tree) -> Tree:
    """The results of a norm, its statistics in float32 where its operands are of two dtypes."""
    input, *others = [arg for arg in args if isinstance(arg, TensorType)]
    mixed = any(other.dtype is torch.float32 for other in others)
    if input.device.type != "cpu" or input.dtype not in HALVES or not mixed:
        return result
    out, mean, deviation, *rest = result
    full = [t.but(dtype=torch.float32) for t in (mean, deviation)]
    return (out, *full, *rest)


def _in_order(leaf: Any) -> Any:
    here = isinstance(leaf, TensorType) and leaf.device.type == "cpu"
    return leaf.contiguous() if here else leaf


def _suggested(out: TensorType, operand: TensorType) -> TensorType:
    """The type in the memory format that the layout of an operand suggests, on the CPU."""
    if operand.device.type != "cpu":
        return out
    if not (out.symbols or operand.symbols):
        return out.but(stride=torch_api.suggested_strides(operand.shape, operand.stride, out.shape))
    last = CHANNELS_LAST.get(len(operand.shape))
    if last is not None and operand.stride == operand.ordered(last).stride:
        return out.but(stride=out.ordered(last).stride)
    return out.but(stride=out.contiguous().stride) if last is None or operand.dense else out


def _rolled(
    out: TensorType, operand: TensorType, shifts: Tree, dims: Sequence[int] = ()
) -> TensorType:
    """The type of a `roll`: one `cat` after another of two parts, in one order only if both are.

    By an open number it is in order, as the meta kernel has it: where the parts begin is not known.
    """
    by = list(shifts) if isinstance(shifts, (list, tuple)) else [shifts]
    if not dims or any(type(shift) is not int for shift in by):
        return out.contiguous()
    stride = operand.stride
    for shift, dim in zip(by, dims, strict=True):
        shape = list(out.shape)
        second = -shift % shape[dim]
        found = set[Any]()
        for size in (shape[dim] - second, second):
            part = [*shape[:dim], size, *shape[dim:][1:]]
            found.add(tuple(torch_api.suggested_strides(part, stride, shape)))
        stride = found.pop() if len(found) == 1 else out.contiguous().stride
    return out.but(stride=stride)


def as_iterated(func: Any, args: Any, result: Any) -> Any:
    """The result in eager's layout, where torch's meta kernel misses an operand."""
    if func in ITERATED:
        order = ITERATED[func]
        if func in WHERE_IT_TRAINS and not args[WHERE_IT_TRAINS[func][0]]:
            order = WHERE_IT_TRAINS[func][1]
        operands = [args[n] for n in order if n < len(args) and isinstance(args[n], torch.Tensor)]
        return _iterated(func, operands, result)
    if func in INDEXING and all(i is None or i.dtype != torch.bool for i in args[1]):
        return _indexed(args, result)
    return result


def _iterated(func: Any, operands: list[Any], result: Any) -> Any:
    """Lay out a result as TensorIterator does after it has cast the operands to one dtype."""
    if all(one.stride() == result.stride() for one in operands):
        return result
    dtype = result.dtype
    if dtype is torch.bool:
        dtype = reduce(torch.promote_types, [one.dtype for one in operands])
    cast = [one.to(dtype) for one in operands]
    if func in COMPUTED_OPERAND:
        place = COMPUTED_OPERAND[func]
        cast[place] = cast[place].contiguous()
    spread = torch.broadcast_tensors(*cast)
    return result.as_strided(result.shape, torch_api.iterated_strides(*spread))


def _indexed(args: Any, result: Any) -> Any:
    """Lay out the result of indexing by the strides of the indexed tensor and of the indices.

    Source: AdvancedIndex in aten/src/ATen/native/TensorAdvancedIndexing.cpp, torch 2.13.
    """
    source, places = args[0], [n for n, index in enumerate(args[1]) if index is not None]
    indices, first = torch.broadcast_tensors(*(args[1][n] for n in places)), places[0]
    if places[-1] - first >= len(places):  # not adjacent: their dimensions go first
        source, first = source.movedim(places, [*range(len(places))]), 0
    before, after = source.stride()[:first], source.stride()[first + len(places) :]
    sizes = (*indices[0].shape, *[1] * len(after))
    strides = (*before, *[0] * indices[0].dim(), *after)
    spread = [index.reshape(sizes).expand(result.shape) for index in indices]
    laid_out = torch_api.iterated_strides(source.as_strided(result.shape, strides), *spread)
    return result.as_strided(result.shape, laid_out)
