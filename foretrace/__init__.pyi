from foretrace.alignment.diff import Diff, diff
from foretrace.compat.aot import aot_export_module
from foretrace.compat.aot_autograd import aot_autograd
from foretrace.compat.compile import compile
from foretrace.compat.export import export
from foretrace.dispatcher.resolve import dispatch
from foretrace.dispatcher.trace import dispatch_trace
from foretrace.errors import Refusal
from foretrace.explain.explanation import Explanation
from foretrace.ir.program import Target
from foretrace.loaded import Loaded, load
from foretrace.pieces.breaks import Break
from foretrace.pieces.region import region
from foretrace.program.cut import Cut
from foretrace.program.entry import capture, rule
from foretrace.program.program import Program
from foretrace.runtime.compiled import Recapture

__version__: str

__all__ = [
    "Break",
    "Cut",
    "Diff",
    "Explanation",
    "Loaded",
    "Program",
    "Recapture",
    "Refusal",
    "Target",
    "aot_autograd",
    "aot_export_module",
    "capture",
    "compile",
    "diff",
    "dispatch",
    "dispatch_trace",
    "export",
    "load",
    "region",
    "rule",
]
