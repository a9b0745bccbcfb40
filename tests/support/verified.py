"""Verification of every stage that is made while tests run, whichever entry point makes it."""

import functools
import pkgutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import foretrace
from foretrace.errors import Refusal
from foretrace.ir.program.recording import Graph
from foretrace.lowering.emit import fx
from foretrace.lowering.partition import partition
from foretrace.lowering.pipelines import passes, verify
from foretrace.lowering.pipelines.passes import Context, Pass
from foretrace.session.run import run as record


@functools.cache  # not twice in a process
def everywhere() -> None:
    """From now on, each record, cut, pair and graph module is held against docs/stages.md."""
    for module in pkgutil.walk_packages(foretrace.__path__, "foretrace."):
        import_module(module.name)  # it holds the functions, too
    for home, name, check in CHECKS:
        _replace(getattr(home, name), checking(getattr(home, name), check))
    _replace(passes.run_passes, watched)


def _replace(make: Callable[..., Any], other: Callable[..., Any]) -> None:
    """Put another function wherever the package has one."""
    for module in [m for name, m in sys.modules.items() if name.startswith("foretrace")]:
        for name, held in list(vars(module).items()):
            if held is make:
                setattr(module, name, other)


@functools.wraps(passes.run_passes)
def watched(
    listed: Sequence[Pass], graph: Graph, context: Context, run: Any = passes.run_passes
) -> Graph:
    """Run passes; the graph after each is held against docs/stages.md."""
    verify = passes.verifying(context.recorded, context.semantics.inference.again)

    def watch(done: Pass, before: Graph, after: Graph) -> None:
        try:
            verify(done, before, after)
        except Refusal as fault:
            raise AssertionError(str(fault)) from fault
        if context.watch is not None:
            context.watch(done, before, after)

    found: Graph = run(listed, graph, replace(context, watch=watch))
    return found


def checking(make: Callable[..., Any], check: Callable[..., None]) -> Callable[..., Any]:
    """A function whose results are held against their rules."""

    @functools.wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        result = make(*args, **kwargs)
        try:
            check(result, *args, **kwargs)
        except Refusal as fault:  # a test that takes a refusal for an answer is not to take this
            raise AssertionError(str(fault)) from fault
        return result

    return made


def _record(found: Any, fn: Any, args: Any, kwargs: Any, run: Any, *_: Any) -> None:
    outside = run.outside
    switched = outside is not None and (outside.mentions.switches or outside.switching)
    if switched and not run.known.sees_switches:
        return  # nothing saw what it switched: it is recorded again
    verify.verify_record(found, run.recorder.semantics.inference.again)


def _pair(found: Any, joint: Any, recorded: Any, semantics: Any, *_: Any) -> None:
    verify.verify_pair(joint, found.forward, found.backward)
    for half in (found.forward, found.backward):
        verify.verify_graph(half, recorded, semantics.inference.again)


def _module(found: Any, graph: Any, symbols: Any, *_: Any) -> None:
    verify.verify_module(graph, found, symbols)


CHECKS: list[tuple[Any, str, Callable[..., None]]] = [
    (record, "record", _record),
    (partition, "partition", _pair),
    (fx, "to_fx", _module),
]
"""Where a stage is made, and what holds it against its rules"""
