"""Types of results whose sizes depend on data, with a new symbol for each such size."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final

import torch

from foretrace import torch_api
from foretrace.ir.values.nested import leaves, map_tree
from foretrace.ir.values.tensor_type import Size, TensorType
from foretrace.ir.values.value import Tree
from foretrace.operators.abstract_tensors.sparse_layouts import COMPRESSED
from foretrace.operators.inference.cpu_kernels import (
    RAISED,
    CpuKernels,
    absent_devices,
    depends_on_data,
    has_symbols,
    types_in,
)
from foretrace.operators.inference.fake_kernels import Counts, FakeKernels
from foretrace.operators.inference.sparse_ops import STORED_IN_COO, compressed_in, stored_type
from foretrace.operators.schemas.schema import schema_of

ON_HOST: Final[Mapping[Any, tuple[int, ...]]] = MappingProxyType(
    {torch.ops.aten._pack_padded_sequence.default: (1,)}
)
"""By operator, the results that are on the CPU wherever its operands are: sizes of batches"""
STORES = "stored"
"""The key in `Counts` of how many elements a compressed operand stores"""


class DataDependentTypes:
    """Types of calls whose results have sizes that depend on data."""

    def __init__(self, fake_kernels: FakeKernels, cpu_kernels: CpuKernels) -> None:
        self.fake_kernels, self.cpu_kernels = fake_kernels, cpu_kernels
        self.symbols = cpu_kernels.symbols

    def infer(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], real: Tree, counts: Counts
    ) -> Tree:
        """Types of the results of a call.

        Args:
            func: the operator.
            args: its arguments, with a TensorType for each tensor.
            kwargs: the same.
            real: the results in the captured run. Each symbol has its number from there. Where a
                meta kernel says otherwise, dtypes and layouts are those of `real`.
            counts: what earlier calls found of each operand; updated with what this call finds.

        Raises:
            Refusal: a result is in a compressed layout.
        """
        self.symbols.start()
        tensors = [leaf for leaf in leaves(real) if isinstance(leaf, torch.Tensor)]
        if any(tensor.layout in COMPRESSED for tensor in tensors):  # it has no strides to look at
            raise depends_on_data(func)
        types = list[TensorType]()
        if compressed_in((args, kwargs)):
            types = types_in(self._of_stored(func, args, kwargs, counts))
        elif func in STORED_IN_COO:
            types = [stored_type(func, args[0], self._stored(counts[0]))]
        elif torch_api.has_fake_rule(func) or schema_of(func).viewed:
            with suppress(*RAISED):  # eager accepts a mask of bytes
                types = types_in(self.fake_kernels.ask(func, args, kwargs, counts=counts))
        if not types:  # what is not here was computed on the CPU
            types = self._placed(func, absent_devices((args, kwargs)), map(self._open, tensors))
        found = iter([self._as(*pair) for pair in zip(types, tensors, strict=True)])
        return map_tree(real, lambda t: next(found) if isinstance(t, torch.Tensor) else t)

    @staticmethod
    def _placed(
        func: Any, absent: list[torch.device], types: Iterable[TensorType]
    ) -> list[TensorType]:
        """Types on the device of the operands, where that is not here."""
        on_host = ON_HOST.get(func, ())
        return [t.on(absent[0]) if absent and n not in on_host else t for n, t in enumerate(types)]

    def _of_stored(self, func: Any, args: Tree, kwargs: dict[str, Tree], counts: Counts) -> Tree:
        """The types of the tensors that a compressed operand stores; one symbol is their number.

        Raises:
            Refusal: the operand's own sizes are symbolic, too, or there are several.
        """
        operands = list(zip(types_in((args, kwargs)), counts, strict=False))
        known = [each for type, each in operands if isinstance(type.sparse, str)]
        if has_symbols((args, kwargs)) or len(known) > 1:
            raise depends_on_data(func)
        count = self._stored(known[0])

        def sized(none: TensorType, whole: TensorType) -> TensorType:
            pairs = zip(none.shape, whole.shape, strict=True)
            shape = tuple([one if one == other else count for one, other in pairs])
            return none.but(shape=shape).contiguous()

        found = map(types_in, self.cpu_kernels.both(func, args, kwargs))
        return list(map(sized, *found))

    def _stored(self, known: dict[str, Any]) -> Size:
        """The symbol for how many elements a sparse operand stores."""
        if STORES not in known:
            known[STORES] = self.symbols.size(torch_api.new_size(self.symbols.start()))
        size: Size = known[STORES]
        return size

    def _open(self, tensor: torch.Tensor) -> TensorType:
        """The type of a result with a new symbol for each size."""
        env = self.symbols.start()
        sizes = [self.symbols.size(torch_api.new_size(env)) for _ in tensor.shape]
        return TensorType(tuple(sizes), (), tensor.dtype, tensor.device).contiguous()

    def _as(self, type: TensorType, tensor: torch.Tensor) -> TensorType:
        """The type of a result, corrected by the tensor that it was in the captured run."""
        pairs = list(zip(type.shape, tensor.shape, strict=False))
        wrong = any(isinstance(size, int) and size != number for size, number in pairs)
        if wrong or type.dtype != tensor.dtype or len(type.shape) != tensor.dim():
            type = self._open(tensor).on(type.device)
            pairs = list(zip(type.shape, tensor.shape, strict=True))
        for size, number in pairs:
            if self.symbols.unknown(size):
                self.symbols.from_data(size, number)
        if tensor.stride() == tuple(map(self.symbols.hint, type.stride)) or not tensor.numel():
            return type
        return type.ordered(tensor.stride())
