"""The most bytes of tensors that a call holds at once, as torch's own allocator tells of them."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

EVENT = "[memory]"


def peak(call: Callable[[], Any]) -> int:
    """Bytes above what is held when the call begins, at the worst moment; what it returns counts.

    Memory that kernels take and give back counts, too. The same call gives the same number.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        kept = call()
    results: Any = profiled.profiler
    events = [e for e in results.kineto_results.events() if e.name() == EVENT]
    del kept
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(accumulate(changes, initial=0))


def of_a_step(step: Callable[..., Any], batches: list[tuple[Any, ...]]) -> int:
    """The peak of the last batch; those before make the state that it finds."""
    torch.default_generator.manual_seed(0)
    for batch in batches[:-1]:
        step(*batch)
    return peak(lambda: step(*batches[-1]))
