"""What pieces cost and gain: programs with a hole, eager against `foretrace.compile`, warm.

    python bench/pieces.py [--calls N] [--overhead]

Each program of `tests/pieces/programs.py` is trained: a forward and a backward, eager and compiled
by turns, each from the same data. Told are the medians, their ratio, and the share of the program's
operators that is captured. With `--overhead`: a hole around one piece of more and more ops, which
says how many a piece has to have (`LEAST` in foretrace/pieces/partial.py). Exit code 1: a program
is slower than eager by more than 5 %.
"""

import argparse
import contextlib
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

import torch
from torch import Tensor, nn

import foretrace
from foretrace.pieces import partial
from foretrace.pieces.share import share

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.pieces.programs import HOLES, batch

SLOWER = 1.05
Call = Callable[[], Any]


def medians(eager: Call, ours: Call, count: int) -> tuple[float, float]:
    """Processor's seconds of the median call of both, which take turns in any order."""
    order, seen = random.Random(0), ([], [])  # noqa: S311 - no secret
    calls: list[tuple[Call, list[float]]] = [(eager, seen[0]), (ours, seen[1])]
    for call, _ in calls:
        for _ in range(5):
            call()
    for _ in range(count):
        order.shuffle(calls)
        for call, times in calls:
            start = time.process_time()
            call()
            times.append(time.process_time() - start)
    return statistics.median(seen[0]), statistics.median(seen[1])


def step(call: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> Call:
    """A forward and a backward."""
    return lambda: call(*inputs).backward()


def programs(count: int) -> bool:
    """All of them; whether none is slower than it may be."""
    good = True
    for name, hole in HOLES.items():
        torch.manual_seed(0)
        eager, ours = hole.make(), hole.make()
        compiled, inputs = foretrace.compile(ours), batch(0)
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                times = medians(step(eager, inputs), step(compiled, inputs), count)
            except KeyError as missing:  # scipy is looked up where it was imported
                print(f"{name:<28} needs {missing}", file=sys.stderr)
                continue
            captured, total = share(compiled, inputs)
        ratio = times[1] / times[0]
        good &= ratio <= SLOWER
        print(
            f"{name:<28} eager {times[0] * 1e6:7.0f} us, pieces {times[1] * 1e6:7.0f} us,"
            f" {ratio:5.2f}   {captured}/{total} ops captured"
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
        for _ in range(3):
            ours(x)
        before, after = medians(lambda net=eager: net(x), lambda net=ours: net(x), count)
        print(
            f"{ops:3} ops: eager {before * 1e6:6.1f} us, a piece {(after - before) * 1e6:+5.1f} us"
        )


def main() -> int:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=200, help="calls of each program")
    parser.add_argument("--overhead", action="store_true", help="of a piece, by its ops")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable()
    sys.breakpointhook = lambda *args, **kwargs: None
    if options.overhead:
        overhead(options.calls * 10)
        return 0
    with contextlib.suppress(ImportError):
        __import__("scipy.optimize")
    return 0 if programs(options.calls) else 1


if __name__ == "__main__":
    sys.exit(main())
