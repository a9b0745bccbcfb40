"""A device that is not here, while a program runs: there is one, and the target answers for it."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from foretrace import torch_api
from foretrace.ir.program.interface import Target
from foretrace.operators.targets.device_answers import Generator, answered, refuse_question
from foretrace.session.patches.rng import Seeded
from foretrace.tracer.recorder.recorder import Recorder


@contextmanager
def absent(recorder: Recorder, target: Target) -> Iterator[None]:
    """Inside, there is one device of the target's kind, and it is the current one."""
    refuse = partial(refuse_question, recorder.refused, target)
    generator = Seeded(recorder, Generator(refuse))
    with answered(target, partial(torch_api.is_active, recorder), refuse, generator):
        yield
