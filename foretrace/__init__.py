"""One tree of your PyTorch program; every graph is a cut through it.

A public name is imported when it is first asked for (docs/decisions/021). `__init__.pyi` has the
same names for tools that read types.
"""

from importlib import import_module as _import_module

from foretrace.forks import Shared as _Shared

__version__ = "0.1.0"

_HOMES: dict[str, str] = {
    "Break": "foretrace.runtime.graph_breaks.break_report",
    "Cut": "foretrace.frontends.program",
    "Diff": "foretrace.inspect.diff.diff",
    "Explanation": "foretrace.inspect.explain.explanation",
    "Loaded": "foretrace.frontends.program.load",
    "Program": "foretrace.frontends.program",
    "Recapture": "foretrace.runtime.calls.recapture",
    "Refusal": "foretrace.errors",
    "Target": "foretrace.ir.program.recording",
    "aot_autograd": "foretrace.frontends.torch_compat.aot_autograd",
    "aot_export_module": "foretrace.frontends.torch_compat.aot_export",
    "capture": "foretrace.frontends.program",
    "check": "foretrace.frontends.program.checking",
    "compile": "foretrace.frontends.torch_compat.compile",
    "diff": "foretrace.inspect.diff.diff",
    "dispatch": "foretrace.inspect.dispatcher.dispatch",
    "dispatch_trace": "foretrace.inspect.dispatcher.dispatch_trace",
    "export": "foretrace.frontends.torch_compat.export",
    "load": "foretrace.frontends.program.load",
    "region": "foretrace.runtime.graph_breaks.region",
    "rule": "foretrace.frontends.program",
}
"""The module that each public name stands in"""

__all__ = list(_HOMES)

_IMPORTING = _Shared()
"""A fork waits for it: in the child a module that another thread imports would stay locked"""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    with _IMPORTING:
        return getattr(_import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
