"""torch-mlir's importer and IREE, for the CPU of this machine."""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor, fx

from foretrace.runtime.adapters.adapter import Adapter, Run
from foretrace.runtime.adapters.exported import exported

aten = torch.ops.aten
SCATTERS: Final = (aten.scatter.src, aten.scatter.value, aten.scatter_add.default)
OPTIONS: Final = ("--iree-llvmcpu-target-cpu=host",)


def _build(module: fx.GraphModule) -> Run:
    compiler: Any = import_module("iree.compiler")
    runtime: Any = import_module("iree.runtime")
    binary = compiler.compile_str(
        _imported(module), target_backends=["llvm-cpu"], input_type="torch", extra_args=[*OPTIONS]
    )
    config = runtime.Config("local-sync")
    context = runtime.SystemContext(config=config)
    context.add_vm_module(runtime.VmModule.copy_buffer(config.vm_instance, binary))
    main = context.modules.module["main"]

    def run(inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        found = main(*(each.numpy() for each in inputs))
        found = found if isinstance(found, (tuple, list)) else (found,)
        return [torch.from_numpy(each.to_host().copy()) for each in found]

    return run


def _from_the_left(op: Any, input: Tensor, dim: int, *rest: Any) -> Any:
    """A dimension counted from the right ends IREE's compiler in a crash (3.13)."""
    return NotImplemented if dim >= 0 else op(input, dim + input.dim(), *rest)


def _at_its_place(input: Tensor, source: Tensor, dim: int, index: int) -> Any:
    """At an index counted from the end torch-mlir's importer writes nothing (20261001)."""
    size = input.shape[dim]
    return (
        NotImplemented
        if index >= 0
        else aten.select_scatter.default(input, source, dim, index + size)
    )


def _imported(module: fx.GraphModule) -> str:
    """The graph in torch-mlir's dialect, as text: IREE has a torch-mlir of its own."""
    ir: Any = import_module("torch_mlir.ir")
    dialect: Any = import_module("torch_mlir.dialects.torch")
    importers: Any = import_module("torch_mlir.extras.fx_importer")
    context = ir.Context()
    dialect.register_dialect(context)
    importer = importers.FxImporter(context=context)
    importer.import_frozen_program(exported(module), func_name="main")
    text: str = importer.module.operation.get_asm(enable_debug_info=False)
    return text


OPENS: Final[tuple[tuple[Any, Callable[..., Any]], ...]] = (
    *((op, partial(_from_the_left, op)) for op in SCATTERS),
    (aten.select_scatter.default, _at_its_place),
)
ADAPTER: Final = Adapter(
    "iree", ("iree.compiler", "iree.runtime", "torch_mlir"), "iree", _build, OPENS
)
compile: Final = ADAPTER.compile
