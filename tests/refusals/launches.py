"""Kernels of Triton's that a program launches itself; where Triton is missing, one like its own."""

import ctypes
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from tests.refusals.asks import captures
from tests.refusals.follow import captured
from tests.refusals.registry import Ask, refuses

X = torch.randn(6, 8)
PLACE = "triton.runtime.jit"
try:
    from triton.runtime.jit import KernelInterface
except ImportError:

    class KernelInterface:  # type: ignore[no-redef]
        """What all of Triton's kernels are: launched by `kernel[grid](...)`."""

        def __getitem__(self, grid: Any) -> Callable[..., Any]:
            return lambda *args: self.run(*args, grid=grid, warmup=False)  # type: ignore[attr-defined]


class Copies(KernelInterface):  # type: ignore[misc]
    """A kernel that reads and writes memory of which torch knows nothing."""

    def run(self, x: Tensor, out: Tensor, *, grid: Any, warmup: bool) -> None:
        ctypes.memmove(out.data_ptr(), x.data_ptr(), x.nbytes)


KERNEL: Any = Copies()


def launches(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    KERNEL[(1,)](x, out)  # here
    return out * 2


@torch.library.custom_op("foretrace_tests::copies_by_a_kernel", mutates_args=())
def copies(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    KERNEL[(1,)](x, out)
    return out


copies.register_fake(torch.empty_like)


def copies_in_its_fake(x: Tensor) -> Tensor:
    """As an operator of `triton_op` does under Triton's interpreter."""
    out = torch.empty_like(x)
    KERNEL[(1,)](x, out)  # here
    return out


OF_TRITON = torch.library.triton_op("foretrace_tests::copies_in_its_fake", mutates_args=())(
    copies_in_its_fake
)


def by_an_operator(x: Tensor) -> Tensor:
    return copies(x) * 2


def where_triton_is(call: Callable[[], object]) -> Callable[[], Any]:
    """The call where the module of kernels is imported."""
    found = ModuleType(PLACE)
    found.KernelInterface = KernelInterface  # type: ignore[attr-defined]

    def called() -> object:
        with mock.patch.dict(sys.modules, {PLACE: sys.modules.get(PLACE, found)}):
            return call()

    return called


LAUNCHED = "session/patches/triton_launches.py:_refusal"
WAYS = (
    where_triton_is(captured(lambda copied: copied * 2, launches(X) / 2)),
    where_triton_is(captured(by_an_operator, X)),
)
refuses("unsupported", LAUNCHED).when(
    Ask(launches, where_triton_is(captures(launches, X))), *WAYS, at=launches
)


def calls_what_launches(x: Tensor) -> Tensor:
    return OF_TRITON(x) * 2


refuses("unsupported", LAUNCHED).when(
    where_triton_is(captures(calls_what_launches, X)), *WAYS, at=copies_in_its_fake
)
