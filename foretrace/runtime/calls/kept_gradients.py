"""Tensors that a program returns or leaves and that keep a gradient: leaves, retained ones.

A pair of graphs is one node of autograd. A leaf that the program creates, or a tensor inside, is no
input of that node, so nothing that arrives inside would be kept for it. Nor is an input of which
the program sets `requires_grad`: it is no leaf yet when the graph is called.
"""

from collections.abc import Iterator

from foretrace.autograd.backward.gradient_hooks import standing, written_over
from foretrace.errors import Frame, Refusal
from foretrace.ir.program.recording import Recording
from foretrace.ir.program.tensor_effects import SetRequiresGrad
from foretrace.ir.program.walk import called_in, makes_leaf
from foretrace.ir.values.value import Value
from foretrace.tracer.recorder.autograd_hooks import RETAIN


def check_kept(recorded: Recording) -> None:
    """Refuse that a returned tensor keeps what arrives through another one.

    Raises:
        Refusal: kind `hook`, at the line that retains the gradient or creates the leaf.
    """
    returned = {output.value for output in recorded.outputs if isinstance(output.value, Value)}
    for value, at, what in _keeping(recorded, returned):
        behind = _depending_on(value, recorded) & returned
        if any(map(recorded.followed, behind)):
            raise Refusal(
                f"the program returns {what}, or leaves it, and another result depends on it: where"
                " the forward is one graph, no gradient arrives there",
                kind="hook",
                at=at,
                do=(
                    'use backend="eager", whose ops autograd follows one by one',
                    "or create the tensor outside and pass it, or return a detached one",
                ),
            )


def _keeping(
    recorded: Recording, returned: set[Value]
) -> Iterator[tuple[Value, Frame | None, str]]:
    """The tensors that keep a gradient; the line, and what each is."""
    for op in standing(recorded):
        if op.target.way == RETAIN:
            (value,) = op.operands
            if not returned.isdisjoint(written_over(value, recorded)):
                yield value, op.origin.frame, "a tensor that keeps its gradient (retain_grad)"
    yield from _switched_on(recorded)
    for value in returned if recorded.makes_leaves else ():
        if recorded.is_new_leaf(value):
            yield value, recorded.defined_at(value), "a leaf that requires grad"


def _switched_on(recorded: Recording) -> Iterator[tuple[Value, Frame | None, str]]:
    """The inputs that require grad since the program has set it, written by then or not."""
    switched = {effect.index for effect in recorded.effects_of(SetRequiresGrad) if effect.on}
    if not switched:
        return
    before = {recorded.inputs[index].value for index in switched}
    before.update(m.value for m in recorded.mutations if m.index in switched)
    for op in called_in(recorded.ops):
        if makes_leaf(op) and not before.isdisjoint(op.operands):
            yield op.outs[0], op.origin.frame, "an input of which it sets `requires_grad`"


def _depending_on(value: Value, recorded: Recording) -> set[Value]:
    """What autograd computes from a value, as eager follows it; not the value itself."""
    found = {value}
    for op in called_in(recorded.ops):
        if op.origin.grad_mode and not found.isdisjoint(op.operands):
            found.update(out for out in op.outs if out.type.requires_grad)
    return found - {value}
