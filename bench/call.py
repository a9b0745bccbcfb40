"""Per-call overhead: ours against torch.compile's eager and aot_eager, warm, in one run.

    python bench/call.py [--calls N] [--steps N] [--device D]

A function of two ops and a small Llama; a forward without grad, a forward with grad, and forward
and backward. Every row is the median of many calls. The callables take turns, call by call, so
that a slow moment of the machine meets all of them, in an order that is drawn anew each time: a
call is slower after one that has filled the processor's caches. Ratios are theirs over ours.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import foretrace

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import llama

Call = Callable[[], Any]


def two_ops(x: Tensor, w: Tensor) -> Tensor:
    """The tiny function."""
    return (x * w).sin()


def callables(fn: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    """The function and its compiled forms, each compiled for itself."""
    made: dict[str, Callable[..., Any]] = {"plain eager": fn}
    for backend in ("eager", "aot_eager"):
        torch._dynamo.reset()
        made[f"torch.compile {backend}"] = torch.compile(fn, backend=backend, fullgraph=True)
    return {**made, "foretrace": foretrace.compile(fn)}


def finished() -> None:
    """Wait for what a device has been given to do; the CPU has done it by then."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def measured(calls: dict[str, Call], count: int) -> dict[str, float]:
    """Seconds of the median call of each; they take turns, in any order."""
    turns, order = list(calls.items()), random.Random(0)  # noqa: S311 - no secret
    seen: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(5):
            call()
    clock = time.perf_counter
    for _ in range(count):
        order.shuffle(turns)
        for name, call in turns:
            start = clock()
            call()
            finished()
            seen[name].append(clock() - start)
    return {name: statistics.median(times) for name, times in seen.items()}


def forward(fn: Callable[..., Any], inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """A call."""
    return lambda: fn(*inputs, **kwargs)


def training(fn: Callable[..., Any], inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """A call and its backward."""

    def step() -> None:
        out = fn(*inputs, **kwargs)
        (out if isinstance(out, Tensor) else out.loss).sum().backward()

    return step


def rows(
    fn: Callable[..., Any], inputs: tuple[Any, ...], kwargs: dict[str, Any], count: int
) -> Iterator[tuple[str, dict[str, float]]]:
    """(what was done, seconds by callable)."""
    made = callables(fn)
    for what, make, mode in (
        ("forward, no grad", forward, torch.no_grad),
        ("forward, grad", forward, nullcontext),
        ("forward and backward", training, nullcontext),
    ):
        with mode():
            calls = {name: make(each, inputs, kwargs) for name, each in made.items()}
            yield what, measured(calls, count)


def show(title: str, table: Iterator[tuple[str, dict[str, float]]]) -> None:
    """Print a table with ratios to ours."""
    print(f"\n{title}")
    for what, times in table:
        ours = times["foretrace"]
        told = ", ".join(
            f"{name} {seconds * 1e6:.1f} us ({seconds / ours:.2f})"
            for name, seconds in times.items() if name != "foretrace"
        )  # fmt: skip
        print(f"  {what:<22} foretrace {ours * 1e6:.1f} us;  {told}")


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=2000, help="calls of the small function")
    parser.add_argument("--steps", type=int, default=20, help="calls of the model")
    parser.add_argument("--device", default="cpu", help="where the tensors are: cpu or cuda")
    options = parser.parse_args()
    torch.manual_seed(0)
    x, w = (torch.randn(4, 4, device=options.device, requires_grad=True) for _ in range(2))
    show("two ops, 4x4", rows(two_ops, (x, w), {}, options.calls))
    model, inputs, kwargs = llama.program()
    model, kwargs = model.to(options.device), {n: t.to(options.device) for n, t in kwargs.items()}
    show("Llama, 16 layers", rows(model, inputs, kwargs, options.steps))


if __name__ == "__main__":
    main()
