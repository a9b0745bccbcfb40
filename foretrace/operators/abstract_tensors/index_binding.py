"""Where torch's versions index in different ways, the installed binding is asked for its own."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from foretrace import torch_api

aten = torch.ops.aten


@cache
def fills() -> bool:
    """Whether `x[i] = number` fills with the number: from torch 2.15 on; before, with a tensor."""
    return aten.fill_.Scalar in _calls("cpu", lambda tensor: tensor.__setitem__(..., 1))


@cache
def lifts_on_meta() -> bool:
    """Whether a list that indexes a meta tensor is lifted, as others are: from torch 2.15 on."""
    return aten.lift_fresh.default in _calls("meta", lambda tensor: tensor[[0]])


def _calls(device: str, use: Callable[[torch.Tensor], Any]) -> list[Any]:
    """The operators that a use of a tensor reaches."""
    with torch_api.no_dispatch_modes(), torch_api.no_torch_function():
        tensor, calls = torch.zeros(1, device=device), _Calls()
        with calls:
            use(tensor)
    return calls.met


class _Calls(torch_api.TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.met: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.met.append(func)
        return func(*args, **(kwargs or {}))
