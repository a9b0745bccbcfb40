"""What pieces cost and gain: programs with a hole, eager against `foretrace.compile`, warm.

    python bench/pieces.py [--calls N] [--large] [--overhead]

Each program of `tests/pieces` is trained: a forward and a backward, eager and compiled by turns,
each from the same parameters, data and random numbers. Told are the median of eager's times, in
processor's seconds, the median of the ratios of each pair, and the share of the program's operators
that is captured. The programs are tiny, about a millisecond; with `--large` they are wider (256
features, 64 rows). With `--overhead`: a hole around one piece of more and more ops, which says how
many a piece has to have (`LEAST` in foretrace/runtime/graph_breaks/partial_capture.py). Exit code
1: a program is slower than eager by more than 5 %.
"""

import argparse
import contextlib
import copy
import io
import logging
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import foretrace
from foretrace.runtime.graph_breaks import partial_capture as partial
from foretrace.runtime.graph_breaks.coverage import share

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.pieces import more_programs, programs as written
from tests.pieces.programs import HOLES, batch

SLOWER = 1.05
WARM = 12
"""Calls of both before any is counted"""
Call = Callable[[], Any]
Inputs = tuple[Tensor, ...]


def pairs(eager: Call, ours: Call, count: int) -> tuple[list[float], list[float]]:
    """Processor's seconds of calls of both, which take turns in any order."""
    order, seen = random.Random(0), ([], [])  # noqa: S311 - no secret
    calls: list[tuple[Call, list[float]]] = [(eager, seen[0]), (ours, seen[1])]
    for number in range(-WARM, count):
        before = states()
        order.shuffle(calls)
        for call, times in calls:
            put(before)
            start = time.process_time()
            call()
            if number >= 0:
                times.append(time.process_time() - start)
    return seen


def states() -> Any:
    """Of all generators that a program may draw from."""
    return torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002


def put(state: Any) -> None:
    """The generators are in these states."""
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    np.random.set_state(state[2])  # noqa: NPY002


def step(module: nn.Module, call: Callable[..., Tensor], inputs: Inputs) -> Call:
    """A forward and a backward."""

    def run() -> None:
        for parameter in module.parameters():
            parameter.grad = None
        call(*inputs).backward()

    return run


def programs(count: int, names: list[str]) -> bool:
    """All of them; whether none is slower than it may be."""
    good = True
    for name in names or HOLES:
        torch.manual_seed(0)
        eager = HOLES[name].make()
        ours = copy.deepcopy(eager)
        compiled, inputs = foretrace.compile(ours), batch(0)
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                times = pairs(step(eager, eager, inputs), step(ours, compiled, inputs), count)
            except KeyError as missing:  # scipy is looked up where it was imported
                print(f"{name:<28} needs {missing}", file=sys.stderr)
                continue
            captured, total = share(compiled, inputs)
        ratio = statistics.median(after / before for before, after in zip(*times, strict=True))
        good &= ratio <= SLOWER
        print(
            f"{name:<28} eager {statistics.median(times[0]) * 1e6:8.0f} us, pieces {ratio:5.2f}"
            f" times that, {captured}/{total} ops captured, breaks: {len(compiled.breaks)}",
            flush=True,
        )
    return good


class Ops(nn.Module):
    """So many ops."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count, self.w = count, nn.Parameter(torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        """Half of them write nothing that the other half reads again."""
        for _ in range(self.count // 2):
            x = (x * self.w).sin()
        return x


class Around(nn.Module):
    """A hole around them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.piece = Ops(count)

    def forward(self, x: Tensor) -> Tensor:
        """A break, then the piece."""
        torch._dynamo.graph_break()
        out: Tensor = self.piece(x)
        return out


def overhead(count: int) -> None:
    """One piece, of more and more ops, captured however small."""
    partial.LEAST = 0
    x = torch.randn(8, 16)
    for ops in (2, 4, 6, 8, 10, 12, 16, 32):
        eager = Around(ops)
        ours = foretrace.compile(eager)
        times = pairs(lambda net=eager: net(x), lambda net=ours: net(x), count)
        before, after = map(statistics.median, times)
        print(
            f"{ops:3} ops: eager {before * 1e6:6.1f} us, a piece {(after - before) * 1e6:+5.1f} us"
        )


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200, help="calls of each program")
    parser.add_argument("--large", action="store_true", help="wider programs")
    parser.add_argument("--only", nargs="*", default=[], help="names of programs")
    parser.add_argument("--overhead", action="store_true", help="of a piece, by its ops")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.lastResort = logging.NullHandler()
    sys.breakpointhook = lambda *args, **kwargs: None
    if options.overhead:
        overhead(options.calls * 10)
        return 0
    with contextlib.suppress(ImportError):
        __import__("scipy.optimize")
    if options.large:
        for each in (written, more_programs):
            each.D, each.ROWS = 256, 64
    return 0 if programs(options.calls, options.only) else 1


if __name__ == "__main__":
    sys.exit(main())
