"""Types of a call's results by the CPU's kernel, run over zeros where no meta kernel answers.

The run has no effects: the generator is restored, and warnings are suppressed.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeAlias

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.nested import map_tree
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree
from foretrace.operators.abstract_tensors.sparse_layouts import compressed
from foretrace.operators.abstract_tensors.tensor_types import Types
from foretrace.operators.inference.numeric_probe import probe
from foretrace.operators.schemas.cache import ONE_AT_A_TIME
from foretrace.operators.schemas.dispatch_result import ReturnedOperand
from foretrace.operators.schemas.quirks import SIZED_BY_NUMBERS
from foretrace.operators.schemas.schema import schema_of

RAISED: Final = (RuntimeError, IndexError, ValueError, TypeError, AssertionError)
"""The errors of kernels for calls that they do not take; those in Python assert"""
NOT_SYMBOLIC: Final = "with symbolic sizes"
"""In the error of C++ that takes numbers only"""
CPU: Final = torch.device("cpu")
MOST_BYTES: Final = 2**28
"""The most bytes of operands with which a kernel is run"""
MOST_ODD: Final = 2**18
"""The most elements of a tensor, where a kernel is run only for the layout of its results"""
INSTEAD: Final = {torch.uint8: torch.bool, torch.float32: torch.bfloat16}
"""Dtypes that eager takes and a meta kernel may not (a mask's, `_grouped_mm`'s), with another."""

Make: TypeAlias = Callable[[TensorType], torch.Tensor]
"""Creates a tensor of a type; a new one where it may be written, as an op asks who shares memory"""


@contextmanager
def draws_undone() -> Iterator[None]:
    """Restore torch's generator at the end."""
    state = torch.default_generator.get_state()
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


class CpuKernels:
    """Runs kernels of the CPU over zeros."""

    def __init__(self, types: Types) -> None:
        self.types, self.symbols = types, types.symbols

    def may_run(self, func: Any, call: Tree) -> bool:
        """Whether a run has no effects: of torch's own operators, over plain tensors.

        No kernel checks the content of a workspace. Where the build has CUDA, its kernels answer.
        """
        types = types_in(call)
        size = sum(self.symbols.hint(type.numel) * type.dtype.itemsize for type in types)
        plain = not any(type.sparse and isinstance(type.sparse, int) for type in types)
        devices = {type.device.type for type in types}
        here = devices == {"cpu"} or (len(devices) == 1 and torch.version.cuda is None)
        drawn = any(isinstance(leaf, torch.Generator) for leaf in torch_api.tree_leaves(call))
        own = func.namespace == "aten" and "workspace" not in schema_of(func).arguments
        return own and plain and here and not drawn and size <= MOST_BYTES

    def ask(self, func: Any, args: Tree, kwargs: dict[str, Tree], *, after: bool = False) -> Tree:
        """Types of the results of a call on the CPU, or of its operands `after` the call.

        Raises:
            Refusal: a size of the results depends on a mask's elements.
            Exception: what the kernel raises of the call, in eager's words.
        """
        found = self.both(func, args, kwargs, after=after)
        sized = torch.Tag.dynamic_output_shape in func.tags and func not in SIZED_BY_NUMBERS
        if found[0] != found[1] or sized:
            raise depends_on_data(func)
        return found[0]

    def both(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], *, after: bool = False
    ) -> list[Tree]:
        """The answers for masks that are false, and true, everywhere; see `filled`."""
        found = []
        for mask in (0, 1):
            result, operands = self.run(func, args, kwargs, partial(filled, mask))
            described = (operands, []) if after else (result, operands)
            found.append(describe(self.types, *described))
        return found

    def run(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], make: Make
    ) -> tuple[Any, list[torch.Tensor]]:
        """The result of a call, and its operands, which `make` creates.

        Raises:
            Exception: what the kernel raises of the call, in eager's words.
        """
        operands: list[torch.Tensor] = []
        with _unseen():
            real_args, real_kwargs = with_tensors((args, kwargs), operands, make, self.symbols)
            return func(*real_args, **real_kwargs), operands

    def laid_out(self, func: Any, call: Tree, result: Tree) -> Tree:
        """The types of a result in eager's layout, where operands may have unusual strides.

        torch's Python meta kernels do not follow TensorIterator there. Pointwise operators do, on
        any device but meta.
        """
        types = types_in((call, result))
        if not any(type.odd for type in types_in(call)) or schema_of(func).viewed:
            return result
        small = all(self.symbols.hint(type.numel) <= MOST_ODD for type in types)
        devices = {type.device.type for type in types}
        same = devices == {"cpu"} or (torch.Tag.pointwise in func.tags and "meta" not in devices)
        here: Any = map_tree(call, on_cpu)
        if not (small and same and self.may_run(func, here)):
            return result
        try:
            found = probe(lambda each: self.ask(func, *each), here, self.symbols, str(func))
        except RAISED:
            return result
        return _restrided(result, found, self.symbols)


def recast(tree: Tree) -> Any:
    """The structure in the dtypes of `INSTEAD`."""

    def of(leaf: Any) -> Any:
        if isinstance(leaf, TensorType):
            return leaf.but(dtype=INSTEAD.get(leaf.dtype, leaf.dtype))
        return INSTEAD.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf

    return map_tree(tree, of)


def on_cpu(leaf: Any) -> Any:
    """A leaf of a call, with the CPU in the place of a device."""
    if isinstance(leaf, TensorType):
        return leaf.on(CPU)
    return CPU if isinstance(leaf, torch.device) else leaf


def types_in(tree: Tree) -> list[TensorType]:
    """The tensors' types in a structure."""
    return [leaf for leaf in torch_api.tree_leaves(tree) if isinstance(leaf, TensorType)]


def absent_devices(tree: Tree) -> list[torch.device]:
    """The devices of tensors in a structure that are not here."""
    here = torch_api.device_types_here()
    return [type.device for type in types_in(tree) if type.device.type not in here]


def has_symbols(tree: Tree) -> bool:
    """Whether a tensor's type in a structure has symbolic sizes."""
    return any(type.symbols for type in types_in(tree))


def with_tensors(tree: Tree, new: list[torch.Tensor], make: Make, symbols: Symbols) -> Any:
    """The structure with a tensor for each type, appended to `new`, and symbolic numbers."""

    def of(leaf: Any) -> Any:
        if not isinstance(leaf, TensorType):
            return symbols.symbolic(leaf)
        new.append(make(leaf))
        return new[-1]

    return map_tree(tree, of)


def describe(types: Types, result: Any, operands: list[torch.Tensor]) -> Tree:
    """A result with a TensorType for each new tensor, `ReturnedOperand(n)` for the n-th operand."""
    if isinstance(result, torch.Tensor):
        for position, operand in enumerate(operands):
            if result is operand:
                return ReturnedOperand(position)
        return types.of(result).with_grad(False)
    if isinstance(result, (tuple, list)):
        return type(result)([describe(types, item, operands) for item in result])
    return result


def depends_on_data(func: Any) -> Refusal:
    """The refusal of a call with results whose sizes depend on data."""
    return Refusal(
        f"the size of what {func} returns depends on data",
        kind="data-dependent",
        do="use a form of fixed size: torch.where, a mask, or top-k",
    )


@contextmanager
def _unseen() -> Iterator[None]:
    """Record nothing of what runs inside; suppress its warnings; undo its draws."""
    quiet = warnings.catch_warnings(action="ignore")
    with ONE_AT_A_TIME, quiet, draws_undone(), torch_api.plain_torch():
        yield


def filled(mask: int, type: TensorType, number: float = 0.0) -> torch.Tensor:
    """A tensor of a type, full of `mask` if it has masks, of zeros if integers, else of a number.

    One in a compressed layout stores nothing, or all if `mask` is 1.
    """
    if isinstance(type.sparse, str):
        return compressed(type.sparse, type.shape, type.dtype, whole=bool(mask))
    tensor = torch.empty_strided(type.shape, type.stride, dtype=type.dtype)
    full = number if type.differentiable else 0
    tensor.fill_(mask if type.dtype in (torch.bool, torch.uint8) else full)
    return torch_api.put_off(tensor, type.lazy)


def _restrided(result: Tree, like: Tree, symbols: Symbols) -> Tree:
    """The types of a result with the strides of others of the same shape."""
    if isinstance(result, (tuple, list)):
        pairs = zip(result, like, strict=True)
        return type(result)([_restrided(one, other, symbols) for one, other in pairs])
    if not (isinstance(result, TensorType) and isinstance(like, TensorType)):
        return result
    same = len(result.shape) == len(like.shape)
    same = same and all(map(symbols.equal, result.shape, like.shape))
    return result.but(stride=like.stride) if same else result
