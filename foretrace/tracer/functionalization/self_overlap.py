"""Writes to memory that overlaps itself, or that an operand of the same call reads elsewhere.

Eager raises, or its answer depends on the order of a kernel's loop. A value program has no such
order: it would read what was there before the call.
Source: assert_no_internal_overlap and assert_no_partial_overlap in aten/src/ATen/MemoryOverlap.cpp.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.schemas.schema import schema_of
from foretrace.tracer.functionalization.alias import Alias, alias_of
from foretrace.tracer.functionalization.builder import RecorderBase
from foretrace.tracer.functionalization.current_value import current
from foretrace.tracer.functionalization.op_call import Call

ANY_ORDER = frozenset({torch.ops.aten.copy_.default})
"""Operators that read each element where they write it, beside those with torch's pointwise tag"""


def check_disjoint(call: Call) -> None:
    """Refuse a call whose writes have no functional form.

    Raises:
        Refusal: a tensor that it writes to overlaps itself, or overlaps another operand in part.
    """
    recorder, func, targets = call.recorder, call.func, call.targets
    for target in targets:
        alias = alias_of(target)
        owner = () if alias.parent is None else (alias.root,)
        if any(overlaps(recorder, current(each, recorder).type) for each in (alias, *owner)):
            raise overlapping(f"{func} writes to memory of which several elements are one place")
    for target in () if call.schema.writes_lists else targets:
        _check_operands(call, target)


def _check_operands(call: Call, target: Abstract) -> None:
    recorder, func, alias = call.recorder, call.func, alias_of(target)
    others = [tensor for tensor in call.tensors if tensor is not target]
    if alias.parent is None and not alias.children and len(others) == len(call.tensors) - 1:
        return  # nothing shares its memory
    in_place = not call.schema.outs
    if len(others) < len(call.tensors) - 1 and in_place and not _pointwise(func):
        raise overlapping(f"{func} reads the tensor that it writes to as another operand")
    for other in others:
        if isinstance(other.ft_alias, Alias) and other.ft_alias.root is alias.root:
            one, two = (place(each, current(each, recorder)) for each in (alias, other.ft_alias))
            if one.same_layout(two) and one.offset == two.offset and _pointwise(func):
                continue
            if meet(recorder, one, two):
                raise overlapping(f"{func} reads memory that it writes to, at other places")


def _pointwise(func: Any) -> bool:
    functional = schema_of(func).functional
    forms = (func, functional.call if functional is not None else func)
    tagged = (form for form in forms if isinstance(form, torch_api.OpOverload))
    return func in ANY_ORDER or any(torch.Tag.pointwise in form.tags for form in tagged)


def place(alias: Alias, value: Value) -> TensorType:
    """The type of a member's value where eager has it, as far behind the owner as it is."""
    far, at = 0, alias
    while at.parent is not None:
        far, at = far + at.distance, at.parent
    return value.type.but(offset=far // value.type.dtype.itemsize)


def meet(recorder: RecorderBase, one: TensorType, two: TensorType) -> bool:
    """Whether two views of one memory have an element in common.

    That they have none is a guard where open sizes decide it.
    """
    symbols = recorder.types.symbols
    unit = min(one.dtype.itemsize, two.dtype.itemsize)
    places = _Places.of(one, unit), _Places.of(two, unit)
    numbers = [each.example(symbols.hint) for each in places]
    known = _disjoint(symbols, *numbers)
    if not known and _shared(*numbers).any():
        return True
    if not (known and _disjoint(symbols, *places)):
        _fix(symbols, one, two)
    return False


def within(recorder: RecorderBase, one: TensorType, two: TensorType) -> bool:
    """Whether all elements of a view of some memory are elements of another of the same dtype.

    That they are is a guard where open sizes decide it.
    """
    symbols = recorder.types.symbols
    inner, outer = (_Places.of(each, each.dtype.itemsize) for each in (one, two))
    if not _shared(inner.example(symbols.hint), outer.example(symbols.hint)).all():
        return False
    begins = two.dense and _holds(symbols, outer.offset - 1, inner.offset)
    if not (begins and _holds(symbols, inner.offset + inner.reach, outer.offset + two.numel)):
        _fix(symbols, one, two)
    return True


def overlaps(recorder: RecorderBase, type: TensorType) -> bool:
    """Whether several elements of a tensor are one place in memory.

    That none are is a guard where open sizes decide it.
    """
    symbols, reach = recorder.types.symbols, 0
    if type.dense or not type.symbols:
        return type.overlapping
    steps = zip(type.shape, type.stride, strict=True)
    for size, stride in sorted(steps, key=lambda step: symbols.hint(step[1])):
        if symbols.hint(size) < 2:  # noqa: PLR2004 - one element, or none
            symbols.fixed(size)
        elif not _holds(symbols, reach, stride):
            return bool(symbols.hint(type.numel))
        else:
            reach = reach + (size - 1) * stride
    return False


def _fix(symbols: Symbols, *types: TensorType) -> None:
    """Let the sizes, strides and offsets be those of the captured run, which becomes a guard."""
    for type in types:
        for number in (*type.shape, *type.stride, type.offset):
            symbols.fixed(number)


@dataclass(frozen=True)
class _Places:
    """Where the elements of a view lie: `offset`, and any number of steps below each size."""

    offset: Any
    steps: tuple[tuple[Any, Any], ...]
    """(size, stride) of each dimension"""

    @staticmethod
    def of(type: TensorType, unit: int) -> "_Places":
        """Counted in units of so many bytes: an element may be several."""
        each = type.dtype.itemsize // unit
        dims = zip(type.shape, type.stride, strict=True)
        steps = tuple((size, stride * each) for size, stride in dims if size != 1)
        return _Places(type.offset * each, steps if each == 1 else (*steps, (each, 1)))

    @property
    def reach(self) -> Any:
        """How far behind the first place the last one is."""
        return sum((size - 1) * stride for size, stride in self.steps)

    def without(self, stride: Any) -> "_Places":
        """The first steps alone of the dimension with this stride."""
        at = [stride for _, stride in self.steps].index(stride)
        return _Places(self.offset, (*self.steps[:at], *self.steps[at + 1 :]))

    def example(self, hint: Callable[[Any], int]) -> "_Places":
        """The places in the captured run."""
        steps = tuple((hint(size), hint(stride)) for size, stride in self.steps)
        return _Places(hint(self.offset), steps)


def _shared(one: _Places, two: _Places) -> torch.Tensor:
    """For each place of the first, whether it is one of the second; these are numbers."""
    with torch_api.plain_torch():
        found = []
        for places in (one, two):
            at = torch.tensor([places.offset])
            for size, stride in places.steps:
                at = (at.unsqueeze(-1) + torch.arange(size) * stride).reshape(-1)
            found.append(at)
        return torch.isin(*found)


def _disjoint(symbols: Symbols, one: _Places, two: _Places) -> bool:
    """Whether two views have nothing in common, by relations that become guards.

    One lies behind the other. Or both have one stride in common, and are disjoint between two such
    steps: columns of one matrix.
    """
    if symbols.hint(one.offset) > symbols.hint(two.offset):
        one, two = two, one
    if _holds(symbols, one.offset + one.reach, two.offset):
        return True
    strides = {stride for _, stride in one.steps} & {stride for _, stride in two.steps}
    if not strides:
        return False
    stride = max(strides, key=symbols.hint)
    one, two = one.without(stride), two.without(stride)
    between = two.offset - one.offset
    fits = _holds(symbols, one.reach, stride) and _holds(symbols, between + two.reach, stride)
    return fits and _holds(symbols, -1, between) and _disjoint(symbols, one, two)


def _holds(symbols: Symbols, less: Any, more: Any) -> bool:
    """Whether `less < more` in the captured run; it becomes a guard if so."""
    if symbols.hint(less) >= symbols.hint(more):
        return False
    relation = sympy.Lt(less, more)
    return bool(relation == sympy.true) or symbols.decide(relation)


def overlapping(what: str) -> Refusal:
    """The refusal of a write that has no functional form, as its operands overlap."""
    return Refusal(
        what,
        kind="overlapping memory",
        do="write to a clone, or read from one",
    )
