"""A program that finds other content at a later call."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import foretrace


def captured_again_after(
    program: Callable[[Tensor], Tensor], change: Callable[[], object], x: Tensor
) -> None:
    """Compiled, it is as eager before and after a change, and is captured once more for it."""
    compiled: Any = foretrace.compile(program, fullgraph=True)
    for _ in range(2):
        assert torch.equal(compiled(x), program(x))
    change()
    assert torch.equal(compiled(x), program(x))
    assert len(compiled.recaptures) == 1
