"""Verification of every stage that is made while tests run, whichever entry point makes it."""

import functools
import pkgutil
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import foretrace
from foretrace.errors import Refusal
from foretrace.ir.program import verify
from foretrace.lowering.cuts import cut
from foretrace.lowering.emit import fx
from foretrace.lowering.partition import partition
from foretrace.session.run import run as record


@functools.cache  # not twice in a process
def everywhere() -> None:
    """From now on, each record, cut, pair and graph module is held against docs/stages.md."""
    for module in pkgutil.walk_packages(foretrace.__path__, "foretrace."):
        import_module(module.name)  # it holds the functions, too
    for home, name, check in CHECKS:
        _replace(getattr(home, name), check)


def _replace(make: Callable[..., Any], check: Callable[..., None]) -> None:
    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        result = make(*args, **kwargs)
        try:
            check(result, *args, **kwargs)
        except Refusal as fault:  # a test that takes a refusal for an answer is not to take this
            raise AssertionError(str(fault)) from fault
        return result

    for module in [m for name, m in sys.modules.items() if name.startswith("foretrace")]:
        for name, held in list(vars(module).items()):
            if held is make:
                setattr(module, name, made)


def _record(found: Any, fn: Any, args: Any, kwargs: Any, run: Any, *_: Any) -> None:
    verify.verify_record(found, run.recorder.semantics.inference.again)


def _graph(found: Any, recorded: Any, semantics: Any, *_: Any, **__: Any) -> None:
    verify.verify_graph(found, recorded, semantics.inference.again)


def _pair(found: Any, joint: Any, recorded: Any, semantics: Any, *_: Any) -> None:
    verify.verify_pair(joint, found.forward, found.backward)
    for half in (found.forward, found.backward):
        verify.verify_graph(half, recorded, semantics.inference.again)


def _module(found: Any, graph: Any, symbols: Any, *_: Any) -> None:
    verify.verify_module(graph, found, symbols)


CHECKS: list[tuple[Any, str, Callable[..., None]]] = [
    (record, "record", _record),
    (cut, "forward_graph", _graph),
    (cut, "inference_graph", _graph),
    (cut, "differentiated", _graph),
    (partition, "partition", _pair),
    (fx, "to_fx", _module),
]
"""Where a stage is made, and what holds it against its rules"""
