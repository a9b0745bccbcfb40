"""ExecuTorch: its edge dialect, and its portable kernels on the CPU."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

from torch import Tensor, fx

from foretrace.runtime.adapters.adapter import Adapter, Run
from foretrace.runtime.adapters.exported import exported


def _build(module: fx.GraphModule) -> Run:
    exir: Any = import_module("executorch.exir")
    runtime: Any = import_module("executorch.runtime")
    # Its check refuses an operator outside of its list, which its kernels may have all the same.
    config = exir.EdgeCompileConfig(_check_ir_validity=False)
    edge = exir.to_edge(exported(module), compile_config=config)
    program = runtime.Runtime.get().load_program(edge.to_executorch().buffer)

    def run(inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        # It keeps its methods, and they read its memory without holding it.
        found: Sequence[Tensor] = program.load_method("forward").execute(inputs)
        return found

    return run


ADAPTER: Final = Adapter(
    "executorch", ("executorch.exir", "executorch.runtime"), "executorch", _build
)
compile: Final = ADAPTER.compile
