"""Differences in indexing between versions of torch, probed on the installed binding."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from foretrace import torch_api

aten = torch.ops.aten


@cache
def fills() -> bool:
    """Whether `x[i] = number` fills with the number (torch 2.15), or with a tensor (before)."""
    return aten.fill_.Scalar in _calls("cpu", lambda tensor: tensor.__setitem__(..., 1))


@cache
def lifts_on_meta() -> bool:
    """Whether a list that indexes a meta tensor is lifted: from torch 2.15 on."""
    return aten.lift_fresh.default in _calls("meta", lambda tensor: tensor[[0]])


def _calls(device: str, use: Callable[[torch.Tensor], Any]) -> list[Any]:
    """The operators that a use of a tensor calls."""
    with torch_api.no_dispatch_modes(), torch_api.no_torch_function():
        tensor, calls = torch.zeros(1, device=device), _Calls()
        with calls:
            use(tensor)
    return calls.functions


class _Calls(torch_api.TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.functions: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions.append(func)
        return func(*args, **(kwargs or {}))
