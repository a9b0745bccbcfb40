"""Types by torch's meta kernels, called directly where FakeTensor would do nothing else.

A call takes ten microseconds here, and hundreds by FakeTensor.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from foretrace import torch_api
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree
from foretrace.operators.abstract_tensors.tensor_types import Types
from foretrace.operators.inference.cpu_kernels import RAISED, types_in, with_tensors
from foretrace.operators.inference.eager_strides import as_iterated
from foretrace.operators.schemas.schema import schema_of


@cache
def answers(func: Any) -> bool:
    """Whether the results are new tensors on the operands' device, by a plain meta kernel."""
    schema = schema_of(func)
    labelled = "device" in schema.arguments
    return not labelled and not schema.writes and torch_api.plain_meta_kernel(func)


class MetaKernels:
    """Types of calls of torch's own operators, of static sizes, with all tensors on one device."""

    def __init__(self, types: Types, meta: Callable[[TensorType], torch.Tensor]) -> None:
        self.types, self.meta = types, meta

    def ask(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Tree | None:
        """Types of the results; None where FakeTensor has to be asked."""
        if not answers(func):
            return None
        call, metas = (args, kwargs), list[torch.Tensor]()
        operands = types_in(call)
        devices = {type.device for type in operands}
        if len(devices) != 1 or any(type.lazy for type in operands):
            return None  # some kernels resolve a lazy conjugation first, and others do not
        with torch_api.no_dispatch_modes():
            real_args, real_kwargs = with_tensors(call, metas, self.meta, self.types.symbols)
            try:
                result = as_iterated(func, real_args, func(*real_args, **real_kwargs))
            except RAISED:
                return None  # FakeTensor raises it in eager's words
        return self._described(result, devices.pop(), metas)

    def _described(
        self, result: Any, device: torch.device, metas: list[torch.Tensor]
    ) -> Tree | None:
        if isinstance(result, torch.Tensor):
            returned = any(result is meta for meta in metas)
            return None if returned else self.types.of(result, device).with_grad(False)
        if isinstance(result, (tuple, list)):
            found = [self._described(item, device, metas) for item in result]
            return None if None in found else type(result)(found)
        return None
