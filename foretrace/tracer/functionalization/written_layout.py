"""New contents in the layout of what they are written over, by ops that have derivatives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.values.nested import leaves
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Value, values_in
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.schemas.dispatch_result import ReturnedOperand
from foretrace.operators.schemas.quirks import DRAWS_IN_ANY_ORDER
from foretrace.tracer.functionalization.alias import Alias, alias_of
from foretrace.tracer.functionalization.builder import RecorderBase
from foretrace.tracer.functionalization.current_value import current
from foretrace.tracer.functionalization.op_call import Call

aten = torch.ops.aten


def draw(call: Call) -> Value:
    """Record an op that draws numbers in another order than its functional form.

    It stays in place, on new memory of the same layout. For a lazy conjugation or negation the
    kernel fills a copy, which is written back.
    """
    recorder, (old, *rest) = call.recorder, call.args
    like = old.type
    place = {"dtype": like.dtype, "device": like.device}  # of no tensor: nothing is followed
    layout = (list(like.shape), list(like.stride))
    empty = (aten.empty_strided.default, layout, place)
    fresh = recorder.call(*((aten.empty_like.default, (old,)) if like.lazy else empty)).outs[0]
    drawn = Value(fresh.type)
    over, origin = (fresh, *rest), recorder.origin()
    recorder.append(Op(call.func, over, call.kwargs, drawn, (drawn,), origin=origin))
    return drawn


def draws_same(func: Any, like: TensorType) -> bool:
    """Whether the functional form draws the same numbers: it does for memory without gaps.

    Of `bernoulli_` it does so only for elements in order; torch 2.13's kernel was not at hand, nor
    such a processor.
    """
    order = like.memory_order()
    in_order = order == list(range(len(order)))
    return like.dense and not like.lazy and (func not in DRAWS_IN_ANY_ORDER or in_order)


def copy_content(recorder: RecorderBase, old: Value, source: Value, whole: bool) -> Value:
    """New memory with the content of `source`, by differentiable ops; `whole`: in old's layout."""
    new, like = source, old.type
    if new.type.shape != like.shape:
        new = recorder.call(aten.expand.default, (new, list(like.shape))).outs[0]
    cast = new.type.dtype != like.dtype or new.type.device != like.device
    if cast:  # last, as eager casts the gradient before it is summed
        options = {"dtype": like.dtype, "device": like.device}
        new = recorder.call(aten._to_copy.default, (new,), options).outs[0]
    if whole and not (new.type.same_layout(like) and (cast or like.dense)):
        return lay_out(recorder, like, new)
    return new if cast else recorder.call(aten.clone.default, (new,)).outs[0]


def lay_out(recorder: RecorderBase, like: TensorType, new: Value) -> Value:
    """The content of `new` in memory of its own with the strides of `like`."""
    order = like.memory_order()
    straight = order == list(range(len(order)))
    turned = new if straight else recorder.call(aten.permute.default, (new, order)).outs[0]
    options = {"memory_format": torch.contiguous_format}
    back = recorder.call(aten.clone.default, (turned,), options).outs[0]
    if not straight:
        inverse = [order.index(dim) for dim in range(len(order))]
        back = recorder.call(aten.permute.default, (back, inverse)).outs[0]
    if same_sizes(recorder, back.type.stride, like.stride):
        return back
    sizes, strides = list(like.shape), list(like.stride)
    empty = recorder.call(aten.new_empty_strided.default, (new, sizes, strides)).outs[0]
    return recorder.call(aten.copy.default, (empty, new)).outs[0]


def in_layout(recorder: RecorderBase, target: Alias, new: Value) -> Value:
    """New content as the target holds it: its sizes, dtype and, where it owns memory, strides."""
    like = current(target, recorder).type
    if new.type.dtype != like.dtype:
        new = recorder.call(aten._to_copy.default, (new,), {"dtype": like.dtype}).outs[0]
    if target.is_view or new.type.same_layout(like):
        return new
    return lay_out(recorder, like, new)


@dataclass(frozen=True, slots=True)
class OwnResults:
    """What an operator returns beside what it writes to, by its own kernel."""

    call: Call
    likes: list[TensorType | ReturnedOperand]
    """of each result its type, or that it is an operand"""

    @classmethod
    def of(cls, call: Call) -> "OwnResults":
        """Of a call; none of one that returns only what it writes to, or nothing."""
        if call.schema.returns.written or not call.schema.returns.something:
            return cls(call, [])
        return cls(call, leaves(call.recorder.semantics.infer(call.func, *call.types)))

    def laid_out(self, computed: tuple[Value, ...]) -> tuple[Value, ...]:
        """The results of a functional form, in the layout of the operator's own."""
        if not self.likes:
            return computed
        return tuple(
            new
            if isinstance(like, ReturnedOperand) or new.type.same_layout(like)
            else lay_out(self.call.recorder, like, new)
            for new, like in zip(computed, self.likes, strict=True)
        )

    def tensors(self, results: tuple[Value, ...]) -> tuple[Abstract, ...]:
        """The results as the program has them: an operand itself where the kernel returns it."""
        return tuple(
            self.call.tensors[like.operand]
            if isinstance(like, ReturnedOperand)
            else self.call.recorder.abstract(new)
            for new, like in zip(results, self.likes, strict=True)
        )


def same_sizes(recorder: RecorderBase, one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    """Whether two shapes are equal, once simplified."""
    simplify = recorder.types.symbols.simplify
    return one == other or tuple(map(simplify, one)) == tuple(map(simplify, other))


def check_fits(call: Call, targets: list[Abstract], news: Sequence[Value | None]) -> None:
    """Raise what eager does where new content is larger than what it is written over, or wider.

    It is what the operator's own kernel says of its operands; some of torch's meta kernels do not.
    """
    recorder, func = call.recorder, call.func
    both = zip(targets, news, strict=True)
    for target, new in ((target, new) for target, new in both if new is not None):
        old, after = current(alias_of(target), recorder).type, new.type
        sized = same_sizes(recorder, old.shape, after.shape)
        if sized and old.dtype == after.dtype:
            continue
        recorder.semantics.infer(func, *call.types)
        hint = recorder.types.symbols.hint
        if not sized and [*map(hint, after.shape)] != [*map(hint, old.shape)]:
            raise RuntimeError(f"{func} makes {[*after.shape]} of what is {[*old.shape]}")
        if not torch.can_cast(after.dtype, old.dtype):
            raise RuntimeError(f"{func} gives {after.dtype}, which can't be cast to {old.dtype}")


def check_not_resized(call: Call) -> None:
    """Refuse a write to an empty tensor that the kernel resizes first."""
    empty = any(0 in target.shape for target in call.targets)
    if empty and not any(0 in v.type.shape for v in values_in(call.args)[:1]):
        raise Refusal(
            f"{call.func} writes to an empty tensor, and gives it a size when it first runs",
            kind="side effect",
            do="call the module once eagerly before the capture",
        )
