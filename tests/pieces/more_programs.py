"""More networks with a hole: what training code does between its layers.

They are among `HOLES`, as those of `programs.py` are. What a program notes in Python is in `seen`.
"""

import asyncio
import queue
import random
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foretrace
from tests.pieces.programs import ROWS, Around, Body, D, Head, Matched, hole


class Noting(Around):
    """Notes what it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []


# ---- matching


@hole(0.6)
class MatchesByHand(Matched):
    """The Hungarian algorithm by potentials and shortest paths, in numpy."""

    def match(self, cost: np.ndarray) -> tuple[list[int], list[int]]:
        flat = cost.shape[0] <= cost.shape[1]
        found = hungarian(cost if flat else cost.T)
        pairs = [(row, column) if flat else (column, row) for row, column in enumerate(found)]
        rows, columns = zip(*sorted(pairs), strict=True)
        return list(rows), list(columns)


def hungarian(cost: np.ndarray) -> list[int]:
    """The column of each row, for not more rows than columns. Kuhn 1955; Jonker, Volgenant 1987."""
    count, width = cost.shape
    of_row, of_column = np.zeros(count + 1), np.zeros(width + 1)
    row_at, before = np.zeros(width + 1, int), np.zeros(width + 1, int)
    for row in range(1, count + 1):
        row_at[0], at = row, 0
        least, used = np.full(width + 1, np.inf), np.zeros(width + 1, bool)
        while row_at[at]:
            used[at] = True
            left = cost[row_at[at] - 1] - of_row[row_at[at]] - of_column[1:]
            nearer = ~used[1:] & (left < least[1:])
            least[1:][nearer], before[1:][nearer] = left[nearer], at
            following = int(np.where(used, np.inf, least).argmin())
            step = least[following]
            of_row[row_at[used]] += step
            of_column[used] -= step
            least[~used] -= step
            at = following
        while at:
            row_at[at] = row_at[before[at]]
            at = before[at]
    return [int(np.flatnonzero(row_at[1:] == row)[0]) for row in range(1, count + 1)]


# ---- what is noted at each call


@hole(0.9)
class NotesItsLoss(Noting):
    """The list is another at each call: the third one runs as Python."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss = super().forward(x, y)
        self.seen = [*self.seen, loss.item()]
        return loss

    def middle(self, h: Tensor) -> Tensor:
        return h


@hole(0.9)
class CountsByKey(Around):
    def __init__(self) -> None:
        super().__init__()
        self.counts: dict[int, int] = {}

    def middle(self, h: Tensor) -> Tensor:
        key = int(h.argmax(1)[0].item())
        self.counts[key] = self.counts.get(key, 0) + 1
        return h * (1 + 0.1 * self.counts[key])


@hole(0.8)
class RepeatsWhatWas(Noting):
    """A buffer of earlier batches."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: deque[Tensor] = deque(maxlen=3)

    def middle(self, h: Tensor) -> Tensor:
        for each in self.memory:
            h = h + 0.1 * each.mean()
        self.memory.append(h.detach())
        print(len(self.memory))  # here
        return h


@hole(0.9)
class Timed(Noting):
    @contextmanager
    def timed(self) -> Iterator[None]:
        start = time.perf_counter()  # here
        yield
        self.seconds = time.perf_counter() - start

    def middle(self, h: Tensor) -> Tensor:
        with self.timed():
            self.seen.append("timed")
            return h * 2


# ---- random numbers of others


@hole(0.5)
class DropsLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Body(1) for _ in range(4)]), Head()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for block in self.blocks:
            if random.random() < 0.3:  # here
                continue
            x = block(x)
        return self.head(x, y)


@hole(0.7)
class MasksByNumpy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Body(1) for _ in range(2)]), Head()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for block in self.blocks:
            mask = np.random.binomial(1, 0.9, size=tuple(x.shape)).astype(np.float32)  # here
            x = block(x) * torch.from_numpy(mask) / 0.9
        return self.head(x, y)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Body(1)

    def forward(self, x: Tensor, scale: float) -> Tensor:
        return self.body(x) * scale


@hole(0.7)
class ScalesAtRandom(nn.Module):
    """A piece is called with another number each time."""

    def __init__(self) -> None:
        super().__init__()
        self.scaled, self.head = Scaled(), Head()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(self.scaled(x, random.random() + 0.5), y)  # here


@hole(0.9)
class SeedsItself(Around):
    def middle(self, h: Tensor) -> Tensor:
        torch.manual_seed(3)  # here
        return F.dropout(h, 0.1, training=True)


# ---- values that decide


@hole(0.6)
class SendsToExperts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.head = nn.Linear(D, 3), Head()
        self.experts = nn.ModuleList([Body(1).eval() for _ in range(3)])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        weights = self.gate(x).softmax(1)
        groups: dict[int, list[int]] = defaultdict(list)
        for row, chosen in enumerate(weights.detach().argmax(1).numpy()):  # here
            groups[int(chosen)].append(row)
        out = torch.zeros_like(x)
        for chosen, rows in sorted(groups.items()):
            index = torch.tensor(rows)
            out = out.index_add(0, index, self.experts[chosen](x[index]))
        return self.head(x + out * weights.max(), y)


class Picky(nn.Module):
    """Raises where data tells it to."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Body(1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        if h.max() > 2.9:
            raise OverflowError("too large")
        return h


@hole(0.5)
class CatchesWhatAPieceRaises(Noting):
    def __init__(self) -> None:
        super().__init__()
        self.picky = Picky()

    def middle(self, h: Tensor) -> Tensor:
        try:
            h = self.picky(h)
        except OverflowError as error:
            self.seen.append(str(error))
            h = h * 0.5
        print("went on")  # here
        return h


@hole(0.6)
class ReturnsEarly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Body(1) for _ in range(3)]), Head()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
            if float(x.detach().numpy().std()) > 1.05:  # here
                return self.head(x, y)
        return self.head(x * 2, y)


# ---- what pieces are given, give, and keep


class Pair(NamedTuple):
    h: Tensor
    total: Tensor


@dataclass
class State:
    h: Tensor
    total: float = 0.0
    steps: int = 0


class OfPairs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Body(1)

    def forward(self, pair: Pair, *, scale: float) -> Pair:
        h = self.body(pair.h * scale)
        return Pair(h, pair.total + h.mean())


class OfStates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = Body(1)

    def forward(self, state: State) -> State:
        return State(self.body(state.h), state.total + 1.0, state.steps + 1)


@hole(0.8)
class HandsStructuresOver(Noting):
    def __init__(self) -> None:
        super().__init__()
        self.pairs, self.states = OfPairs(), nn.ModuleList([OfStates(), OfStates()])

    def middle(self, h: Tensor) -> Tensor:
        pair = self.pairs(Pair(h, torch.zeros(())), scale=0.5)
        print(type(pair).__name__)  # here
        state = State(pair.h)
        for each in self.states:
            state = each(state)
        self.seen.append((state.total, state.steps, type(state).__name__))
        return state.h * pair.total


class Keeps(nn.Module):
    """Counts its calls, and keeps what it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.calls = Body(1), 0
        self.register_buffer("average", torch.zeros(D))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h: Tensor = self.body(x)
        self.average.mul_(0.9).add_(h.detach().mean(0), alpha=0.1)
        self.last = {"mean": h.detach().mean(), "call": self.calls}
        return h - self.average


@hole(0.8)
class ReadsWhatPiecesKeep(Noting):
    def __init__(self) -> None:
        super().__init__()
        self.keeps = Keeps()

    def middle(self, h: Tensor) -> Tensor:
        h = self.keeps(h)
        print(self.keeps.calls, float(self.keeps.last["mean"]))  # here
        self.seen.append(self.keeps.last["call"])
        return h


class Writes(nn.Module):
    """Writes to what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Body(1)

    def forward(self, x: Tensor, room: Tensor) -> Tensor:
        h: Tensor = self.body(x)
        room.add_(h.detach().mean(0))
        room[0] = 3
        return h


@hole(0.7)
class LetsPiecesWrite(Noting):
    def __init__(self) -> None:
        super().__init__()
        self.writes = Writes()
        self.register_buffer("room", torch.zeros(D))

    def middle(self, h: Tensor) -> Tensor:
        fresh = torch.zeros(D)
        h = self.writes(self.writes(h, fresh), self.room)
        print("wrote")  # here
        h.mul_(0.5)
        return h + fresh


# ---- modes, hooks, and gradients inside


@hole(0.5)
class LooksWithoutGradients(nn.Module):
    """One piece is called in three modes at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Body(1), Head()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        self.body.eval()
        with torch.no_grad():
            teacher = self.body(x)
        self.body.train()
        print("taught")  # here
        h = self.body(self.body(x))
        return self.head(h, y) + F.mse_loss(h, teacher)


@hole(0.4)
class CollectsByHooks(Noting):
    """Hooks that are put on at each call, and taken off."""

    def middle(self, h: Tensor) -> Tensor:
        found: list[Tensor] = []
        inner = self.head.body
        handle = inner.register_forward_hook(lambda module, args, out: found.append(out))
        inner(h)
        print(len(found))  # here
        handle.remove()
        return h + found[0].mean()


@hole(0.7)
class SeesGradients(Noting):
    def middle(self, h: Tensor) -> Tensor:
        h.register_hook(lambda gradient: self.seen.append(float(gradient.norm())))
        print("hooked")  # here
        return h * 2


# ---- threads


class Still(Around):
    """Draws nothing in a thread, as threads draw in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.side = Body(1)
        self.side.drop.p = 0.0


@hole(0.7)
class WaitsForAThread(Still):
    def middle(self, h: Tensor) -> Tensor:
        done: queue.Queue[Tensor] = queue.Queue()
        threading.Thread(target=lambda: done.put(self.side(h))).start()  # here
        return done.get(timeout=60)


@foretrace.region
def mixed(x: Tensor, w: Tensor) -> Tensor:
    """Worth a capture."""
    for _ in range(4):
        x = x + F.gelu(x @ w) * 0.3
    return x


@hole(0.5)
class SharesARegion(Still):
    """Threads run a region that the thread of the program runs as a piece."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.eye(D) * 0.1)

    def middle(self, h: Tensor) -> Tensor:
        halves: list[Any] = [None, None]

        def half(index: int) -> None:
            halves[index] = mixed(h * (index + 1), self.w)

        threads = [threading.Thread(target=half, args=(index,)) for index in range(2)]
        for thread in threads:
            thread.start()  # here
        for thread in threads:
            thread.join()
        return mixed(halves[0] + halves[1], self.w)


@hole(0.8)
class Awaits(Noting):
    async def one(self, h: Tensor) -> Tensor:
        await asyncio.sleep(0)
        print(ROWS)  # here
        return h * 2

    def middle(self, h: Tensor) -> Tensor:
        return asyncio.run(self.one(h))


@hole(0.4)
class CallsACopy(Around):
    """Of a module's `__dict__`, with weights of its own, as `higher` and DataParallel make one."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(D, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        print(ROWS)  # here
        copied = Head.__new__(Head)
        copied.__dict__ = dict(self.head.__dict__)
        copied._modules = {**self.head._modules, "out": self.other}
        h = self.body(x)
        loss: Tensor = self.head(h, y) + copied(h, y)
        return loss
