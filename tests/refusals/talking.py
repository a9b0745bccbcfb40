"""Programs that talk to other processes; the group here is torch's fake one, of one process.

That nothing is sent is asked of two real ones: test_two_ranks.py.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import foretrace
from tests.refusals.follow import captured, same
from tests.refusals.registry import Program, refuses

X = torch.linspace(-1, 1, 8)
STORE = dist.HashStore()


@contextmanager
def group() -> Iterator[None]:
    """There is a process group inside."""
    there = dist.is_initialized()
    if not there:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        if not there:
            dist.destroy_process_group()


def in_group(follow: Callable[[], object]) -> Callable[[], None]:
    def inside() -> None:
        with group():
            follow()

    return inside


def doubles(x: Tensor) -> Tensor:
    return x * 2


def reduces(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)  # here
    return y


def reduces_functionally(x: Tensor) -> Tensor:
    return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 0  # type: ignore[arg-type]


def tells(x: Tensor) -> Tensor:
    dist.all_gather_object([None], {"loss": 1})  # here
    return x * 2


def writes_to_a_store(x: Tensor) -> Tensor:
    STORE.set("key", "1")  # here
    return x * 2


def by_pieces(fn: Program) -> Callable[[], None]:
    def follow() -> None:
        with warnings.catch_warnings(action="ignore"):
            made = foretrace.compile(fn)
        with group(), warnings.catch_warnings(action="ignore"):
            same(made(X), fn(X))
            assert made.breaks[0].refusal.kind == "communication"

    return follow


def refused(fn: Program, *args: Any) -> Callable[[], None]:
    return in_group(lambda: foretrace.capture(fn, args))


SITE = "operators/inference/communication.py:communicates"
FUNCTIONAL = in_group(captured(reduces_functionally, X))
for program in (reduces, tells, writes_to_a_store):
    refuses("communication", SITE).when(
        refused(program, X), captured(doubles, X), FUNCTIONAL, by_pieces(program), at=program
    )
