"""Hooks on gradients, where the program itself goes back: their Python is the program's own.

They run where the engine comes to the value that they are of, over what stands for the gradient in
the program; what they keep, they keep. Those that were on a parameter before the program run, too.
"""

from collections.abc import Iterable
from typing import Any, Protocol

import torch

from foretrace.autograd.backward.record_walk import WalkRecord
from foretrace.autograd.eager_history.op_facts import locate
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.source.call_site import asking_line
from foretrace.ir.values.value import Value
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.tracer.recorder.autograd_hooks import GRADIENT, RETAIN, multi_grad_name

ANY = "wrapped_fn"
"""What register_multi_grad_hook calls a hook for any of several gradients (2.13)"""


class Walk(Protocol):
    """The walk of a gradient inside a program."""

    gradients: dict[Value, Value]
    reached: set[Value]
    finished: set[Value]
    program: WalkRecord

    def now(self, gradient: Value) -> Value:
        """A gradient as the program has it."""

    def as_program(self) -> Any:
        """Inside, Python of the program's runs."""


class HooksInside:
    """Runs the hooks that are registered when a backward begins, each in each backward.

    Args:
        registered: the registrations of the program so far.
        retained: the tensors that keep their gradients, by value.
    """

    def __init__(self, registered: Iterable[Op], retained: dict[Value, Any]) -> None:
        self._hooks: dict[Value, list[Op]] = {}
        self._retained, self._done = retained, set[Value]()
        for op in registered:
            if op.target.way in (GRADIENT, RETAIN) and not op.target.removed:
                self._hooks.setdefault(op.operands[0], []).append(op)

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def of(self, op: Op, walk: Walk) -> None:
        """Run those of what an op gives, where torch's engine comes to it.

        Of several results each has its turn if a gradient comes to one: with None for the others.
        """
        if not self._hooks or self._hooks.keys().isdisjoint(op.outs):
            return
        if any(out in walk.gradients or out in walk.reached for out in op.outs):
            for out in op.outs:
                if out in self._hooks:
                    self.of_value(out, walk)

    def of_value(self, value: Value, walk: Walk, before: Iterable[Any] = ()) -> None:
        """Run those of a value; `before`: hooks that its tensor had before the program."""
        if value in self._done:
            return
        self._done.add(value)
        own = self._hooks.get(value, ())
        hooks = [(op.target.hook, op) for op in own if op.target.way == GRADIENT]
        for each in before:
            _check_any(each)
        for hook, op in (*((each, None) for each in before), *hooks):
            self._run(hook, op, value, walk)
        if any(op.target.way == RETAIN for op in own) and value in walk.gradients:
            self._retain(value, walk)

    def _run(self, hook: Any, op: Op | None, value: Value, walk: Walk) -> None:
        pending = {
            v: walk.program.tensor(walk.now(g))
            for v, g in walk.gradients.items()
            if v is value or v not in walk.finished
        }
        gradient = pending.get(value)
        with walk.as_program():
            new = hook(gradient)
        for each, tensor in pending.items():  # a hook may write to what others see, too
            walk.gradients[each] = walk.program.value_of(tensor)
        if new is None:
            return
        _check(hook, new, gradient, op)
        walk.gradients[value] = walk.program.value_of(new)

    def _retain(self, value: Value, walk: Walk) -> None:
        """Source: VariableHooks::retain_grad in torch/csrc/autograd/variable.cpp."""
        kept = self._retained.get(value)
        tensor = None if kept is None else kept()
        if tensor is None:
            return
        gradient = walk.program.tensor(walk.now(walk.gradients[value]))
        before = tensor.grad
        tensor.grad = (
            gradient.clone(memory_format=torch.contiguous_format)
            if before is None
            else before + gradient
        )


def _check_any(hook: Any) -> None:
    """Refuse a hook from before that remembers each backward by its number: each call has one."""
    if multi_grad_name(hook) == ANY:
        raise Refusal(
            "a hook from before the program for any of several gradients (register_multi_grad_hook,"
            ' mode="any") remembers each backward',
            kind="hook",
            at=asking_line(),
            do='register it inside, and remove it there, or use mode="all"',
        )


def _check(hook: Any, new: Any, gradient: Any, op: Op | None) -> None:
    """Refuse what eager refuses of a hook.

    Source: check_single_result in torch/csrc/autograd/python_hook.cpp.
    """
    facts = ("shape", "dtype", "device")
    fits = isinstance(new, Abstract) and gradient is not None
    if fits and all(getattr(new, fact) == getattr(gradient, fact) for fact in facts):
        return
    name = str(getattr(hook, "__name__", type(hook).__name__))
    refusal = Refusal(
        f"the hook {name} gives what is no gradient of the same shape, dtype and device",
        kind="wrong hook",
        do="let it return a gradient of the same shape, dtype and device, or None",
    )
    raise refusal if op is None else locate(refusal, op)
