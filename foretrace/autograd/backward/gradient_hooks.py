"""Hooks on gradients, in a walk back and in a forward graph."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol
from weakref import ref

import torch
from torch.utils.hooks import BackwardHook

from foretrace.autograd.derivatives.formula_tracer import Tape
from foretrace.autograd.derivatives.run_hooks import name_of_hook, run_hook
from foretrace.autograd.eager_history.op_facts import locate
from foretrace.autograd.eager_history.version_counters import view_positions_of
from foretrace.errors import Frame, Refusal
from foretrace.ir.program.interface import Input
from foretrace.ir.program.op import Op
from foretrace.ir.program.origin import RuleName
from foretrace.ir.program.recording import Recording
from foretrace.ir.program.walk import called_in, every_op, outs_in
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.python_state.effects.leaks import LEFT_BEHIND, abstract_in, collected
from foretrace.python_state.reads.backward_reads import BackwardReads
from foretrace.python_state.snapshot.backward_state import as_left
from foretrace.python_state.snapshot.heap import HeapSnapshot
from foretrace.tracer.recorder.autograd_hooks import GRADIENT, RETAIN, SAVED
from foretrace.tracer.recorder.function_target import Context


class Walk(Protocol):
    """The walk back."""

    gradients: dict[Value, Value]
    finished: set[Value]
    reached: set[Value]
    reads: BackwardReads | None

    def user_tape(self, device: torch.device) -> Tape:
        """What records a hook."""

    @property
    def ops(self) -> list[Op]:
        """What was appended."""


def standing(recorded: Recording) -> list[Op]:
    """The registrations that are left at the end of a run."""
    return [op for op in recorded.hooks if not op.target.removed]


def holds_tensors(op: Op) -> bool:
    """Whether a hook holds a tensor of the run, of which a graph has another."""
    return op.target.holds or any(True for _ in abstract_in([op.target.hook]))


@contextmanager
def state_kept(recorded: Recording, running: "Hooks") -> Iterator[None]:
    """Hooks that run inside find what the program has left in Python, and leave it so.

    Raises:
        Refusal: one changes what is there after it; or the program leaves a tensor there, of which
            a hook would find another.
    """
    hooks = [op for op in standing(recorded) if op.target.way != RETAIN]
    if not hooks:
        yield
        return
    states, frame = recorded.states, hooks[0].origin.frame
    if states:
        raise Refusal(
            f"the program leaves a tensor in {states[0].place.name}, and registers a hook,"
            " which may read it",
            kind="hook",
            at=frame,
            do=("let the hook read a name of the function", "or train by foretrace.compile"),
        )
    with as_left(recorded.changes):
        called = [op.target.hook for op in hooks]
        before = HeapSnapshot([*called, *(getattr(each, "__self__", None) for each in called)])
        try:
            yield
            found = before.bound()
            changed = [each for each in found if not isinstance(each.place.holder, OF_TORCH)]
        finally:
            before.put_back()
    names = [each.name for each in changed] or _kept(running)
    if names:
        raise Refusal(
            f"a hook changes {names[0]}, in the backward, where no graph does",
            kind="hook", at=frame,
            do=("return from the program what the hook is to keep, or its gradient",
                "or train by foretrace.compile, whose hooks run in each backward"),
        )  # fmt: skip


def _kept(hooks: "Hooks") -> list[str]:
    """Whether a hook has kept a gradient where nobody looked: no graph puts it there."""
    collected(lambda: all(seen() is None for seen in hooks.seen))
    kept = [tensor for seen in hooks.seen if (tensor := seen()) is not None]
    LEFT_BEHIND.strand(kept)
    return ["what outlives it, and keeps a gradient there"] if kept else []


OF_TORCH = (BackwardHook, Context)
"""What keeps gradients for itself: torch's hooks of modules, the context of a Function"""


class Hooks:
    """The gradient hooks of a program, by value; each runs once its whole gradient is there."""

    def __init__(self, standing: Iterable[Op]) -> None:
        self._waiting: dict[Value, list[Op]] = {}
        self.seen: list[ref[Abstract]] = []
        """the tensors that hooks computed with"""
        for op in standing:
            if op.target.way == GRADIENT:
                self._waiting.setdefault(op.operands[0], []).append(op)

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def of(self, op: Op, walk: Walk) -> None:
        """Run those of what an op gives, where torch's engine comes to it."""
        if not any(out in walk.gradients or out in walk.reached for out in op.outs):
            return
        for out in op.outs:
            self._run(out, walk, op)

    def of_inputs(self, inputs: Iterable[Input], walk: Walk) -> None:
        """Run those of inputs.

        Raises:
            Refusal: one is of a tensor that is there at the next call, which then has two.
        """
        for item in inputs:
            if item.value in walk.gradients or item.value in walk.reached:
                for op in self._waiting.get(item.value, ()):
                    _check_argument(op, item)
                self._run(item.value, walk, None)

    def _run(self, value: Value, walk: Walk, maker: Op | None) -> None:
        for op in self._waiting.pop(value, ()):
            gradient = walk.gradients.get(value)
            if op.target.several:
                raise _several(op)
            if walk.reads is not None:
                walk.reads.of_hook(op.target)
            try:
                done = run_hook(op, gradient, walk.user_tape)
            except Refusal as refusal:
                raise locate(refusal, op) from None
            self.seen += done.seen
            if done.written and gradient is not None:
                _check_alone(op, gradient, value, walk)
            of = f"on the result of {maker.target}" if maker is not None else "on an input"
            walk.ops.extend(as_is(done.ops, maker or op, name_of_hook(op, of)))
            if done.gradient is not None:
                walk.gradients[value] = done.gradient


def as_is(ops: Iterable[Op], because: Op, rule: RuleName) -> Iterator[Op]:
    """What a hook did, as ops of a backward."""
    for op in ops:
        yield op.but(because=because, rule=rule)


def hooked(item: Input, at: Frame | None) -> Refusal:
    """An input on which a hook was registered before."""
    return Refusal(
        f"{item.role} has a hook on its gradient, which no graph contains",
        kind="hook",
        at=at,
        do="remove the hook, and change the gradient that the joint cut returns",
    )


def _several(op: Op) -> Refusal:
    return locate(
        Refusal(
            "a hook for several gradients (register_multi_grad_hook) in a backward that the program"
            " does not run itself: it asks torch's engine what that runs",
            kind="hook",
            do=(
                "let the program run the backward: torch.autograd.grad, or backward()",
                "or register a hook on each: y.register_hook",
            ),
        ),
        op,
    )


def _check_argument(op: Op, item: Input) -> None:
    if item.role.kind != "input":
        raise locate(
            Refusal(
                f"the program registers a hook on the {item.role} at each call, and eager's later"
                " calls run those of the earlier ones, too",
                kind="hook",
                do=(
                    "remove it before the program returns, by its handle",
                    (
                        "or register it on what is computed of it: "
                        "w = self.weight.view_as(self.weight)"
                    ),
                ),
            ),
            op,
        )


def _check_alone(op: Op, gradient: Value, value: Value, walk: Walk) -> None:
    """Refuse a write to a gradient that others have, as memory that they see."""
    bases = {
        each.outs[out]: base
        for each in every_op(walk.ops)
        for out, base, _ in view_positions_of(each)
    }

    def memory(of: Value) -> Value:
        while of in bases:
            of = bases[of]
        return of

    own, computed = memory(gradient), {out for each in every_op(walk.ops) for out in each.outs}
    others = (g for v, g in walk.gradients.items() if v is not value and v not in walk.finished)
    if own not in computed or any(memory(other) is own for other in others):
        raise locate(
            Refusal(
                f"the hook {op.target.name} writes to its gradient, which others see, too",
                kind="shared gradient",
                do="write to a clone of it: g = g.clone()",
            ),
            op,
        )


# ---- forward graphs ------------------------------------------------------------------------------


def with_hooks(ops: Sequence[Op], recorded: Recording) -> list[Op]:
    """The ops of a forward graph that is trained, and the registrations, where the run had them.

    So copies that stand for a write precede them. Those that hold a tensor of the run are left
    out, and those on values that the graph does not have: see `left_out`.
    """
    there = {item.value for item in recorded.inputs}.union(*(op.outs for op in ops))
    placed = {
        op
        for op in standing(recorded)
        if op.target.way != SAVED and op.operands[0] in there and not holds_tensors(op)
    }
    if not placed:
        return list(ops)
    _check_unwritten(placed, recorded)
    order, waiting = dict[Value, int](), list[tuple[int, Op]]()
    for place, op in enumerate(every_op(recorded.ops)):
        if op in placed:
            waiting.append((place, op))
        for out in op.outs:
            order.setdefault(out, place)
    found = list[Op]()
    for op in ops:
        now = max((order.get(out, -1) for out in op.outs), default=-1)
        while waiting and waiting[0][0] < now:
            found.append(waiting.pop(0)[1])
        found.append(op)
    return [*found, *(op for _, op in waiting)]


def _check_unwritten(hooks: Iterable[Op], recorded: Recording) -> None:
    """Refuse a retained gradient of a returned tensor that is written to afterwards.

    In torch the new content has the retained gradient; in a graph it is another tensor.
    """
    for op in hooks:
        if op.target.way == RETAIN:
            (value,) = op.operands
            later = written_over(value, recorded) - {value}
            if any(output.value in later for output in recorded.outputs):
                raise Refusal(
                    "the program writes to a tensor after retain_grad(), and returns it",
                    kind="hook",
                    at=op.origin.frame,
                    do="call retain_grad() after the last write",
                )


def written_over(value: Value, recorded: Recording) -> set[Value]:
    """A value, and what the program has written over it."""
    found = {value}
    for op in called_in(recorded.ops):
        if op.writes and not found.isdisjoint(op.operands[:1]):
            found.update(op.outs)
    return found


def left_out(recorded: Recording, graph: Iterable[Op]) -> dict[Value, Op]:
    """What has a hook that a forward graph has not, though a gradient may get there."""
    if not recorded.hooks:
        return {}
    ops = list(graph)
    missing = [op for op in standing(recorded) if op.target.way != RETAIN and op not in ops]
    inside = {out for op in ops for out in outs_in(op.region or ())}
    return {
        value: op for op in missing for value in op.operands if holds_tensors(op) or value in inside
    }
