"""Calls that the program itself does not make."""

from typing import Any

from foretrace.ir.op import Tree, Value
from foretrace.trace.recorder import Recorder


def recorded(
    recorder: Recorder, func: Any, args: tuple[Tree, ...], kwargs: dict[str, Tree] | None = None
) -> Value:
    """The value of a call that the program itself does not make."""
    return recorder.call(func, args, kwargs, grad=recorder.grad_mode()).outs[0]
