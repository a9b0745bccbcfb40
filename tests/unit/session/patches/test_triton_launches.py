"""A launch is refused on what is recorded alone, and is as it was afterwards."""

import threading
from typing import Any

import torch
from torch import Tensor

from foretrace.session.patches.triton_launches import unlaunched
from tests.refusals.launches import KERNEL, KernelInterface, where_triton_is


def test_what_has_memory_is_launched_on_while_a_program_is_captured() -> None:
    x, seen = torch.randn(5), list[Tensor]()
    recorder: Any = None  # it is told of refusals alone

    def launch() -> None:
        out = torch.zeros(5)
        KERNEL[(1,)](x, out)
        seen.append(out)

    def launches_around() -> None:
        with unlaunched(recorder):
            assert vars(KernelInterface)["__getitem__"] is not before
            launch()
            other = threading.Thread(target=launch)
            other.start()
            other.join()

    before = vars(KernelInterface)["__getitem__"]
    where_triton_is(launches_around)()
    assert len(seen) == 2
    assert all(torch.equal(out, x) for out in seen)
    assert vars(KernelInterface)["__getitem__"] is before
