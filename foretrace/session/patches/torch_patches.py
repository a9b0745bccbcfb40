"""Patches of torch while a program runs: what they replace is refused or followed, and restored."""

from collections.abc import Callable, Iterator, Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, NoReturn

import torch

from foretrace import torch_api
from foretrace.autograd.backward.in_program_engine import Engine
from foretrace.autograd.backward.pack_hooks import Packing
from foretrace.errors import OUTSIDE, Refusal
from foretrace.ir.program.interface import Target
from foretrace.ir.source.call_site import asking_line
from foretrace.ir.source.state_change_lines import Lines
from foretrace.ir.symbols.sym_int import sizes_as_integers
from foretrace.operators.abstract_tensors.abstract_tensor import Abstract
from foretrace.operators.inference.communication import communicates
from foretrace.python_state.effects.inner_reads import PartsOfRun
from foretrace.python_state.effects.module_state import scripted
from foretrace.python_state.snapshot.heap import HeapSnapshot
from foretrace.session.patches.checkpoints import Checkpoints
from foretrace.session.patches.data_dependent_sizes import taking_rates, taking_steps
from foretrace.session.patches.device_questions import absent
from foretrace.session.patches.global_switches import unswitched
from foretrace.session.patches.rng import random_stand_ins, undrawn
from foretrace.session.patches.switched_inside import Switches
from foretrace.session.patches.triton_launches import unlaunched
from foretrace.tracer.recorder.autograd_function import function_calls
from foretrace.tracer.recorder.modes_inside import guards
from foretrace.tracer.recorder.module_calls import module_calls
from foretrace.tracer.recorder.recorder import Recorder


def refusing(recorder: Recorder, here: bool) -> dict[str, Callable[..., Any]]:
    """Stand-ins for functions of torch that no graph can repeat."""
    stand_ins: dict[str, Callable[..., Any]] = {}
    stand_ins |= random_stand_ins(recorder) | guards(recorder)
    stand_ins |= {"compile": _compiled(recorder), "hop": torch_api.called_as_written}
    stand_ins |= taking_steps(recorder) | taking_rates(recorder)
    stand_ins |= {"linearize": partial(_linearized, recorder)}
    stand_ins |= dict.fromkeys(("lazy parameter", "lazy buffer"), partial(_lazy, recorder))
    stand_ins |= {"cudnn": partial(_by_cudnn, torch.backends.cudnn.is_acceptable)}
    stand_ins |= dict.fromkeys(torch_api.FORKS, partial(_forks, recorder))
    packing = Packing(recorder)
    stand_ins |= {"saving": packing.enter, "saved": packing.leave, "no saving": packing.disable}
    if not here:
        stand_ins |= {"materialize": torch_api.note_materialized}
    return stand_ins


def _compiled(recorder: Recorder) -> Callable[..., Any]:
    """In the place of `torch.compile`: the function itself; what Dynamo would lift is noted."""

    def compiled(model: Any = None, **_: Any) -> Any:
        if model is None:
            return compiled
        return recorder.lifting(model) if torch_api.calls_attention(model) else model

    return compiled


def _linearized(recorder: Recorder, *_: object) -> NoReturn:
    raise recorder.refused(
        Refusal(
            "torch.func.linearize traces the function by a tracer of its own",
            kind="unsupported",
            at=asking_line(),
            do=(
                "use torch.func.jvp, once for each tangent",
                "or linearize outside of the captured program",
            ),
        )
    )


def _lazy(recorder: Recorder, *_: object, **named: object) -> NoReturn:
    raise recorder.refused(
        Refusal(
            "the program creates a lazy module, whose parameters have no shape",
            kind="unsupported",
            at=asking_line(),
            do=("create it outside, and call it once before", "or give the sizes: nn.Linear(3, 4)"),
        )
    )


def _forks(recorder: Recorder) -> NoReturn:
    raise recorder.refused(
        Refusal(
            "the program forks a process, which would go on with the capture, too",
            kind="side effect",
            at=asking_line(),
            do=OUTSIDE[:1],
        )
    )


INPUTS = 4
"""Where the engine has what gradients are wanted of: after outputs, gradients, two switches"""


def _engine(engine: Engine, switches: Switches, here: bool) -> Callable[..., Any]:
    """Torch's engine for `torch.func`, which brings its own levels of autograd; else ours.

    `here`: torch has the target's device; if not, its engine asks in vain for a stream there.
    """
    of_levels = engine.original if here else torch_api.level_gradients

    def run(*args: Any, **kwargs: Any) -> Any:
        inputs = args[INPUTS] if len(args) > INPUTS else ()
        if inputs and all(map(_followed_by_level, inputs)):
            return of_levels(*args, **kwargs)
        switches.check("the program computes a gradient")
        return engine(*args, **kwargs)

    return run


def _followed_by_level(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and torch_api.followed_by_level(tensor)


@contextmanager
def followed_autocast(recorder: Recorder) -> Iterator[None]:
    """The recorder follows autocast inside, and keeps its cache."""
    before, casts = torch.is_autocast_cache_enabled(), recorder.casts
    torch.set_autocast_cache_enabled(False)
    stand_ins: dict[str, Callable[..., Any]] = {
        "autocast": casts.switching(torch.set_autocast_enabled),
        "autocast cache": casts.cache,
        "autocast cache on": casts.caching,
        "autocast in": casts.entering(torch.autocast_increment_nesting),
        "autocast out": casts.leaving(torch.autocast_decrement_nesting),
        "autocast end": casts.forget,
    }
    try:
        with torch_api.replaced(stand_ins):
            yield
    finally:
        torch.set_autocast_cache_enabled(before)
        torch.clear_autocast_cache()


def silenced(recorder: Recorder) -> AbstractContextManager[None]:
    """Inside, the program is refused before it talks to another process."""

    def refuse(name: str) -> NoReturn:
        raise recorder.refused(communicates(name))

    return torch_api.SILENCE(refuse)


def _by_cudnn(original: Callable[..., Any], tensor: torch.Tensor) -> bool:
    """Whether cuDNN takes a tensor; an abstract one has no memory to be laid out for it."""
    return not isinstance(tensor, Abstract) and original(tensor)


@contextmanager
def running(
    recorder: Recorder, parts: PartsOfRun, paths: dict[int, str], target: Target, engine: Engine, *,
    switches: bool = True, as_they_are: AbstractSet[str] = frozenset(),
) -> Iterator[Checkpoints]:  # fmt: skip
    """The recorder sees every call inside; gives what is to be checked when the program ends.

    Args:
        recorder: it.
        parts: watches what runs again by itself.
        paths: names of modules, by their ids.
        target: the device that it is captured for.
        engine: computes the gradients that the program asks for.
        switches: whether it is to see, too, where the program switches torch's ambient state.
        as_they_are: functions, by their full names, in whose places no others stand.
    """
    checkpoints = Checkpoints(recorder, parts)
    here = target.device.type in torch_api.device_types_here()
    stand_ins, ambient = refusing(recorder, here), Switches(recorder)
    stand_ins |= ambient.stand_ins(target.device.type) if switches else {}
    stand_ins |= {"engine": _engine(engine, ambient, here)} | engine.edges.stand_ins()
    stand_ins |= {"first vmap": engine.batches, "checkpoint": checkpoints.around}
    talks = silenced(recorder) if torch_api.may_talk() else nullcontext()
    for name in torch_api.OPTIONAL if as_they_are else ():
        if f"torch.{name}" in as_they_are:
            del stand_ins[name]
    with (
        torch_api.below_autograd(),
        torch_api.uncompiled(),
        torch_api.unoptimized(scripted),
        torch_api.replaced(stand_ins),
        sizes_as_integers(),
        talks,
        unlaunched(recorder),
        followed_autocast(recorder),
        function_calls(recorder, parts),
        nullcontext() if here else absent(recorder, target),
        module_calls(recorder, paths),
        recorder,
    ):
        yield checkpoints


@contextmanager
def unchanged_state(lines: Callable[[], Lines], before: HeapSnapshot) -> Iterator[None]:
    """Torch's switches and random numbers are as before, whatever happens.

    Args:
        lines: finds the lines of the program.
        before: what it can reach.

    Raises:
        Refusal: the program leaves a switch of torch's in another state, or seeded or drew from a
            generator in a way no graph can repeat; with the line of `lines` that did.
    """
    with undrawn(lines, may_seed=before.may_seed), unswitched(lines):
        yield
