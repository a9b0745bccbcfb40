"""Breakpoints: the files and lines behind each step of an explanation."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from inspect import unwrap
from pathlib import Path
from types import CodeType
from typing import Any, Final

from foretrace import torch_api
from foretrace.autograd.backward.differentiate import Differentiation
from foretrace.autograd.derivatives.derive import Derivatives
from foretrace.autograd.derivatives.registry import RuleTable
from foretrace.autograd.derivatives.run_hooks import run_hook
from foretrace.autograd.derivatives.target_semantics import COMPOSITE, TargetSemantics
from foretrace.autograd.eager_history.emit_history import emit_history
from foretrace.errors import PACKAGE_DIR, Attempt, Refusal
from foretrace.inspect.dispatcher.names import operator
from foretrace.inspect.dispatcher.registrations import PACKAGES, Kernel, registered
from foretrace.inspect.explain.explanation import Link, Place, shown_path
from foretrace.inspect.explain.tree_path import LAYOUT, TABLE
from foretrace.lowering.cuts.cut import flatten
from foretrace.lowering.cuts.decompose import decompose
from foretrace.lowering.cuts.runtime_asserts import with_assertions
from foretrace.lowering.emit.fx import to_fx
from foretrace.lowering.partition.partition import partition, second
from foretrace.lowering.partition.policies import choose
from foretrace.lowering.partition.recompute import recomputed
from foretrace.operators.inference.infer import Inference
from foretrace.operators.targets.sdpa import choose_attention
from foretrace.session.run.run import record
from foretrace.tracer.functionalization.functionalize import functionalize
from foretrace.tracer.higher_order.trace_hop import hold
from foretrace.tracer.higher_order.views_as_copies import in_copies
from foretrace.tracer.recorder.autograd_function import function_calls
from foretrace.tracer.recorder.module_calls import ModuleCalls
from foretrace.tracer.recorder.recorder import Recorder
from foretrace.tracer.subclasses.dispatch import SubclassKernel

OF_FUNC: Final = "str(func) == {!r}"
OURS: Final = str(Path(PACKAGE_DIR).parent) + "/"

STEPS: dict[str, tuple[str, Callable[..., Any]]] = {
    "module": ("module", ModuleCalls.open),
    "asserted": ("recorded", with_assertions),
    "again": ("saved", second),
    "made again": ("saved", recomputed),
    "early": ("saved", second),
    "copy": ("saved", partition),
    "saved": ("saved", choose),
    "history": ("history", emit_history),
    "layout": ("opened", decompose),
    "inside": ("kept", flatten),
    "derived": ("rule", Derivatives.rule),
    "because": ("rule", Differentiation.walk),
    "input": ("recorded", record),
    "output": ("recorded", record),
    "held": ("emitted", to_fx),
    "user": ("emitted", to_fx),
    "size": ("emitted", to_fx),
    "part": ("emitted", to_fx),
    "holds": ("recorded", hold),
    "copied": ("opened", in_copies),
}
"""The function of foretrace that decides a step, by the step's kind"""

OPENED: dict[str, tuple[str, Callable[..., Any]]] = {
    "functional form": ("write", functionalize),
    "autograd.Function": ("body", function_calls),
    "program": ("body", hold),
    "wrapper": ("body", SubclassKernel.__call__),
    "choice": ("choice", choose_attention),
    TABLE: ("opened", decompose),
    LAYOUT: ("opened", decompose),
}
"""The function that opens an op, by what opens it"""


BY_WALK: dict[str | None, Callable[..., Any]] = {
    "engine": Differentiation.walk,
    "hook": run_hook,
}
"""The function that creates backward ops outside any operator's derivative"""


def with_places(links: Sequence[Link], table: RuleTable) -> list[Link]:
    """The links with the places where a breakpoint stops at their steps."""
    found, above = [], ""
    for link in links:
        op = link.facts.get("op", "")
        path = with_places(link.path, table)
        served = next((each.facts.get("op", op) for each in links if each.kind == "because"), op)
        places = tuple(_places(link, op, above, served, table))
        found.append(replace(link, places=places, path=tuple(path)))
        above = op or above
    return found


def _places(link: Link, op: str, above: str, served: str, table: RuleTable) -> Iterator[Place]:
    """The places of one step.

    Args:
        link: the step.
        op: the operator of the step, if any.
        above: the operator that calls it.
        served: of a rule, the forward operator whose derivative it is.
        table: the registered rules.
    """
    if link.kind == "line":
        yield _of_line(link)
    elif link.kind == "written":
        yield _of_code("recorded", Recorder.__torch_dispatch__, OF_FUNC.format(op))
        yield from _types(op)
    elif link.kind == "opened":
        if "choice" in link.facts:
            yield from _choosing(link.facts["choice"]["what"])
        yield from _opening(link.facts.get("by"), above)
        yield from _types(op)
    elif link.kind in ("leaf", "whole"):
        if "choice" in link.facts:
            yield from _choosing(link.facts["choice"]["what"])
        yield _of_code(
            "opened", TargetSemantics.body_kernel, OF_FUNC.format(above) if above else ""
        )
    elif link.kind == "rule":
        yield from _rule(link.facts.get("by"), served, table)
    elif link.kind in STEPS:
        yield _of_code(*STEPS[link.kind])


def _of_line(link: Link) -> Place:
    """The user's line; the place of the recording for an op without one."""
    if "line" not in link.facts:
        return _of_code("recorded", record)
    file, line = link.facts["file"], link.facts["line"]
    return Place("line", shown_path(file), int(line), link.facts["function"], stop=str(file))


def _opening(by: str | None, above: str) -> Iterator[Place]:
    if by in OPENED:
        yield _of_code(*OPENED[by])
    yield _of_code("opened", TargetSemantics.body_kernel, OF_FUNC.format(above))
    if by == COMPOSITE:
        kernel = _kernels(above).get(COMPOSITE)
        if kernel is not None:
            yield _of_kernel("body", kernel)


def _choosing(what: str) -> Iterator[Place]:
    if what.startswith("attention"):
        yield _of_code("choice", choose_attention)


def _types(op: str) -> Iterator[Place]:
    """The functions that infer the types of an op: foretrace's, then torch's meta kernel."""
    yield _of_code("types", Inference.infer, OF_FUNC.format(op))
    kernels = _kernels(op)
    meta = kernels.get("Meta") or kernels.get("CompositeExplicitAutogradNonFunctional")
    function = _python_kernel(op, "Meta")
    if function is not None:
        yield _of_code("meta", function)
    elif meta is not None:
        yield _of_kernel("meta", meta)


def _rule(by: str | None, served: str, table: RuleTable) -> Iterator[Place]:
    """The function of a derivative, and torch's autograd kernel for a derived one."""
    if by in BY_WALK:
        yield _of_code("rule", BY_WALK[by])
        return
    yield _of_code("rule", Derivatives.rule, OF_FUNC.format(served))
    op = _overload(served)
    rule = None if op is None else table.registered(op)
    if by == "registered" and rule is not None:
        yield _of_code("backward", rule.backward)
        return
    kernel = _kernels(served).get("Autograd")
    if kernel is not None:
        yield _of_kernel("autograd", kernel)


# ---- places -------------------------------------------------------------------------------------


def _of_code(what: str, function: Callable[..., Any], condition: str = "") -> Place:
    """The first line that runs of a Python function."""
    function = unwrap(function)
    code: CodeType | None = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__name__)
    if code is None:
        return Place(what, name, None)
    lines = (line for *_, line in code.co_lines() if line and line != code.co_firstlineno)
    file = code.co_filename
    where = file.removeprefix(PACKAGES).removeprefix(OURS)  # an environment may be in our folder
    return Place(what, where, next(lines, code.co_firstlineno), name, file, condition)


def _of_kernel(what: str, kernel: Kernel) -> Place:
    """The place where a kernel is registered, in C++ or torch's Python."""
    there = Path(PACKAGES) / kernel.file
    stop = str(there) if kernel.file.endswith(".py") and there.exists() else None
    return Place(what, kernel.file, kernel.line, stop=stop)


def _overload(name: str) -> Any:
    """The operator of a name; None if there is none."""
    if not name or "." not in name or "<" in name:
        return None
    with Attempt(Refusal, AttributeError) as attempt:
        return operator(name)
    assert attempt.error is not None
    return None


def _kernels(name: str) -> dict[str, Kernel]:
    op = _overload(name)
    return {} if op is None else registered(op.name())


def _python_kernel(name: str, key: str) -> Callable[..., Any] | None:
    """The Python function that C++ or the PythonDispatcher takes at a key."""
    op = _overload(name)
    return None if op is None else torch_api.python_kernels(op).get(key)
