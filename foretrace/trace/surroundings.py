"""What the program does to torch itself while it runs: refused, or followed; and put back."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

import torch

from foretrace import torch_api
from foretrace.errors import Refusal, Way
from foretrace.ir.op import Checkpoint
from foretrace.trace import generators
from foretrace.trace.abstract import Abstract
from foretrace.trace.functions import function_calls
from foretrace.trace.inference import guards
from foretrace.trace.lines import Lines
from foretrace.trace.made_leaves import value_of
from foretrace.trace.modules import module_calls
from foretrace.trace.owners import scripted
from foretrace.trace.recorder import Recorder
from foretrace.trace.switches import unswitched

BACKWARD = (
    "return the loss, and ask for its gradient outside of the captured program",
    "or use torch.func.grad, which brings its own autograd",
)


def refusing(recorder: Recorder, absent: bool) -> dict[str, Callable[..., Any]]:
    """Stand-ins for functions of torch that no graph can repeat.

    `absent`: the target is not there; then an autograd node would abort the process.
    """
    stand_ins: dict[str, Callable[..., Any]] = {"engine": _engine(torch_api.engine())}
    stand_ins |= generators.refusing(recorder) | guards(recorder)
    stand_ins["compile"] = torch_api.as_written
    return stand_ins | ({"func.grad": _no_gradient} if absent else {})


def checkpoints(recorder: Recorder) -> Callable[..., Iterator[None]]:
    """What `torch.utils.checkpoint` runs around a function: ops inside are told its region.

    The function runs once. Only the outermost of nested regions counts, as all inside it is made
    again from what goes into it.
    """

    def around(
        fn: Any, preserve_rng_state: bool, context_fn: Callable[[], Any], determinism: str,
        debug: bool, early_stop: bool, *args: Any, **_: Any,
    ) -> Iterator[None]:  # fmt: skip
        outer, (context, _again) = recorder.checkpoint, context_fn()
        saves = torch_api.selective_policy(context)
        if outer is None and recorder.grad_mode():
            tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
            given = [t if isinstance(t, Abstract) else recorder.lift(t) for t in tensors]
            inputs = tuple([value_of(tensor, recorder) for tensor in given])
            recorder.checkpoint = Checkpoint(saves, inputs)
        try:
            with nullcontext() if saves is not None else context:
                yield
        finally:
            recorder.checkpoint = outer

    return around


def _engine(original: Callable[..., Any]) -> Callable[..., Any]:
    """The engine for `torch.func`, which brings its own levels of autograd; else a refusal."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if torch_api.functorch_active():
            return original(*args, **kwargs)
        return _no_gradient()

    return run


def _no_gradient(*args: object, **kwargs: object) -> NoReturn:
    raise Refusal(
        "the program computes a gradient itself",
        kind="autograd inside",
        do=(Way('let cut("joint") compute it', ("capture",)), *BACKWARD),
    )


@contextmanager
def followed_autocast(recorder: Recorder) -> Iterator[None]:
    """The recorder follows autocast inside, and keeps its cache."""
    before, casts = torch.is_autocast_cache_enabled(), recorder.casts
    torch.set_autocast_cache_enabled(False)
    stand_ins: dict[str, Callable[..., Any]] = {
        "autocast": casts.switching(torch.set_autocast_enabled),
        "autocast cache": casts.cache,
        "autocast cache on": casts.caching,
        "autocast end": casts.forget,
    }
    try:
        with torch_api.replaced(stand_ins):
            yield
    finally:
        torch.set_autocast_cache_enabled(before)
        torch.clear_autocast_cache()


@contextmanager
def running(recorder: Recorder, paths: dict[int, str], absent: bool) -> Iterator[None]:
    """The recorder sees every call inside."""
    with (
        torch_api.below_autograd(),
        torch_api.uncompiled(),
        torch_api.unoptimized(scripted),
        torch_api.replaced({**refusing(recorder, absent), "checkpoint": checkpoints(recorder)}),
        followed_autocast(recorder),
        function_calls(recorder),
        module_calls(recorder, paths),
        recorder,
    ):
        yield


@contextmanager
def unchanged_state(lines: Callable[[], Lines]) -> Iterator[None]:
    """Torch's switches and random numbers are as before, whatever happens.

    Raises:
        Refusal: the program leaves a switch of torch's in another state, or seeded or drew from a
            generator in a way no graph can repeat; with the line of `lines` that did.
    """
    with generators.undrawn(lines), unswitched(lines):
        yield


@contextmanager
def uncollected() -> Iterator[None]:
    """The collector rests: nearly all that a capture makes, it keeps."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        (gc.enable if before else gc.disable)()
