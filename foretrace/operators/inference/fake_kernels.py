"""Types by torch's FakeTensor, where meta kernels alone do not answer."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import torch

from foretrace import torch_api
from foretrace.errors import OUTSIDE, Refusal
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree
from foretrace.operators.abstract_tensors.tensor_types import Types
from foretrace.operators.inference.cpu_kernels import (
    Make,
    absent_devices,
    depends_on_data,
    describe,
    types_in,
    with_tensors,
)
from foretrace.operators.inference.eager_strides import as_iterated

NO_KERNEL = "no meta kernel"
TWO_DEVICES = "found at least two devices"
"""In the error of a call whose tensors are on several devices, FakeTensor's and eager's"""
STORED = 999_983
"""How many elements a sparse operand stores in a question: a size like it depends on data.

With none or one, torch takes the tensor for coalesced.
"""

Counts: TypeAlias = Sequence[dict[str, Any]]
"""What FakeTensor remembers of each tensor of a call: counts that depend on data"""


class FakeKernels:
    """Types of calls by FakeTensor.

    Args:
        mode: the front end's own mode; None: one of ours, created at the first question.
    """

    def __init__(self, types: Types, mode: torch_api.FakeTensorMode | None) -> None:
        self.types, self.symbols, self._mode = types, types.symbols, mode
        self._fakes: tuple[Any, torch_api.FakeTensors | None] = (None, None)
        self._metas: dict[TensorType, torch.Tensor] = {}

    @property
    def fakes(self) -> torch_api.FakeTensors:
        """The fake tensors of the mode. The first symbol starts others: a mode has one ShapeEnv."""
        env, fakes = self._fakes
        if fakes is None or (env is not self.symbols.env and self._mode is None):
            env = self.symbols.env
            fakes = torch_api.FakeTensors(self._mode or torch_api.fake_mode(env))
            self._fakes = env, fakes
        return fakes

    def ask(
        self,
        func: Any,
        args: Tree,
        kwargs: dict[str, Tree],
        *,
        stored: int = STORED,
        after: bool = False,
        counts: Counts | None = None,
    ) -> Tree:
        """Types of the results, or of the operands `after` the call.

        With `counts`, sizes that depend on data are symbols.

        Raises:
            Refusal: a size depends on data, or there is no meta kernel.
            Exception: what the meta kernel raises of the call.
        """
        fakes: list[torch.Tensor] = []
        meta = partial(self._meta_of, stored, self._new_meta if after else self.meta)
        with torch_api.no_dispatch_modes(), torch_api.with_autograd(), torch.no_grad():
            fake = partial(self._fake, meta)
            real_args, real_kwargs = with_tensors((args, kwargs), fakes, fake, self.symbols)
            for tensor, known in zip(fakes, counts or (), strict=False):
                torch_api.put_counts(tensor, known)
            here = not absent_devices((args, kwargs))
            result = self._call(func, real_args, real_kwargs, runs_kernels=here)
            for tensor, known in zip(fakes, counts or (), strict=False):
                known.update(torch_api.counts_of(tensor))
        described = describe(self.types, *((fakes, []) if after else (result, fakes)))
        if any(STORED in type.shape for type in types_in(described)):
            raise depends_on_data(func)
        sizes = [(t.shape, t.stride, t.offset) for t in types_in(described)]
        if counts is None and self.symbols.unknown(sizes):
            raise depends_on_data(func)  # the mode of a front end creates a symbol for it
        return described

    def _call(self, func: Any, args: Any, kwargs: Any, *, runs_kernels: bool) -> Any:
        asking = torch_api.asking(self.fakes.mode, runs_kernels=runs_kernels)
        try:
            with asking, self._python_kernels():
                result = torch_api.checked_call(func, args, kwargs)
                return as_iterated(func, args, result)
        except (
            torch_api.DynamicOutputShapeException,
            torch_api.DataDependentOutputException,
        ) as error:
            raise depends_on_data(func) from error
        except (torch_api.UnsupportedOperatorException, NotImplementedError) as error:
            raise no_meta_kernel(func) from error
        except RuntimeError as error:
            if TWO_DEVICES in str(error):
                raise RuntimeError(str(error)) from None  # of eager's class
            raise

    def _python_kernels(self) -> AbstractContextManager[None]:
        return torch_api.enable_python_dispatcher() if self.symbols.env else nullcontext()

    def _fake(self, meta: Make, type: TensorType) -> torch.Tensor:
        return self.fakes.make(meta(type), type.device)

    def _meta_of(self, stored: int, dense: Make, type: TensorType) -> torch.Tensor:
        if not type.sparse:
            return dense(type)
        shape = map(self.symbols.number, type.shape)
        return torch_api.sparse_meta(shape, type.dtype, int(type.sparse), stored)

    def meta(self, type: TensorType) -> torch.Tensor:
        """The meta tensor of a dense type; one for all calls."""
        known = self._metas.get(type)
        if known is None:
            known = self._metas[type] = self._new_meta(type)
        return known

    def _new_meta(self, type: TensorType) -> torch.Tensor:
        number = self.symbols.number
        size, stride = tuple(map(number, type.shape)), tuple(map(number, type.stride))
        meta = torch.empty_strided(size, stride, dtype=type.dtype, device="meta")
        if type.offset != 0:
            meta = _from(meta, number(type.offset))
        return torch_api.put_off(meta, type.lazy)


def _from(meta: torch.Tensor, offset: Any) -> torch.Tensor:
    """The same tensor at a storage offset, in memory that is large enough.

    A size that depends on data may be 0, and is not compared with anything.
    """
    size, stride = meta.shape, meta.stride()
    empty = any(type(n) is int and not n for n in size)  # a symbolic size is not 0
    steps = zip(size, stride, strict=True)
    last = sum((n if _of_data(n) else n - 1) * step for n, step in steps)
    end = offset if empty else offset + 1 + last
    return meta.new_empty((end,)).as_strided(size, stride, offset)


def _of_data(number: int | torch.SymInt) -> bool:
    """Whether a size depends on data."""
    symbols = () if type(number) is int else torch_api.expression(number).free_symbols
    return any(map(torch_api.is_from_data, symbols))


def no_meta_kernel(func: Any) -> Refusal:
    """The refusal of an operator without a meta kernel."""
    return Refusal(
        f"{func} has no meta kernel, so the types of its results are not known",
        kind=NO_KERNEL,
        do=OUTSIDE
        if func.namespace == "aten"
        else f"register one: torch.library.register_fake({func.name()!r})",
    )
