"""`foretrace.check`: a program's graphs beside eager, or what a backend compiles of them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch

from foretrace.frontends.program.capture import capture
from foretrace.inspect.check.backend import BackendReport, check_backend
from foretrace.inspect.check.check import Report, check as check_bits, in_mode, loss_of
from foretrace.ir.program.interface import PORTABLE
from foretrace.ir.source.short_tracebacks import Hiding
from foretrace.runtime.backends.by_name import Backend, adapter_of, compiler_named

VERIFIED = partial(capture, verify=True)


@Hiding()
def check(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    backend: Backend | None = None,
    mode: Literal["train", "eval"] | None = None,
) -> Report | BackendReport:
    """Hold a program's graphs against eager; all that it has is as before, afterwards.

    Without a backend every cut, the pair and the compiled callable are compared bit by bit. With
    one, each half that it compiles is; where it is off, the report has the first node that differs.

    Args:
        fn: a function or nn.Module.
        args: its positional arguments.
        kwargs: its keyword arguments.
        backend: by name, as `foretrace.compile` knows it, or a function of graphs.
        mode: set on every module of the program; None: as they are.

    Raises:
        Refusal: the program has no exact graph, or there is no such backend.
    """
    if backend is None:
        return check_bits(VERIFIED, fn, args, kwargs, mode=mode)
    adapter = adapter_of(backend)
    compiler = backend if callable(backend) else compiler_named(backend)
    with in_mode(fn, mode), torch.random.fork_rng(devices=()):
        target = PORTABLE if adapter else None
        program = capture(fn, tuple(args), kwargs, target=target)
        halves = check_backend(
            program,
            args,
            kwargs or {},
            compiler,
            loss=loss_of(program.recorded),
            name=backend if isinstance(backend, str) else named(backend),
            decompositions=adapter.decompositions() if adapter else None,
        )
    return BackendReport(mode or "as is", tuple(halves))


def named(backend: Callable[..., Any]) -> str:
    """A function as module:function, as the script of a report imports it."""
    return f"{getattr(backend, '__module__', '')}:{getattr(backend, '__name__', '')}"
