"""Entry points that are asked for what they refuse."""

from typing import Any

from torch import nn

import foretrace
from tests.refusals.registry import Ask, Program


def captures(fn: Program, *args: Any, **options: Any) -> Ask:
    """`foretrace.capture`, later."""
    return Ask(fn, lambda: foretrace.capture(fn, args, **options))


def compiles(fn: Program, *args: Any, **options: Any) -> Ask:
    """A call of `foretrace.compile`, later."""
    return Ask(fn, lambda: foretrace.compile(fn, **options, fullgraph=True)(*args))


class Calls(nn.Module):
    """A function as a module."""

    def __init__(self, fn: Program) -> None:
        super().__init__()
        self.fn = fn

    def forward(self, *args: Any) -> Any:
        return self.fn(*args)


def exports(fn: Program, *args: Any, **options: Any) -> Ask:
    """`foretrace.export`, later."""
    module = fn if isinstance(fn, nn.Module) else Calls(fn)
    return Ask(fn, lambda: foretrace.export(module, args, **options))


def cuts(fn: Program, *args: Any, cut: str = "joint", **options: Any) -> Ask:
    """A cut of a capture, later."""
    return Ask(fn, lambda: foretrace.capture(fn, args).cut(cut, **options))


def exports_joint(fn: Program, *args: Any, **options: Any) -> Ask:
    """`Program.export` of the joint graph, later."""
    return Ask(fn, lambda: foretrace.capture(fn, args, **options).export("joint", loss=0))
