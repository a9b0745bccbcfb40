"""One tree of your PyTorch program; every graph is a cut through it.

A public name is imported when it is first asked for (docs/decisions/021). `__init__.pyi` has the
same names for tools that read types.
"""

from importlib import import_module as _import_module

from foretrace.forks import Shared as _Shared

__version__ = "0.1.0"

_HOMES: dict[str, str] = {
    "Break": "foretrace.pieces.breaks",
    "Cut": "foretrace.program",
    "Diff": "foretrace.alignment.diff",
    "Explanation": "foretrace.explain.explanation",
    "Loaded": "foretrace.loaded",
    "Program": "foretrace.program",
    "Recapture": "foretrace.runtime.compiled",
    "Refusal": "foretrace.errors",
    "Target": "foretrace.ir.program",
    "aot_autograd": "foretrace.compat.aot_autograd",
    "aot_export_module": "foretrace.compat.aot",
    "capture": "foretrace.program",
    "compile": "foretrace.compat.compile",
    "diff": "foretrace.alignment.diff",
    "dispatch": "foretrace.dispatcher.resolve",
    "dispatch_trace": "foretrace.dispatcher.trace",
    "export": "foretrace.compat.export",
    "load": "foretrace.loaded",
    "region": "foretrace.pieces.region",
    "rule": "foretrace.program",
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
