"""One of two processes that talk to each other by gloo: `python -m tests.refusals.ranks RANK FILE`.

Rank 0 alone is asked to capture what talks. The other waits meanwhile: what was sent would hang, or
be what the other receives first. It prints what it has found, as JSON.
"""

import copy
import json
import os
import sys
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch.distributed import nn as differentiable
from torch.nn.parallel import DistributedDataParallel

import foretrace
from foretrace import Refusal

Program = Callable[[Tensor], Any]
PROGRAMS: dict[str, Program] = {}
X = torch.arange(4.0)


def program(fn: Program) -> Program:
    PROGRAMS[fn.__name__] = fn
    return fn


@program
def sends(x: Tensor) -> Tensor:
    dist.send(x + 1, 1)  # here
    return x * 2


@program
def receives(x: Tensor) -> Tensor:
    dist.recv(x, 1)  # here
    return x * 2


@program
def sends_later(x: Tensor) -> Tensor:
    work = dist.isend(x + 1, 1)  # here
    work.wait()
    return x * 2


@program
def sends_a_batch(x: Tensor) -> Tensor:
    dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1)])  # here
    return x * 2


@program
def reduces(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y)  # here
    return y


@program
def reduces_later(x: Tensor) -> Tensor:
    y = x * 2
    dist.all_reduce(y, async_op=True).wait()  # here
    return y


@program
def reduces_by_the_group(x: Tensor) -> Tensor:
    dist.group.WORLD.allreduce([x]).wait()  # type: ignore[union-attr]  # here
    return x


@program
def reduces_by_the_backend(x: Tensor) -> Tensor:
    backend: Any = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
    backend.allreduce([x]).wait()  # here
    return x


@program
def reduces_with_a_gradient(x: Tensor) -> Tensor:
    found: Tensor = differentiable.functional.all_reduce(x * 2)  # here
    return found


@program
def gathers(x: Tensor) -> list[Tensor]:
    parts = [torch.empty(4), torch.empty(4)]
    dist.all_gather(parts, x)  # here
    return parts


@program
def gathers_into_one(x: Tensor) -> Tensor:
    whole = torch.empty(8)
    dist.all_gather_into_tensor(whole, x)  # here
    return whole


@program
def scatters(x: Tensor) -> Tensor:
    dist.scatter(x, [x, x])  # here
    return x


@program
def reduces_and_scatters(x: Tensor) -> Tensor:
    part = torch.empty(2)
    dist.reduce_scatter_tensor(part, x)  # here
    return part


@program
def broadcasts(x: Tensor) -> Tensor:
    dist.broadcast(x, 0)  # here
    return x


@program
def exchanges(x: Tensor) -> Tensor:
    y = torch.empty(4)
    dist.all_to_all_single(y, x)  # here
    return y


@program
def waits(x: Tensor) -> Tensor:
    dist.barrier()  # here
    return x * 2


@program
def gathers_objects(x: Tensor) -> Tensor:
    dist.all_gather_object([None, None], {"loss": 1})  # here
    return x * 2


@program
def broadcasts_objects(x: Tensor) -> Tensor:
    dist.broadcast_object_list([1, "two"], 0)  # here
    return x * 2


@program
def makes_a_group(x: Tensor) -> Tensor:
    dist.new_group([0, 1])  # here
    return x * 2


@program
def writes_to_the_store(x: Tensor) -> Tensor:
    dist.distributed_c10d._get_default_store().set("written", "1")  # here
    return x * 2


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.BatchNorm1d(8), nn.Linear(8, 2))


def refusals(ddp: nn.Module) -> dict[str, Any]:
    """What each program, and one that calls DDP, is refused for by each entry point."""

    class Module(nn.Module):
        def __init__(self, fn: Program) -> None:
            super().__init__()
            self.fn = fn

        def forward(self, x: Tensor) -> Any:
            return self.fn(x)

    def trains(x: Tensor) -> Tensor:
        loss: Tensor = ddp(x.expand(3, 4)).square().sum()  # here
        loss.backward()
        return loss

    entries: dict[str, Callable[[Program], object]] = {
        "capture": lambda fn: foretrace.capture(fn, (X.clone(),)),
        "compile": lambda fn: foretrace.compile(fn, fullgraph=True)(X.clone()),
        "export": lambda fn: foretrace.export(Module(fn), (X.clone(),)),
    }
    return {
        f"{name} by {entry}": _refusal(ask, fn)
        for name, fn in {**PROGRAMS, "trains": trains}.items()
        for entry, ask in entries.items()
    }


def _refusal(ask: Callable[[Program], object], fn: Program) -> Any:
    try:
        ask(fn)
    except Refusal as refusal:
        return [refusal.kind, refusal.at.text if refusal.at else "", refusal.what]
    return None


def trained(made: Callable[[Any], Any], rank: int) -> dict[str, Any]:
    """Three steps of DDP: losses, weights, and how often the group was called."""
    ddp = DistributedDataParallel(net())
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)

    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = ddp(x).square().sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = made(step)
    before, losses = calls(), []
    for batch in range(4):
        x = torch.linspace(-1, 1, 12).view(3, 4) * (rank + 1) + batch
        losses.append(step(x).item())
    called = calls() - before
    weights = {name: value.tolist() for name, value in ddp.state_dict().items()}
    return {"losses": losses, "weights": weights, "called": called}


def calls() -> int:
    """How many collectives the group has begun."""
    group: Any = dist.group.WORLD
    return int(group._get_sequence_number_for_group())


def talked(rank: int) -> dict[str, Any]:
    """Programs that run in parts, or whole, and what eager gives."""
    x, found = X * (rank + 1), dict[str, Any]()

    def functionally(x: Tensor) -> Tensor:
        return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1  # type: ignore[arg-type]

    for fn in (reduces, gathers, functionally):
        made, before = foretrace.compile(fn), calls()
        expected = [fn(x.clone()) for _ in range(3)]
        eager, before = calls() - before, calls()
        given = [made(x.clone()) for _ in range(3)]
        same = all(map(_equal, given, expected))
        found[fn.__name__] = [same, eager, calls() - before, len(made.breaks)]
    return found


def _equal(one: Any, other: Any) -> bool:
    pairs = zip(one, other, strict=True) if isinstance(one, list) else [(one, other)]
    return all(torch.equal(a, b) for a, b in pairs)


def main(rank: int, file: str) -> None:
    """What one rank does."""
    warnings.simplefilter("ignore")
    dist.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=2,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    ddp = DistributedDataParallel(copy.deepcopy(net()))
    found: dict[str, Any] = {}
    before = calls()
    if rank == 0:
        found["refused"] = refusals(ddp)
        found["sent"] = calls() - before
        dist.send(torch.tensor([7.0]), 1)
    else:
        first = torch.zeros(1)
        dist.recv(first, 0)
        found["first received"] = first.item()
    store = dist.distributed_c10d._get_default_store()
    found["written"] = store.check(["written"])
    found["eager"] = trained(lambda step: step, rank)
    found["compiled"] = trained(foretrace.compile, rank)
    found["talked"] = talked(rank)
    print(json.dumps(found), flush=True)  # noqa: T201 - read by the test
    dist.barrier()
    os._exit(0)  # gloo's threads abort one exit in seven, of eager DDP alone, too


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
