"""Open a composite whose result is a view of memory allocated inside, where the view is written.

To autograd the view has a base, which no tensor of the program is. A write gives the base a new
history, and gradients of what was computed of the view before reach the base by another path. So
both are summed at the base, and not at the view.
Source: rebase_history in torch/csrc/autograd/variable.cpp.

A view that no op has used before the write stays as it is: all gradients pass through the write.
Its content afterwards is that of the base from then on.
"""

from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise, takewhile

from foretrace.ir.program.op import AS_STRIDED, Op, ViewStep
from foretrace.ir.program.origin import Choice
from foretrace.ir.program.rewriter import Instantiation, copy_ops
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.tracer.functionalization.alias import Alias
from foretrace.tracer.functionalization.builder import RecorderBase

WRITTEN = Choice(
    "autograd", "opened", "its result is a view of memory made inside, and is written after a use"
)


def seen_inside(result: Abstract, inside: Collection[Value]) -> tuple[ViewStep, ...]:
    """The views that lead from memory allocated in a body to its result; none if it is no view."""
    alias: Alias | None = result.ft_alias
    owner, path = (None, []) if alias is None else alias.up_to_history()
    if owner is None or owner.parent is not None or owner.value not in inside:
        return ()
    steps = tuple(member.step for member in path if member.step is not None)
    values = [member.value for member in (owner, *path)]
    return steps if [step.base for step in steps] == values[:-1] else ()


def open_to_base(recorder: RecorderBase, alias: Alias) -> None:
    """Give a written view the base that autograd has, if that was allocated inside a composite."""
    if not recorder.aliasing.seeing:
        return
    owner = alias.up_to_history()[0]
    seen = owner.value
    op = None if seen is None or not seen.type.requires_grad else recorder.aliasing.seeing.get(seen)
    if op is None or not _used_since(recorder, op):
        return
    if op.writes:
        _hung(owner, _wrapped(op), recorder)
    while op is not None and op.definition is not None:
        owner = _hung(owner, _opened(op), recorder)
        op = next((inner for inner in op.region or () if _sees(inner, owner.value)), None)


def note_written(recorder: RecorderBase, old: Value, write: Op) -> None:
    """Note that the result of a write to such a view has its base."""
    if old in recorder.aliasing.seeing:
        recorder.aliasing.seeing[write.outs[0]] = write


def _used_since(recorder: RecorderBase, op: Op) -> bool:
    """Whether an op has read what a composite gave."""
    (out,) = op.outs
    since = reversed(recorder.scope.ops if recorder.inside else recorder.scope.log)
    return any(out in later.operands for later in takewhile(lambda each: each is not op, since))


def _sees(op: Op, value: Value | None) -> bool:
    return value in op.outs and op.definition is not None and bool(op.definition.seen)


def _opened(op: Op) -> list[ViewStep]:
    """Open a composite; the steps lead to its result."""
    definition = op.definition
    if definition is None:
        raise AssertionError(op)
    body = Instantiation.of(definition, op)
    op.below = body.ops(definition.ops)
    op.choice = op.choice if op.opened else WRITTEN
    return list(map(body.step, definition.seen))


def _wrapped(write: Op) -> list[ViewStep]:
    """Turn the result of a write into a view of a new base."""
    (seen,) = write.outs
    base = Value(seen.type, seen.hint)
    body = copy_ops(write.region or (), {seen: base}, write)
    args = (base, list(seen.type.shape), list(seen.type.stride), seen.type.offset)
    origin = replace(write.origin, grad_mode=True)  # autograd takes it again in any mode
    view = Op(AS_STRIDED, args, {}, seen, (seen,), origin=origin)
    write.below = [write.but(outs=(base,), result=base, below=body), view]
    (write.target, write.args), write.writes, write.choice = write.called, False, WRITTEN
    return [ViewStep(AS_STRIDED, args, {}, base, 0, grad_mode=True, followed=True)]


def _hung(alias: Alias, steps: list[ViewStep], recorder: RecorderBase) -> Alias:
    """Place a tensor below what it is a view of, which is returned."""
    owner = at = Alias(recorder.abstract(steps[0].base), None, None)
    owner.version, owner.since = alias.version, alias.since
    for step, following in pairwise(steps):
        below = Alias(recorder.abstract(following.base), at, step)
        at.children.append(below)
        below.since, at = alias.since, below
    alias.parent, alias.step = at, steps[-1]
    alias.distance = alias.last.type.begins - alias.step.base.type.begins
    at.children.append(alias)
    return owner
