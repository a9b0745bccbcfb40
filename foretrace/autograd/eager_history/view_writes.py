"""Writes through views, as autograd follows them: in place, on a copy of what is viewed.

A functional form adds two gradients of the base: of what the write leaves, and of what it reads.
Eager has one, in which the part that was written is put in place (CopySlices). The sum is that to
the last bit but for zeros: 0.0 and -0.0 give 0.0, and a dropout gives many. It lies as the base,
too. Source: torch/csrc/autograd/functions/tensor.cpp.
"""

from collections.abc import Callable, Iterator
from typing import Any

from foretrace import torch_api
from foretrace.autograd.eager_history.history_ops import make_call, make_copy
from foretrace.ir.program.op import AS_STRIDED, Op, SharedBody, ViewStep, Write
from foretrace.ir.program.rewriter import Instantiation
from foretrace.ir.values.nested import leaves
from foretrace.ir.values.tensor_type import Size, TensorType
from foretrace.ir.values.value import Value, map_values

COMPOSITE = "CompositeImplicitAutograd"
WHY = "autograd puts the gradient of the part that was written in the place of that of the whole"


def writes_through_views(op: Op) -> bool:
    """Whether autograd follows a write to a view of what it follows."""
    target = op.target
    if not (isinstance(target, Write) and target.followed and target.steps):
        return False
    return op.args[0].type.requires_grad and all(
        not step.several and (step.definition or not (_composite(step) and _retyped(step, like)))
        for step, like in _seen(op)
    )


def through_views(op: Op, infer: Callable[[Any, Any, Any], Any]) -> Iterator[Op]:
    """The write itself, through views of a copy of the base.

    `infer`: types of results, of arguments with types in the place of tensors. They say where in
    the copy a view begins: the steps have been recorded of memory that began elsewhere.
    """
    write, (base, operands), (view,) = op.target, op.args, op.outs
    yield from make_copy(op, base, view, WHY)
    for step, like in _seen(op):
        of, (args, kwargs) = view, step.of(view)
        found = leaves(infer(step.func, *(map_values(each, _plain) for each in (args, kwargs))))
        type = [*found][step.position]
        offset = type.offset if isinstance(type, TensorType) else of.type.offset
        view = Value(like.type.but(offset=offset).with_grad(True))
        if _composite(step) and not _retyped(step, like):
            seen = list(view.type.shape), list(view.type.stride), view.type.offset
            yield make_call(op, AS_STRIDED, (of, *seen), view, WHY)
            continue
        call = make_call(op, step.func, args, view, WHY, kwargs)
        begins = like.type.begins - view.type.begins
        yield call if step.definition is None else _with_body(call, step.definition, begins)
    done = Value(view.type)
    yield make_call(op, write.func, (view, *operands[1:]), done, WHY, op.kwargs)


def _plain(value: Value) -> TensorType:
    return value.type.with_grad(False)


def _seen(op: Op) -> list[tuple[ViewStep, Value]]:
    """The steps of a write, each with what it leads to."""
    steps, old = op.target.steps, op.args[1][0]
    return list(zip(steps, [*(step.base for step in steps[1:]), old], strict=True))


def _composite(step: ViewStep) -> bool:
    return torch_api.kernel_for(step.func, COMPOSITE)


def _retyped(step: ViewStep, like: Value) -> bool:
    """Whether a view reads memory otherwise than what it is a view of, as `imag` and `mH` do."""
    one, other = step.base.type, like.type
    return (one.dtype, one.lazy) != (other.dtype, other.lazy)


def _moved(type: TensorType, begins: Size) -> TensorType:
    """A type in memory that begins so many bytes later."""
    return type.but(offset=type.offset - begins // type.dtype.itemsize)


def _with_body(call: Op, definition: SharedBody, begins: Size) -> Op:
    """A composite's call with its body, by which a lower level has it."""
    body = Instantiation.of(definition, call)
    inside = {out for op in definition.ops for out in op.outs} - body.env.keys()
    body.env |= {out: Value(_moved(out.type, begins)) for out in inside}
    return call.but(below=[op.but(piece_of=call) for op in body.ops(definition.ops)])
