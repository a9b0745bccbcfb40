"""Whether a call may raise when it runs, although the types of its operands fit.

Eager runs calls whose results nobody reads, so a graph drops only those that cannot raise. The
CPU's kernel is asked. An operand that has to be an integer may be an index out of range; a kernel
that reads values may raise for zeros or NaN; and meta kernels accept some types that do not fit.
"""

from functools import partial
from itertools import count, product
from typing import Any, Final, TypeAlias

import torch

from foretrace import torch_api
from foretrace.ir.program.op import AS_STRIDED, Op
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.values.nested import map_tree
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, map_values
from foretrace.operators.inference.cpu_kernels import (
    RAISED,
    CpuKernels,
    Make,
    filled,
    has_symbols,
    on_cpu,
    types_in,
)
from foretrace.operators.inference.numeric_probe import GENERIC, SPECIAL, at_floats, at_numbers
from foretrace.operators.schemas.cache import Lasting, frozen, lasts, symbols_of
from foretrace.operators.schemas.schema import schema_of

ERRORS: Final = (*RAISED, ArithmeticError)
FILLS: Final[tuple[Make, ...]] = (partial(filled, 0), partial(filled, 1, number=float("nan")))
AS_FLOAT: Final = {8: torch.float64, 4: torch.float32, 2: torch.float16, 1: torch.float16}
"""By the bytes of an integer, a float of at least as many"""
ANY: Final = (*SPECIAL, *GENERIC)
"""Floats in place of one that depends on data"""

Call: TypeAlias = tuple[Tree, dict[str, Tree]]


class Raising:
    """Asks the CPU's kernels whether they raise, once for operands of the same types."""

    def __init__(self, kernels: CpuKernels, lasting: Lasting) -> None:
        self.kernels, self._lasting = kernels, lasting
        self._known: dict[Any, bool] = {}

    def may_raise(self, op: Op) -> bool:
        """Whether an operator's call may raise. Factories and views, but `as_strided`, do not."""
        if not op.operands or (schema_of(op.target).viewed and op.target is not AS_STRIDED):
            return False
        args, kwargs = (map_values(tree, lambda v: v.type) for tree in (op.args, op.kwargs))
        key = frozen((op.target, args, kwargs), followed=False)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._learned(key, op.target, (args, kwargs))
        return known

    def _learned(self, key: Any, func: Any, call: Call) -> bool:
        """The answer; for static sizes, that of every capture."""
        found: bool | None = self._lasting.get(key)
        if found is None:
            with torch_api.CleanRoom():
                found = self._asked(func, map_tree(call, on_cpu))
            if lasts(key) and not symbols_of(key):
                self._lasting.keep(key, found)
        return found

    def _asked(self, func: Any, call: Call) -> bool:
        """Whether a call raises for its sizes, or for others where they are symbolic.

        A float that depends on data may be any. True where the kernel cannot be run.
        """
        if not self.kernels.may_run(func, call):
            return True
        if not (free_symbols(list(call)) or has_symbols(call)):
            return self._raises(func, call)
        symbols = self.kernels.symbols
        floats, sizes = symbols.floats.among(call), (symbols.numbers(), symbols.other_numbers())
        calls = [at_floats(call, dict.fromkeys(floats, n)) for n in ANY] if floats else [call]
        pairs = product(calls, sizes)
        return any(self._raises(func, at_numbers(each, numbers)) for each, numbers in pairs)

    def _raises(self, func: Any, call: Call) -> bool:
        args, kwargs = call
        integers = sum(_integers(type.dtype) for type in types_in(call))
        try:
            for make in FILLS:
                self.kernels.run(func, args, kwargs, make)
            for place in range(integers):
                args, kwargs = _with_a_float(call, place)
                self.kernels.run(func, args, kwargs, FILLS[0])
        except ERRORS:
            return True
        return False


def _integers(dtype: torch.dtype) -> bool:
    return not (dtype.is_floating_point or dtype.is_complex or dtype is torch.bool)


def _with_a_float(call: Call, place: int) -> Any:
    """The call with floats in place of one operand's integers."""
    before = count()

    def of(leaf: Any) -> Any:
        if not isinstance(leaf, TensorType) or not _integers(leaf.dtype) or next(before) != place:
            return leaf
        return leaf.but(dtype=AS_FLOAT[leaf.dtype.itemsize])

    return map_tree(call, of)
