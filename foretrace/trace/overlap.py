"""Writes to memory that overlaps itself, or that an operand of the same call reads elsewhere.

Eager raises, or its answer depends on the order of a kernel's loop. A value program has no such
order: it would read what was there before the call.
Source: assert_no_internal_overlap and assert_no_partial_overlap in aten/src/ATen/MemoryOverlap.cpp.
"""

from typing import Any

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.types import TensorType
from foretrace.trace.abstract import Abstract
from foretrace.trace.alias import Alias, Records, alias_of, current

ANY_ORDER = frozenset({torch.ops.aten.copy_.default})
"""What reads each element where it writes it, beside the operators that torch calls pointwise"""


def check_apart(
    recorder: Records, func: Any, targets: list[Abstract], tensors: list[Abstract]
) -> None:
    """Refuse a call whose writes have no value form.

    Args:
        recorder: knows what the tensors are now.
        func: the operator.
        targets: what it writes to.
        tensors: all of its operands, each occurrence.

    Raises:
        Refusal: a target overlaps itself, or overlaps another operand in part.
    """
    for target in targets:
        alias = alias_of(target)
        if any(current(each, recorder).type.overlapping for each in (alias, alias.root)):
            raise overlapping(f"{func} writes to memory of which several elements are one place")
    if len(targets) == 1 and not recorder.semantics.schema(func).writes_lists:
        _check_operands(recorder, func, targets[0], tensors)


def _check_operands(
    recorder: Records, func: Any, target: Abstract, tensors: list[Abstract]
) -> None:
    alias = alias_of(target)
    others = [tensor for tensor in tensors if tensor is not target]
    in_place = not recorder.semantics.schema(func).outs
    if len(others) < len(tensors) - 1 and in_place and not _pointwise(recorder, func):
        raise overlapping(f"{func} reads the tensor that it writes to as another operand")
    for other in others:
        if isinstance(other.ft_alias, Alias) and other.ft_alias.root is alias.root:
            one, two = (current(each, recorder).type for each in (alias, other.ft_alias))
            if one.same_layout(two) and one.offset == two.offset and _pointwise(recorder, func):
                continue
            if meet(recorder, one, two):
                raise overlapping(f"{func} reads memory that it writes to, at other places")


def _pointwise(recorder: Records, func: Any) -> bool:
    schema = recorder.semantics.schema(func)
    functional = schema.functional
    forms = (func, functional.call if functional is not None else func)
    return func in ANY_ORDER or any(torch.Tag.pointwise in form.tags for form in forms)


def meet(recorder: Records, one: TensorType, two: TensorType) -> bool:
    """Whether two views of one memory have an element in common; open sizes by their examples."""
    return bool(_shared(recorder, one, two).any())


def within(recorder: Records, one: TensorType, two: TensorType) -> bool:
    """Whether all elements of a view of some memory are elements of another."""
    return bool(_shared(recorder, one, two).all())


def _shared(recorder: Records, one: TensorType, two: TensorType) -> torch.Tensor:
    """For each element of the first, whether it is one of the second."""
    hint = recorder.types.symbols.hint
    with torch_api.plain_torch():
        return torch.isin(_places(one, hint), _places(two, hint))


def _places(type: TensorType, hint: Any) -> torch.Tensor:
    """The offsets of all elements, in bytes' unit of the memory's smallest element: its own."""
    found = torch.tensor([hint(type.offset)])
    for size, stride in zip(type.shape, type.stride, strict=True):
        steps = torch.arange(hint(size)) * hint(stride)
        found = (found.unsqueeze(-1) + steps).reshape(-1)
    return found


def overlapping(what: str) -> Refusal:
    """The refusal of a write that has no value form, as its operands overlap."""
    return Refusal(
        what, kind="overlapping memory",
        do="write to a clone, or read from one",
    )  # fmt: skip
