"""TVM: Relax's importer of ExportedPrograms, and LLVM for the CPU."""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final

import torch
from torch import Tensor, fx

from foretrace.runtime.adapters.adapter import Adapter, Run
from foretrace.runtime.adapters.exported import exported

aten = torch.ops.aten


def _build(module: fx.GraphModule) -> Run:
    tvm: Any = import_module("tvm")
    importer: Any = import_module("tvm.relax.frontend.torch")
    compiled = tvm.compile(importer.from_exported_program(exported(module)), target="llvm")
    main = tvm.relax.VirtualMachine(compiled, tvm.cpu())["main"]

    def run(inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        found = main(*(tvm.runtime.tensor(each.numpy()) for each in inputs))
        return [torch.from_numpy(each.numpy()) for each in found]

    return run


def _at_its_place(input: Tensor, dim: int, index: int) -> Any:
    """At an index counted from the end its importer reads outside of the tensor (0.27)."""
    return NotImplemented if index >= 0 else input.select(dim, index + input.shape[dim])


def _scaled(op: Any, input: Tensor, other: Any, *, alpha: Any = 1) -> Any:
    """Its importer leaves `alpha` out."""
    return NotImplemented if alpha == 1 else op(input, other * alpha)


def _as_product(grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, _: bool) -> Any:
    """It has no `scatter_add`, and an `index_put` over all dimensions alone."""
    rows = torch.arange(num_weights, device=grad.device)
    chosen = (indices.flatten() == rows[:, None]) & (rows != padding_idx)[:, None]
    return chosen.to(grad.dtype) @ grad.flatten(0, indices.dim() - 1)


OPENS: Final[tuple[tuple[Any, Callable[..., Any]], ...]] = (
    (aten.select.int, _at_its_place),
    (aten.add.Tensor, partial(_scaled, aten.add.Tensor)),
    (aten.sub.Tensor, partial(_scaled, aten.sub.Tensor)),
    (aten.embedding_dense_backward.default, _as_product),
)
ADAPTER: Final = Adapter("tvm", ("tvm",), "tvm", _build, OPENS)
compile: Final = ADAPTER.compile
