"""The peak of memory in one step: eager's, and that of the cuts and compiled callables."""

from collections.abc import Callable, Iterator
from functools import partial

import torch

from tests.gpu.child import Circumstances, Finding, failure
from tests.gpu.cuts import Bench, routes
from tests.gpu.programs import program
from tests.gpu.runs import Runner, eager
from tests.support.subject import Subject

MEGA = 1e6


def run(given: Circumstances) -> Iterator[Finding]:
    """A row for each way to run the step; no other number is held against it."""
    if given.device != "cuda":
        yield "the whole part", "skipped", f"torch counts no peak of memory on {given.device}"
        return
    with program(given.program, given.dtype, given.device) as subject:
        yield from measured(Bench(subject, given.device), of_device)


def measured(bench: Bench, peak_of: Callable[[Callable[[], object]], int]) -> Iterator[Finding]:
    """Peaks in turn, as `peak_of` finds them."""
    base = peak(bench, eager, peak_of, captured=False)
    yield "eager", "measured", {"said": f"{base / MEGA:.2f} MB", "bytes": base}
    made = {name: make for name, make in routes(bench).items() if name not in ("export", "aten")}
    for name, make in made.items():
        try:
            found = peak(bench, make()[1], peak_of)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is found
            yield failure(error, name)
        else:
            said = f"{found / MEGA:.2f} MB, {found / max(base, 1):.3f} of eager's"
            yield name, "measured", {"said": said, "bytes": found}


def peak(
    bench: Bench, runner: Runner, peak_of: Callable[[Callable[[], object]], int], *,
    captured: bool = True,
) -> int:  # fmt: skip
    """Of the second step: the first may compile."""
    found = 0
    for _ in range(2):
        fresh = bench.subject.fresh()
        fn = bench.live.fn if captured else fresh.fn
        given = Subject(fn, fresh.args, fresh.kwargs)
        found = peak_of(partial(runner, given))
    return found


def of_device(step: Callable[[], object]) -> int:
    """Bytes above what was there before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before
