"""Which ways a step goes as Python: the lines that run, and the operators that are called."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.steps import BATCHES, Build, built

TESTS, TORCH = Path(__file__).parents[1], Path(torch.__file__).parent
FOLLOWED = tuple(f"{folder}/" for folder in (TESTS, TORCH / "optim", TORCH / "amp", TORCH / "nn"))
"""Whose lines are a step's: its own, and those of what it trains with"""

Way = tuple[tuple[tuple[CodeType, int], ...], tuple[str, ...]]
"""Lines and operators, in order"""


class _Operators(TorchDispatchMode):
    """What is called of torch, above all in backwards, which have no lines."""

    def __init__(self) -> None:
        super().__init__()
        self.names = list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@contextmanager
def _lines() -> Iterator[list[tuple[CodeType, int]]]:
    """The lines that run inside."""
    found = list[tuple[CodeType, int]]()

    def within(frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        if event == "line":
            found.append((frame.f_code, frame.f_lineno))
        return within

    def entered(frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        return within if frame.f_code.co_filename.startswith(FOLLOWED) else None

    before = sys.gettrace()
    sys.settrace(entered)
    try:
        yield found
    finally:
        sys.settrace(before)


def ways_of_python(build: Build, batches: int = BATCHES) -> list[Way]:
    """The way of each batch."""
    loop, found = built(build), list[Way]()
    for index in range(batches):
        given, operators = loop.batch(index), _Operators()
        with _lines() as lines, operators:
            loop.step(*given)
        found.append((tuple(lines), tuple(operators.names)))
    return found
