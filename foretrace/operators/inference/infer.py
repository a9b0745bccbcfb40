"""Types of a leaf's results by meta kernels, FakeTensor or the CPU's kernel; cached."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import sympy
import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.values.nested import map_tree
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree
from foretrace.operators.abstract_tensors.tensor_types import Types
from foretrace.operators.inference.cpu_kernels import (
    RAISED,
    CpuKernels,
    absent_devices,
    depends_on_data,
    has_symbols,
    recast,
    types_in,
)
from foretrace.operators.inference.cuda_types import of_cuda
from foretrace.operators.inference.data_dependent_types import DataDependentTypes
from foretrace.operators.inference.eager_strides import as_eager
from foretrace.operators.inference.fake_kernels import NO_KERNEL, FakeKernels, no_meta_kernel
from foretrace.operators.inference.meta_kernels import MetaKernels
from foretrace.operators.inference.numeric_probe import of_any_number, probe
from foretrace.operators.inference.sparse_ops import compressed_in, created, reads_sparse
from foretrace.operators.inference.view_strides import viewed
from foretrace.operators.schemas.cache import (
    ONE_AT_A_TIME,
    Cache,
    Learned,
    frozen,
    lasts,
    symbols_of,
)
from foretrace.operators.schemas.quirks import SIZED_BY_NUMBERS
from foretrace.operators.schemas.schema import schema_of

NOT_LINKED = "not linked with support for"
NUMBERS_ONLY = (
    "does not support symbolic shapes",
    "Expected IntList but got GenericList",  # of an argument
)
"""In the errors of kernels that take numbers only, for symbolic sizes"""
NOT_STORED = "its data is not allocated yet"
"""In the error of a meta kernel that reads what a sparse operand stores"""
NOT_COALESCED = "on an uncoalesced tensor"
"""In the error of a call that returns what a sparse operand stores: its size depends on data"""
READS_NUMBERS = "to be on CPU, got meta"
"""In the error of a kernel that reads the numbers in a tensor, such as a list of scalars"""
VIEWS = frozenset({torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default})
TOO_STRICT = "this can't be cast because it is not safe"
"""In the error of torch's Python kernels for an `out` of a dtype in which eager writes"""

Once: TypeAlias = Callable[..., Tree]
"""Infers one call by one kind of kernel"""


class Inference:
    """Infers the types of a call's results from the types of its tensors.

    Args:
        types: the abstract tensors of the run.

        learned: answers that hold in every capture.
        mode: a front end's own FakeTensorMode.
    """

    def __init__(
        self,
        types: Types,
        learned: Learned,
        mode: torch_api.FakeTensorMode | None = None,
    ) -> None:
        self.types, self.symbols, self.learned = types, types.symbols, learned
        self._known: Cache[Tree] = Cache(learned.results, learned.settled, self.symbols)
        self.fake_kernels = FakeKernels(types, mode)
        self._meta_kernels = MetaKernels(types, self.fake_kernels.meta)
        self.cpu_kernels = CpuKernels(types)
        self.from_data = DataDependentTypes(self.fake_kernels, self.cpu_kernels).infer

    def infer(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Tree:
        """Results with a TensorType for each new tensor, `ReturnedOperand(n)` for the n-th operand.

        Raises:
            Refusal: the results' sizes depend on data, or there is no meta kernel.
            Exception: what eager raises for a wrong call.
        """
        if self.symbols.floats.among((args, kwargs)):
            return self._of_floats(self.infer, func, (args, kwargs))
        key = frozen((func, args, kwargs, torch.get_default_dtype()), followed=False)
        found = self._known.get(key)
        if found is None:
            ask = partial(self._ask, key, func, args, kwargs)
            found = self._known.learn(key, ask, lambda _: True)
        return found

    def _of_floats(self, ask: Callable[..., Any], func: Any, call: Tree) -> Any:
        """The answer about a call with floats that depend on data, if it is one for all floats."""
        found = of_any_number(lambda numbers: ask(func, *numbers), call, self.symbols)
        if found is None:
            raise depends_on_data(func)
        return found

    def again(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Tree:
        """The same, without the warnings that the run has raised."""
        with ONE_AT_A_TIME, warnings.catch_warnings(action="ignore"):
            return self.infer(func, args, kwargs)

    def written(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> tuple[TensorType, ...]:
        """The type of each operand after a call that writes; an `out` may be resized.

        Raises:
            Refusal: there is no meta kernel, or the sizes depend on data.
            Exception: what eager raises for a wrong call.
        """
        if self.symbols.floats.among((args, kwargs)):
            return tuple(self._of_floats(self.written, func, (args, kwargs)))
        key = ("written", frozen((func, args, kwargs, torch.get_default_dtype()), followed=False))
        found = self._known.get(key)
        if found is None:
            ask = partial(self._written, func, args, kwargs)
            found = self._known.learn(key, ask, lambda _: True)
        return tuple(found)

    def _written(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Tree:
        if compressed_in((args, kwargs)):
            raise no_meta_kernel(func)
        try:
            # each run of the program warns by itself
            with ONE_AT_A_TIME, warnings.catch_warnings(action="ignore"):
                return self._run(func, args, kwargs, after=True)
        except RuntimeError as error:
            if TOO_STRICT in str(error):
                raise no_meta_kernel(func) from error
            raise

    def _ask(self, key: Any, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Tree:
        if (known := created(func, args, kwargs) or of_cuda(func, args)) is not None:
            return known
        plain = lasts(key) and not symbols_of(key) and not reads_sparse((args, kwargs))
        found = self._meta_kernels.ask(func, args, kwargs) if plain else self._viewed(func, args)
        run = self._of_compressed if compressed_in((args, kwargs)) else self._run
        found = as_eager(func, args, found or run(func, args, kwargs), self.symbols)
        call, found = map_tree(((args, kwargs), found), self._settled)
        return self.cpu_kernels.laid_out(func, call, found)

    def _viewed(self, func: Any, args: Tree) -> Tree | None:
        """The type of a `view` of symbolic sizes; None where torch has to be asked."""
        if func not in VIEWS:
            return None
        base, shape = args
        found = None if base.sparse else viewed(self.symbols, base.shape, base.stride, shape)
        return found and base.but(shape=found[0], stride=found[1]).with_grad(False)

    def _settled(self, leaf: Any) -> Any:
        if not isinstance(leaf, TensorType) or not leaf.symbols:
            return leaf
        return leaf.but(shape=tuple(map(self.symbols.settled, leaf.shape)))

    def _run(self, func: Any, args: Tree, kwargs: dict[str, Tree], *, after: bool = False) -> Tree:
        ask: Once = partial(self.fake_kernels.ask, after=after)
        if _takes_numbers(func, args, kwargs):
            return self._probe(ask, func, (args, kwargs))
        try:
            if func not in SIZED_BY_NUMBERS:
                return ask(func, args, kwargs)
            ask = partial(self._of_kernel, after=after)
        except ZeroDivisionError:  # a Python decomposition divides by the number of elements
            ask = partial(self._of_kernel, after=after)
        except RAISED as error:
            without = isinstance(error, Refusal) and error.kind == NO_KERNEL  # runs on numbers
            if NOT_LINKED in str(error) or (without and _all_absent((args, kwargs))):
                return self._elsewhere(func, args, kwargs, ask)
            if NOT_STORED in str(error):
                return self.fake_kernels.ask(func, args, kwargs, stored=0, after=after)
            if NOT_COALESCED in str(error):
                raise depends_on_data(func) from error
            if READS_NUMBERS in str(error):
                raise _reads_numbers(func) from error
            said = any(words in str(error) for words in NUMBERS_ONLY)
            if not (said or (without and has_symbols((args, kwargs)))):
                if isinstance(error, Refusal):
                    raise
                if not self._can_run(func, args, kwargs):
                    self._raise_as_eager(func, args, kwargs)
                    raise
                ask = partial(self._of_kernel, after=after)
        return self._at_numbers(ask, func, (args, kwargs))

    def _at_numbers(self, ask: Once, func: Any, call: tuple[Tree, dict[str, Tree]]) -> Tree:
        """Ask with numbers for symbolic sizes, if there are any."""
        return self._probe(ask, func, call) if has_symbols(call) else ask(func, *call)

    def _probe(self, ask: Once, func: Any, call: tuple[Tree, dict[str, Tree]]) -> Tree:
        return probe(lambda each: ask(func, *each), call, self.symbols, str(func))

    def _elsewhere(self, func: Any, args: Tree, kwargs: dict[str, Tree], once: Once) -> Tree:
        """The answer for the CPU: a meta kernel may take a guard of a device that is not there."""
        absent = [t.device for t in types_in((args, kwargs)) if t.device.type != "cpu"]
        there, here = absent[0], torch.device("cpu")
        result = once(func, *_moved((args, kwargs), there, here))
        return _moved(result, here, there)

    def _raise_as_eager(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> None:
        """Raise what eager's kernel does of a wrong call: programs catch errors by their types.

        torch's meta kernels in Python have RuntimeErrors where eager has an IndexError.
        """
        call = args, kwargs
        unsure = torch.Tag.nondeterministic_seeded in func.tags or has_symbols(call)
        if not unsure and self.cpu_kernels.may_run(func, call):
            self._of_kernel(func, args, kwargs)

    def _can_run(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> bool:
        """Whether the CPU's kernel may be run over zeros.

        It may accept a wrong call, so a meta kernel has to accept the call in other dtypes.
        """
        draws = torch.Tag.nondeterministic_seeded in func.tags
        if draws or not self.cpu_kernels.may_run(func, (args, kwargs)):
            return False
        try:
            self.fake_kernels.ask(func, *recast((args, kwargs)))
        except RAISED as error:
            return isinstance(error, Refusal)
        return True

    def _of_compressed(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Tree:
        """By the CPU's kernel, over operands that store nothing and all; few have a meta kernel."""
        if not self.cpu_kernels.may_run(func, (args, kwargs)):
            raise no_meta_kernel(func)
        return self._at_numbers(self._of_kernel, func, (args, kwargs))

    def _of_kernel(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], *, after: bool = False
    ) -> Tree:
        """By the CPU's kernel, which may accept more than a meta kernel."""
        ask: Once = partial(self.cpu_kernels.ask, after=after)
        if any(type.device.type != "cpu" for type in types_in((args, kwargs))):
            return self._elsewhere(func, args, kwargs, ask)
        return ask(func, args, kwargs)


def _reads_numbers(func: Any) -> Refusal:
    return Refusal(
        f"{func} reads the numbers in a tensor",
        kind="data-dependent",
        do="give them as a list of Python numbers",
    )


def _all_absent(call: tuple[Tree, dict[str, Tree]]) -> bool:
    """Whether all tensors of a call are on one device, and that is not here."""
    devices = {type.device for type in types_in(call)}
    return len(devices) == 1 and bool(absent_devices(call))


def _takes_numbers(func: Any, args: Tree, kwargs: dict[str, Tree]) -> bool:
    """Whether a symbolic size is passed where the schema has a plain int."""
    if not any(isinstance(leaf, sympy.Basic) for leaf in (*args, *kwargs.values())):
        return False
    named = schema_of(func).bind(args, kwargs)
    arguments = torch_api.schema_of(func).arguments
    ints = (each for each in arguments if isinstance(each.real_type, torch.IntType))
    return any(isinstance(named.get(each.name), sympy.Basic) for each in ints)


def _moved(tree: Tree, old: torch.device, new: torch.device) -> Any:
    """The structure with one device replaced by another."""

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, TensorType):
            return leaf.on(new) if leaf.device == old else leaf
        return new if isinstance(leaf, torch.device) and leaf == old else leaf

    return map_tree(tree, moved)
