"""What a process holds after many captures of different programs: eager beside foretrace.

    python bench/memory.py [--programs N] [--every N]

Each program is a chain of twelve operators with constants and sizes of its own; every fifth is
captured with open sizes. `eager` runs it forward and backward; `foretrace` captures it, cuts the
joint graph and calls that. Each runs in a process of its own, and nothing of a program is held
after it. Told is how many MiB of memory (RSS) the process has more than before the first.

Kernels fill caches of their own: oneDNN keeps 1,024 primitives, one for each size of an operator
such as `gelu`. `eager` shows how much that is.
"""

import argparse
import gc
import os
import random
import sys
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

import foretrace

UNARY = (
    torch.sin, torch.cos, torch.tanh, torch.sigmoid, torch.relu, torch.exp, torch.neg, torch.abs,
    torch.square, torch.erf, torch.log1p, functional.softplus, functional.silu, functional.gelu,
    functional.mish,
)  # fmt: skip
BINARY = (
    torch.add, torch.mul, torch.sub, torch.div, torch.maximum, torch.minimum, torch.atan2,
    torch.hypot,
)  # fmt: skip
Program = Callable[[Tensor, Tensor], Tensor]


def made(number: int) -> tuple[Program, tuple[Tensor, Tensor]]:
    """A program of its own, and its inputs."""
    draw = random.Random(number)  # noqa: S311 - no secret
    steps = [(draw.choice(UNARY), draw.random(), draw.choice(BINARY)) for _ in range(6)]

    def program(x: Tensor, y: Tensor) -> Tensor:
        for one, factor, two in steps:
            x = two(one(x) * factor, y)
        return x.sum()

    size = 2 + number % 97, 2 + (number * 7) % 89
    return program, (torch.rand(size, requires_grad=True), torch.rand(size))


def eager(number: int) -> None:
    """One step."""
    program, inputs = made(number)
    program(*inputs).backward()


def captured(number: int) -> None:
    """One capture, joint cut and call."""
    program, inputs = made(number)
    shapes: Any = True if number % 5 == 0 else None
    foretrace.capture(program, inputs, dynamic_shapes=shapes).cut("joint", loss=0)(*inputs)


CASES = {"eager": eager, "foretrace": captured}


def resident() -> float:
    """MiB of memory that the process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def growth(case: str, count: int, every: int) -> Iterator[float]:
    """How much it has more after each `every` programs."""
    for number in (0, 5):  # what is imported late
        CASES[case](number)
    gc.collect()
    before = resident()
    for number in range(1, count + 1):
        CASES[case](number)
        if number % every == 0:
            gc.collect()
            yield resident() - before


def _measured(case: str, count: int, every: int) -> list[float]:
    torch.set_num_threads(1)
    return list(growth(case, count, every))


def main() -> int:
    """Both, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--every", type=int, default=500)
    given = parser.parse_args()
    with get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        jobs = {
            case: pool.apply_async(_measured, (case, given.programs, given.every))
            for case in CASES
        }  # fmt: skip
        found = {case: job.get() for case, job in jobs.items()}
    table = Table("MiB more after", *map(str, range(given.every, given.programs + 1, given.every)))
    for case, sizes in found.items():
        table.add_row(case, *(f"{size:.0f}" for size in sizes))
    Console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
