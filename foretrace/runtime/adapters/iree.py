"""torch-mlir's importer and IREE, for the CPU of this machine."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor, fx

from foretrace.runtime.adapters.adapter import Adapter, Run
from foretrace.runtime.adapters.exported import exported

aten = torch.ops.aten
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


OPENS: Final = ()
ADAPTER: Final = Adapter(
    "iree", ("iree.compiler", "iree.runtime", "torch_mlir"), "iree", _build, OPENS
)
compile: Final = ADAPTER.compile
