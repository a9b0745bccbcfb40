"""Networks with a hole: each does something on its way that no graph can repeat.

Every program gives a loss. `HOLES` has them by name, with the line of the hole marked `# here` and
the least share of its ops that is captured around it.
"""

import heapq
import json
import logging
import random
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import regex
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import foretrace

D, ROWS = 16, 6
LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hole:
    """A program with one."""

    make: Callable[[], nn.Module]
    share: float
    """the least share of its ops that is captured"""
    compile: Callable[..., Any] = foretrace.compile


HOLES: dict[str, Hole] = {}


def hole(share: float) -> Callable[[type], type]:
    """Puts a class among the programs."""

    def put(kind: type) -> type:
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
        HOLES[name] = Hole(kind, share)
        return kind

    return put


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Features and labels of one step."""
    drawn = torch.Generator().manual_seed(100 + step)
    x = torch.randn(ROWS, D, generator=drawn)
    return x, torch.randint(4, (ROWS,), generator=drawn)


class Body(nn.Module):
    """A residual network: what a capture gains from."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm1d(D) for _ in range(layers)])
        self.wide = nn.ModuleList([nn.Linear(D, 2 * D) for _ in range(layers)])
        self.back = nn.ModuleList([nn.Linear(2 * D, D) for _ in range(layers)])
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        for norm, wide, back in zip(self.norms, self.wide, self.back, strict=True):
            x = x + self.drop(back(F.gelu(wide(norm(x)))))
        return x


class Head(nn.Module):
    """Logits, and their loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.out = Body(1), nn.Linear(D, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.out(self.body(x)), y)


class Around(nn.Module):
    """A body, something in the middle, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Body(), Head()

    def middle(self, h: Tensor) -> Tensor:
        """Where the hole is."""
        raise NotImplementedError

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        loss: Tensor = self.head(self.middle(self.body(x)), y)
        return loss


# ---- what is told, and asked, of the world


@hole(0.9)
class Prints(Around):
    def middle(self, h: Tensor) -> Tensor:
        print("mean", f"{h.detach().mean():.3f}")  # here
        return h


@hole(0.9)
class Logs(Around):
    def middle(self, h: Tensor) -> Tensor:
        LOG.warning("largest: %s", h.detach().abs().max())  # here
        return h


@hole(0.9)
class StopsInADebugger(Around):
    def middle(self, h: Tensor) -> Tensor:
        breakpoint()  # noqa: T100  # here
        return h


@hole(0.9)
class ReadsTheClock(Around):
    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def middle(self, h: Tensor) -> Tensor:
        self.seconds.append(time.time())  # here
        return h


@hole(0.9)
class ReadsAFile(Around):
    def __init__(self) -> None:
        super().__init__()
        with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
            file.write("0.5")
        self.path = Path(file.name)

    def middle(self, h: Tensor) -> Tensor:
        with open(self.path) as file:  # noqa: PTH123  # here
            return h * float(file.read())


@hole(0.9)
class TakesTheNext(Around):
    def __init__(self) -> None:
        super().__init__()
        self.scales = (1 + step / 10 for step in range(1000))

    def middle(self, h: Tensor) -> Tensor:
        return h * next(self.scales)

    def __deepcopy__(self, memo: dict[int, Any]) -> "TakesTheNext":
        other = type(self)()
        other.load_state_dict(self.state_dict())
        return other


# ---- random numbers of others


@hole(0.9)
class DrawsByPython(Around):
    def middle(self, h: Tensor) -> Tensor:
        return h if random.random() < 0.5 else h * 2  # here


@hole(0.9)
class AugmentsByNumpy(Around):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        image = x.numpy()  # here
        if np.random.rand() < 0.5:
            image = image[:, ::-1]
        noise = np.random.normal(scale=0.1, size=image.shape).astype(np.float32)
        loss: Tensor = self.head(self.body(torch.from_numpy(image + noise)), y)
        return loss


@hole(0.9)
class AugmentsByAGenerator(Around):
    def __init__(self) -> None:
        super().__init__()
        self.drawn = np.random.default_rng(3)

    def middle(self, h: Tensor) -> Tensor:
        kept = self.drawn.permutation(ROWS)  # here
        return h[torch.from_numpy(kept)]


# ---- asked for


@torch.compiler.disable  # type: ignore[misc]
def rounds(h: Tensor) -> Tensor:
    return h + (h.round() - h).detach()


@hole(0.9)
class CallsADisabledFunction(Around):
    def middle(self, h: Tensor) -> Tensor:
        return rounds(h)  # here


@hole(0.6)
class HasADisabledModule(Around):
    class Kept(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = Body(1)

        @torch.compiler.disable  # type: ignore[misc]
        def forward(self, h: Tensor) -> Tensor:
            return self.body(h) * 2

    def __init__(self) -> None:
        super().__init__()
        self.kept = self.Kept()

    def middle(self, h: Tensor) -> Tensor:
        return self.kept(h)


@hole(0.9)
class BreaksTheGraph(Around):
    def middle(self, h: Tensor) -> Tensor:
        torch._dynamo.graph_break()  # here
        return h


# ---- data in Python's hands


@dataclass
class Box:
    """A detection."""

    score: float
    row: int
    near: "list[Box]" = field(default_factory=list)


@hole(0.8)
class KeepsObjects(Around):
    def middle(self, h: Tensor) -> Tensor:
        scores = h.detach().sum(1).numpy()  # here
        boxes = [Box(float(score), row) for row, score in enumerate(scores)]
        for box in boxes:
            box.near = [each for each in boxes if abs(each.score - box.score) < 1]
        return h * torch.tensor([len(box.near) for box in boxes])[:, None]


@hole(0.8)
class WritesAndReadsJson(Around):
    def middle(self, h: Tensor) -> Tensor:
        text = json.dumps({"mean": h.detach().mean(1).numpy().tolist()})  # here
        return h - torch.tensor(json.loads(text)["mean"])[:, None]


@hole(0.8)
class FindsByRe(Around):
    def middle(self, h: Tensor) -> Tensor:
        text = str(h.detach().sign().int().numpy())  # here
        count = len(re.findall(r"-1", text))
        return h * (1 + count / 100)


@hole(0.8)
class FindsByAnExtension(Around):
    """`regex` is in C."""

    def middle(self, h: Tensor) -> Tensor:
        text = "".join("ab"[bit] for bit in (h.detach() > 0).flatten().int().numpy())  # here
        return h * (1 + len(regex.findall(r"(?r)ab+a", text)) / 100)


@hole(0.7)
class GroupsByData(Around):
    def middle(self, h: Tensor) -> Tensor:
        groups: dict[int, list[Tensor]] = defaultdict(list)
        for row, name in zip(h, h.detach().argmax(1).numpy(), strict=True):  # here
            groups[int(name)].append(row)
        return torch.stack([torch.stack(rows).mean(0) for rows in groups.values()]).mean(0) + h


@hole(0.8)
class SortsByData(Around):
    def middle(self, h: Tensor) -> Tensor:
        scores = h.detach().sum(1).numpy()  # here
        return torch.stack([h[row] for row in sorted(range(ROWS), key=scores.__getitem__)])


@hole(0.8)
class SearchesABeam(Around):
    def middle(self, h: Tensor) -> Tensor:
        costs = h.detach().abs().numpy()  # here
        beam = [(0.0, ())]
        for row in costs[:, :3]:
            ways = [(cost + float(c), (*way, i)) for cost, way in beam for i, c in enumerate(row)]
            beam = heapq.nsmallest(2, ways)
        return h[:, list(beam[0][1])].repeat(1, D)[:, :D]


@hole(0.6)
class LoopsOverLists(Around):
    def middle(self, h: Tensor) -> Tensor:
        lengths = (h.detach().abs().sum(1) % 4).int().numpy().tolist()  # here
        pieces = [row[: length + 1].mean() for row, length in zip(h, lengths, strict=True)]
        return h * torch.stack(pieces)[:, None]


@hole(0.8)
class CatchesWhatNumpyRaises(Around):
    def middle(self, h: Tensor) -> Tensor:
        try:
            inverse = np.linalg.inv(np.ones((2, 2)) * float(h.detach().numpy().mean()))  # here
        except np.linalg.LinAlgError:
            return h
        return h * float(inverse.sum() != 0)


@hole(0.5)
class ExitsEarly(nn.Module):
    """Blocks by a generator: as many as it takes to be sure."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Body(1) for _ in range(4)])
        self.heads = nn.ModuleList([Head() for _ in range(4)])

    def steps(self, x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for block, head in zip(self.blocks, self.heads, strict=True):
            x = block(x)
            yield x, head(x, y)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        total = x.new_zeros(())
        for h, loss in self.steps(x, y):
            total = total + loss
            if h.detach().numpy().std() > 1.1:  # here
                break
        return total


# ---- matching


class Matched(nn.Module):
    """A set loss, as in DETR: queries are matched to targets before they are compared."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.boxes = Body(3), nn.Linear(D, 4)

    def match(self, cost: np.ndarray) -> tuple[list[int], list[int]]:
        """Rows and columns."""
        raise NotImplementedError

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        found = self.boxes(self.body(x)).sigmoid()
        wanted = F.one_hot(y, 4).float()
        cost = torch.cdist(found.detach(), wanted, p=1)
        rows, columns = self.match(cost.numpy())  # here
        return F.l1_loss(found[rows], wanted[columns]) + found[rows].square().mean()


@hole(0.6)
class MatchesByScipy(Matched):
    def match(self, cost: np.ndarray) -> tuple[list[int], list[int]]:
        rows, columns = sys.modules["scipy.optimize"].linear_sum_assignment(cost)
        return rows.tolist(), columns.tolist()


@hole(0.6)
class MatchesByNetworkx(Matched):
    def match(self, cost: np.ndarray) -> tuple[list[int], list[int]]:
        graph = nx.Graph()
        for (row, column), value in np.ndenumerate(cost):
            graph.add_edge(("row", row), ("column", column), weight=float(-value))
        pairs = nx.max_weight_matching(graph, maxcardinality=True)
        ways = sorted((a[1], b[1]) if a[0] == "row" else (b[1], a[1]) for a, b in pairs)
        return [row for row, _ in ways], [column for _, column in ways]


# ---- where it is


class Speaking(nn.Module):
    """A block that prints."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Body(1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        print("block")  # here
        return h


@hole(0.9)
class DeepInside(nn.Module):
    """Two levels down; its neighbours are captured whole."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(Body(1), Speaking(), Body(1))
        self.head = Head()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.head(self.first(x), y)


@hole(0.4)
class InsideACheckpoint(Around):
    """All that is checkpointed runs as Python."""

    def __init__(self) -> None:
        super().__init__()
        self.speaking = Speaking()

    def middle(self, h: Tensor) -> Tensor:
        return checkpoint(self.speaking, h, use_reentrant=False)


class ByNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out = torch.from_numpy(np.tanh(x.detach().numpy()))  # here
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (out,) = ctx.saved_tensors
        return gradient * (1 - out * out)


@hole(0.9)
class InsideAFunction(Around):
    def middle(self, h: Tensor) -> Tensor:
        return ByNumpy.apply(h)


@hole(0.9)
class Recursive(nn.Module):
    """A module that calls itself, and prints at the leaves."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = Body(1), Head()

    def forward(self, x: Tensor, y: Tensor, depth: int = 2) -> Tensor:
        if depth == 0:
            print("leaf")  # here
            loss: Tensor = self.head(x, y)
            return loss
        h = self.body(x)
        return self(h, y, depth - 1) + self(h.sin(), y, depth - 1)


@hole(0.9)
class MarksARegion(nn.Module):
    """A flat program: the function that it marks is captured."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.eye(D))
        self.gain = 0.5

    @foretrace.region
    def mixes(self, x: Tensor) -> Tensor:
        for _ in range(6):
            x = x + F.gelu(x @ self.w) * self.gain
        return x

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.mixes(x)
        print("half way")  # here
        return F.cross_entropy(self.mixes(h)[:, :4], y)
