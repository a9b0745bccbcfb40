"""What a program does outside of its graph, where what is around it may be captured."""

import importlib
import logging
import multiprocessing
import os
import queue
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from typing import Any
from xml.etree import ElementTree as ET

import torch
from torch import Tensor, nn

import foretrace
from tests.refusals.asks import captures, compiles, exports
from tests.refusals.follow import captured, compiled, once_before, same
from tests.refusals.registry import Ask, Program, refuses

X = torch.randn(6, 8)
LOG = logging.getLogger(__name__)
LOG.propagate = False
LOG.addHandler(logging.NullHandler())


def in_pieces(fn: Program, *args: Any, calls: int = 1) -> Any:
    """The program, after calls through pieces that eager agrees with."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = foretrace.compile(fn)
        for _ in range(calls):
            made(*args)
    return made


def broken(fn: Program, *args: Any, calls: int = 1) -> Callable[[], None]:
    """Raises the first refusal of the pieces, later."""

    def ask() -> None:
        raise in_pieces(fn, *args, calls=calls).breaks[0].refusal

    return ask


def doubles(x: Tensor) -> Tensor:
    return x * 2


def prints(x: Tensor) -> Tensor:
    print("doubled", end="")  # noqa: T201  # here
    return x * 2


def imports_in_a_batch(x: Tensor) -> Tensor:
    def row_times_table(row: Tensor) -> Tensor:
        from tests.support import late  # noqa: PLC0415  # here

        return row * late.TABLE

    return torch.vmap(row_times_table)(x)


def imports_before(x: Tensor) -> Tensor:
    from tests.support import late  # noqa: PLC0415

    return torch.vmap(lambda row: row * late.TABLE)(x)


def reloads(x: Tensor) -> Tensor:
    from tests.support import late  # noqa: PLC0415

    return x * importlib.reload(late).TABLE  # here


def forgotten(then: Callable[[], object]) -> Callable[[], Any]:
    """Later, while nobody has imported the module."""

    def later() -> object:
        sys.modules.pop("tests.support.late", None)
        return then()

    return later


def imports_for_the_first_time(fn: Program) -> Ask:
    return Ask(fn, forgotten(captures(fn, X).call))


IMPORTS = "python_state/code/first_imports.py:_refuse"
refuses("side effect", IMPORTS).when(
    imports_for_the_first_time(imports_in_a_batch),
    forgotten(captured(imports_before, X)),
    forgotten(once_before(imports_in_a_batch, X)),
)
refuses("side effect", IMPORTS).when(captures(reloads, X), captured(imports_before, X))


def takes_time(x: Tensor) -> Tensor:
    return x * time.time()  # here


def times(x: Tensor, now: float) -> Tensor:
    return x * now


def logs(x: Tensor) -> Tensor:
    LOG.error("doubled")  # here
    return x * 2


@cache
def warn_once() -> None:
    LOG.error("doubled")


def logs_once(x: Tensor) -> Tensor:
    warn_once()
    return x * 2


def follow_logs_once() -> None:
    """Logged by an eager call, it is not logged by a capture."""
    warn_once.cache_clear()
    logs_once(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = foretrace.compile(logs_once)
        same(made(X), logs_once(X))
    assert not made.breaks


def breaks(x: Tensor) -> Tensor:
    torch._dynamo.graph_break()  # here
    return x * 2


HOLE = "python_state/access/side_effects.py:_refuse"
refuses("side effect", HOLE).when(broken(prints, X), captured(doubles, X), at=prints)
refuses("side effect", HOLE).when(broken(takes_time, X), captured(times, X, 2.0), at=takes_time)
refuses("side effect", HOLE).when(
    broken(logs, X, calls=2), captured(doubles, X), follow_logs_once, at=logs
)
refuses("graph break", HOLE).when(broken(breaks, X), captured(doubles, X), at=breaks)


def waits_for_a_thread(x: Tensor) -> Tensor:
    """The thread would raise, and nobody would put what is waited for."""
    made: queue.Queue[Tensor] = queue.Queue()
    threading.Thread(target=lambda: made.put(x * 2), daemon=True).start()  # here
    return made.get(timeout=20)


refuses("side effect", HOLE).when(
    broken(waits_for_a_thread, X), captured(doubles, X), at=waits_for_a_thread
)


def forks(x: Tensor) -> Tensor:
    """The child never comes here."""
    if os.fork() == 0:  # here
        os._exit(0)
    return x * 2


def starts_a_process(x: Tensor) -> Tensor:
    process = multiprocessing.get_context("fork").Process(target=print)
    process.start()  # here
    process.join()
    return x * 2


FORKS = "session/patches/torch_patches.py:_forks"
refuses("side effect", FORKS).when(captures(forks, X), captured(doubles, X))
refuses("side effect", FORKS).when(captures(starts_a_process, X), captured(doubles, X))

TREE = ET.fromstring('<scale by="2"/>')  # noqa: S314


def looks_up(x: Tensor) -> Tensor:
    """What an element of a tree has, C keeps."""
    return x * float(TREE.get("by", 0))  # here


def looked_up_in_pieces() -> None:
    made = in_pieces(looks_up, X)
    same(made(X), looks_up(X))
    TREE.set("by", "3")
    same(made(X), X * 3)
    TREE.set("by", "2")


UNKNOWN = "python_state/access/unknown_calls.py:called"
refuses("unknown call", UNKNOWN).when(
    captures(looks_up, X), captured(times, X, 2.0), looked_up_in_pieces
)

SCALES = (1 + step / 10 for step in range(10_000))


def takes_the_next(x: Tensor) -> Tensor:
    return x * next(SCALES)  # here


def is_in_pieces() -> None:
    """What is around it is captured, and nothing is lost."""
    scales = (1 + step / 10 for step in range(9))

    def fn(x: Tensor) -> Tensor:
        return x * next(scales)

    made = in_pieces(fn, X)
    same(made(X), X * 1.1)


refuses("side effect", "python_state/access/side_effects.py:check_iterators").when(
    broken(takes_the_next, X), captured(times, X, next(SCALES)), is_in_pieces, at=takes_the_next
)


class Counted(nn.Module):
    def forward(self, x: Tensor, count: int) -> Tensor:  # here
        for _ in range(4):
            x = x.sin() * count
        return x + 1


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.counted, self.count = Counted(), 2

    def forward(self, x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        self.count += 1
        out: Tensor = self.counted(x, self.count)
        return out


def asks_too_often() -> None:
    """A piece is captured again for each number that it is called with."""
    found = in_pieces(Counting(), X, calls=12).breaks
    raise next(each.refusal for each in found if each.refusal.kind == "captured again")


class ByTensor(Counted):
    def forward(self, x: Tensor, count: Tensor) -> Tensor:  # type: ignore[override]
        return x.sin() * count


refuses("captured again", "runtime/graph_breaks/recapture_policy.py:check").when(
    asks_too_often, compiled(ByTensor(), X, torch.tensor(3)), at=Counted.forward
)


async def waits(x: Tensor) -> Tensor:  # here
    return x * 2


def gives_one_after_another(x: Tensor) -> Iterator[Tensor]:  # here
    yield x * 2


async def gives_when_awaited(x: Tensor) -> AsyncIterator[Tensor]:  # here
    yield x * 2


def returns_a_coroutine(x: Tensor) -> dict[str, Any]:
    return {"now": x + 1, "later": waits(x)}


def returns_a_generator(x: Tensor) -> Any:
    return x + 1, (row * 2 for row in x)  # here


def returns_a_map(x: Tensor) -> Any:  # here
    return x + 1, map(torch.sin, x)


class Waits(nn.Module):
    async def forward(self, x: Tensor) -> Tensor:  # here
        return x * 2


def all_of_them(x: Tensor) -> list[Tensor]:
    return [*gives_one_after_another(x), *map(torch.sin, x)]


LATER = "session/run/outputs.py:_check_computed"
for program, at in {
    waits: waits, gives_one_after_another: gives_one_after_another,
    gives_when_awaited: gives_when_awaited, returns_a_coroutine: waits,
    returns_a_generator: returns_a_generator, returns_a_map: returns_a_map,
}.items():  # fmt: skip
    refuses("unsupported", LATER).when(captures(program, X), captured(all_of_them, X), at=at)
    refuses("unsupported", LATER).when(compiles(program, X), compiled(all_of_them, X), at=at)
    if at is not returns_a_map:  # which has no code: the line is that of the program
        refuses("unsupported", LATER).when(exports(program, X), captured(all_of_them, X), at=at)
refuses("unsupported", LATER).when(exports(Waits(), X), captured(all_of_them, X))
refuses("unsupported", LATER).when(
    lambda: foretrace.aot_export_module(Waits(), (X,), trace_joint=False),
    captured(all_of_them, X),
    at=Waits.forward,
)
