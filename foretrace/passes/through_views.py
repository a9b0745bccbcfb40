"""Writes through views, as autograd follows them: in place, on a copy of what is viewed.

A value form adds two gradients of the base: of what the write leaves, and of what it reads. Eager
has one, in which the part that was written is put in place (CopySlices). The sum is that to the
last bit but for zeros: 0.0 and -0.0 give 0.0, and a dropout gives many. It lies as the base, too.
Source: torch/csrc/autograd/functions/tensor.cpp.
"""

from collections.abc import Iterator

from foretrace import torch_api
from foretrace.ir.op import AS_STRIDED, Op, Value, Write
from foretrace.passes.history_ops import called, copied

COMPOSITE = "CompositeImplicitAutograd"
WHY = "autograd puts the gradient of the part that was written in the place of that of the whole"


def writes_through_views(op: Op) -> bool:
    """Whether autograd follows a write to a view of what it follows, all of one dtype."""
    target = op.target
    if not (isinstance(target, Write) and target.followed and target.steps):
        return False
    base, (old, *_) = op.args[0], op.args[1]
    if not base.type.requires_grad:
        return False
    return all(s.base.type.dtype == old.type.dtype and not s.several for s in target.steps)


def through_views(op: Op) -> Iterator[Op]:
    """The write itself, through views of a copy of the base."""
    write, (base, given), (view,) = op.target, op.args, op.outs
    steps, begins = write.steps, write.steps[0].base.type.offset
    yield from copied(op, base, view, WHY)
    for step, like in zip(steps, [*(s.base for s in steps[1:]), given[0]], strict=True):
        func, (args, kwargs) = step.func, step.of(view)
        view = Value(like.type.but(offset=like.type.offset - begins, requires_grad=True))
        if torch_api.kernel_for(func, COMPOSITE):
            seen = list(view.type.shape), list(view.type.stride), view.type.offset
            func, args, kwargs = AS_STRIDED, (args[0], *seen), {}
        yield called(op, func, args, view, WHY, kwargs)
    done = Value(view.type)
    yield called(op, write.func, (view, *given[1:]), done, WHY, op.kwargs)
