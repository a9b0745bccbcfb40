"""Inputs that share memory: one that is written to must not."""

from collections.abc import Callable
from typing import Any

import torch

from foretrace import torch_api
from foretrace.errors import Frame, Refusal


def check_shared_memory(
    real: list[Any], written: set[int], at: Callable[[int], Frame | None] = lambda _: None
) -> None:
    """Refuse a write to an input whose memory another input shares; `at`: the line of the write."""
    if not written:
        return
    owners: dict[int, int] = {}
    for index, tensor in enumerate(real):
        if not _has_memory(tensor):
            continue
        storage = tensor.untyped_storage()
        # one without bytes is shared as well: by what counts the writes that a backward minds
        other = owners.setdefault(storage.data_ptr() or id(storage), index)
        if other != index and {other, index} & written:
            raise Refusal(
                "the program writes to an input whose memory another input shares",
                kind="aliased inputs",
                at=at(other if other in written else index),
                do="pass a clone, or only one of the two and take the view inside",
            )


def _has_memory(given: Any) -> bool:
    fake = isinstance(given, torch_api.FakeTensor)
    known = isinstance(given, torch.Tensor) and not fake and given.device.type != "meta"
    return known and given.layout is torch.strided
