from foretrace.errors import Refusal
from foretrace.frontends.program.capture import capture, rule
from foretrace.frontends.program.checking import check
from foretrace.frontends.program.cut import Cut
from foretrace.frontends.program.load import Loaded, load
from foretrace.frontends.program.program import Program
from foretrace.frontends.torch_compat.aot_autograd import aot_autograd
from foretrace.frontends.torch_compat.aot_export import aot_export_module
from foretrace.frontends.torch_compat.compile import compile
from foretrace.frontends.torch_compat.export import export
from foretrace.inspect.diff.diff import Diff, diff
from foretrace.inspect.dispatcher.dispatch import dispatch
from foretrace.inspect.dispatcher.dispatch_trace import dispatch_trace
from foretrace.inspect.explain.explanation import Explanation
from foretrace.ir.program.interface import Target
from foretrace.runtime.calls.recapture import Recapture
from foretrace.runtime.graph_breaks.break_report import Break
from foretrace.runtime.graph_breaks.region import region

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
    "check",
    "compile",
    "diff",
    "dispatch",
    "dispatch_trace",
    "export",
    "load",
    "region",
    "rule",
]
