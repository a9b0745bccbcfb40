"""What a program may not have done with tensor subclasses, seen when its run has ended."""

from collections.abc import Iterable

from foretrace.errors import Frame, Refusal
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.subclass_types import Unwrap
from foretrace.tracer.functionalization.builder import DETACH, RecorderBase


def check_writes(recorder: RecorderBase) -> None:
    """Refuse writes to what is wrapped, and to a leaf with which the program goes on.

    Raises:
        Refusal: there are such.
    """
    _check_unwritten(recorder)
    _check_leaves(recorder)


def _check_unwritten(recorder: RecorderBase) -> None:
    """Refuse a run in which memory was written that a tensor of its own class holds.

    Raises:
        Refusal: with the line that wrote.
    """
    if not recorder.aliasing.in_subclasses:
        return
    for op in recorder.scope.log:
        if op.writes and not recorder.aliasing.in_subclasses.isdisjoint(op.operands[:1]):
            raise Refusal(
                "the program writes to memory that a tensor class of its own holds",
                kind="unsupported tensor",
                at=op.origin.frame,
                do=("write to a clone", "or do it outside of the captured program"),
            )


def check_wrapped_leaves(recorder: RecorderBase, returned: Iterable[Value]) -> None:
    """Refuse a run that goes on, or ends, with a leaf that a tensor of a class of its own holds.

    Autograd would follow it to the leaf, of which the graph knows the memory alone.

    Raises:
        Refusal: with the line that goes on.
    """
    leaves = set[Value]()
    for op in recorder.scope.log if recorder.aliasing.in_subclasses else ():
        if isinstance(op.target, Unwrap):
            followed = dict(op.operands[0].type.wrapped.followed)
            named = zip(op.target.names, op.outs, strict=True)
            leaves.update(out for name, out in named if name in followed)
        goes_on = op.origin.grad_mode and any(out.type.differentiable for out in op.outs)
        if goes_on and op.target is not DETACH and not leaves.isdisjoint(op.operands):
            raise _goes_on(op.origin.frame)
    if not leaves.isdisjoint(returned):
        raise _goes_on(None)


def _goes_on(at: Frame | None) -> Refusal:
    return Refusal(
        "the program itself has a leaf that a tensor of a class of its own holds, and autograd"
        " would follow it there",
        kind="unsupported tensor",
        at=at,
        do=("use its detach()", "or pass the leaf as an argument"),
    )


def _check_leaves(recorder: RecorderBase) -> None:
    """Refuse a run that goes on with a leaf of a tensor class of its own, to which it wrote.

    The graph has another value for it, from which no gradient comes back to the leaf.

    Raises:
        Refusal: with the line that goes on.
    """
    leaves = recorder.aliasing.rewritten_leaves
    for op in recorder.scope.log if leaves else ():
        if op.followed and not leaves.isdisjoint(op.operands):
            raise Refusal(
                "the program writes to a leaf of a tensor class of its own, and goes on with it"
                " where autograd follows",
                kind="unsupported tensor",
                at=op.origin.frame,
                do=("use the operator that returns a new tensor", "or write to it outside"),
            )
