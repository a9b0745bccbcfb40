"""Types of a leaf's results: torch's meta kernels and its FakeTensor, asked once per types."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.op import Tree
from foretrace.ir.types import TensorType
from foretrace.rules.meta import MetaKernels, as_eager, as_iterated
from foretrace.rules.probe import probe
from foretrace.rules.sparse import reads_sparse
from foretrace.symbols.sizes import Symbols
from foretrace.trace.abstract import Types
from foretrace.trace.meaning import Given, map_leaves
from foretrace.trace.memory import Learnt, Memory, lasts, symbols_of
from foretrace.trace.reported import OUTSIDE

NOT_LINKED = "not linked with support for"
NO_KERNEL = "no meta kernel"
NUMBERS_ONLY = (
    "does not support symbolic shapes",
    "Expected IntList but got GenericList",  # of an argument
)
"""Said of open sizes by a kernel that knows numbers only."""
NOT_STORED = "its data is not allocated yet"
"""Said where a sparse operand stores anything: a meta kernel looks at what is stored."""
NOT_COALESCED = "on an uncoalesced tensor"
"""Said of what is stored in a sparse operand, which is as many elements as data makes it."""
STORED = 999_983
"""How many elements a sparse operand stores while types are asked: a size like it depends on data.

Not none or one: torch takes such a tensor for one that need not be coalesced.
"""
READS_NUMBERS = "to be on CPU, got meta"
"""Said of a tensor whose numbers a kernel reads, such as a list of scalars as one tensor."""
TOO_STRICT = "this can't be cast because it is not safe"
"""What torch's Python kernels say of an `out` in whose dtype eager writes all the same."""
HALF_ONLY = "Expected inputs of BF16 type"
"""What the meta kernel of `_grouped_mm` says of float32, which eager takes.

A build with CUDA aligns the result's rows by the dtype, so there it cannot be asked in another.
"""


Once: TypeAlias = Callable[..., Tree]
"""Asks about one call, without the ways round what FakeTensor does not take"""
Meta: TypeAlias = Callable[[TensorType], torch.Tensor]
"""A meta tensor of a type; of its own where it may be written, as an op asks who shares memory"""


class Inference:
    """Asks FakeTensor for the results of a call whose tensors are given by type."""

    def __init__(
        self,
        types: Types,
        symbols: Symbols,
        learnt: Learnt,
        mode: torch_api.FakeTensorMode | None = None,
    ) -> None:
        self.types, self.symbols, self.learnt = types, symbols, learnt
        self._mode = mode
        self._metas: dict[TensorType, torch.Tensor] = {}
        self._known: Memory[Tree] = Memory(learnt.results, learnt.settled, symbols)
        self._kernels = MetaKernels(types, self._meta)

    @property
    def mode(self) -> torch_api.FakeTensorMode:
        """The fake mode: the front end's, or one of our own, made at the first question."""
        if self._mode is None:
            self._mode = torch_api.fake_mode(self.symbols.env)
        return self._mode

    def infer(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Tree:
        """Results with a TensorType for each new tensor, `Given(n)` for the n-th operand.

        Raises:
            Refusal: the results' sizes depend on data, or there is no meta kernel.
            Exception: what eager raises for a wrong call.
        """
        key = frozen((func, args, kwargs, torch.get_default_dtype()), followed=False)
        found = self._known.get(key)
        if found is None:
            ask = partial(self._ask, key, func, args, kwargs)
            found = self._known.learn(key, ask, lambda _: True)
        return found

    def written(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> tuple[TensorType, ...]:
        """The type of each operand after a call that writes; a given `out` may be resized.

        Raises:
            Refusal: there is no meta kernel, or the sizes depend on data.
            Exception: what eager raises for a wrong call.
        """
        key = ("written", frozen((func, args, kwargs, torch.get_default_dtype()), followed=False))
        found = self._known.get(key)
        if found is None:
            ask = partial(self._written, func, args, kwargs)
            found = self._known.learn(key, ask, lambda _: True)
        return tuple(found)

    def _written(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Tree:
        try:
            with warnings.catch_warnings(action="ignore"):  # each run of the program gives its own
                return self._run(func, args, kwargs, partial(self._once, after=True))
        except RuntimeError as error:
            if TOO_STRICT in str(error):
                raise _no_kernel(func) from error
            raise

    def _ask(self, key: Any, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Tree:
        plain = lasts(key) and not symbols_of(key) and not reads_sparse((args, kwargs))
        found = self._kernels.ask(func, args, kwargs) if plain else None
        return as_eager(func, args, found or self._run(func, args, kwargs, self._once))

    def _run(self, func: Any, args: Tree, kwargs: dict[str, Tree], once: Once) -> Tree:
        try:
            return once(func, args, kwargs)
        except ZeroDivisionError:  # a form in Python, over how many elements there are
            return self._of_nothing(func, args, kwargs)
        except RuntimeError as error:
            if NOT_LINKED in str(error):
                return self._elsewhere(func, args, kwargs, once)
            if HALF_ONLY in str(error) and torch.version.cuda is None:
                return self._in_half(func, args, kwargs, once)
            if NOT_STORED in str(error):
                return once(func, args, kwargs, stored=0)
            if NOT_COALESCED in str(error):
                raise _depends_on_data(func) from error
            if READS_NUMBERS in str(error):
                raise _reads_numbers(func) from error
            without = isinstance(error, Refusal) and error.kind == NO_KERNEL  # runs on numbers
            said = any(words in str(error) for words in NUMBERS_ONLY)
            if not said and not (without and _symbolic((args, kwargs))):
                raise
        numbers = self.symbols.numbers()
        return probe(lambda call: once(func, *call), (args, kwargs), numbers, str(func))

    def _elsewhere(self, func: Any, args: Tree, kwargs: dict[str, Tree], once: Once) -> Tree:
        """As on cpu: for a device that the build lacks, where a meta kernel takes a guard of it."""
        absent = [t.device for t in _types((args, kwargs)) if t.device.type != "cpu"]
        there, here = absent[0], torch.device("cpu")
        result = once(func, *_moved((args, kwargs), there, here))
        return _moved(result, here, there)

    def _of_nothing(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Tree:
        """As the kernel of the CPU says: where there are no elements, it has nothing to do."""
        device = _types((args, kwargs))[0].device
        with torch_api.no_dispatch_modes(), torch.no_grad():
            result = func(*_empty(args), **_empty(kwargs))
        return map_leaves(result, lambda t: self.types.of(t, device).with_grad(False))

    def _in_half(self, func: Any, args: Tree, kwargs: dict[str, Tree], once: Once) -> Tree:
        """As in bfloat16, where a meta kernel takes less than eager: the layout is the same."""
        full, half = torch.float32, torch.bfloat16
        return _recast(once(func, *_recast((args, kwargs), full, half)), half, full)

    def _once(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], *, stored: int = STORED,
        after: bool = False,
    ) -> Tree:  # fmt: skip
        """Types of the results; or, `after` the call, of the operands."""
        fakes: list[torch.Tensor] = []
        meta = partial(self._meta_of, stored, self._new_meta if after else self._meta)
        with torch_api.no_dispatch_modes(), torch_api.with_autograd(), torch.no_grad():
            real_args, real_kwargs = self._fake((args, kwargs), fakes, meta)
            result = self._call(func, real_args, real_kwargs)
        described = self._describe(fakes, []) if after else self._describe(result, fakes)
        if any(STORED in type.shape for type in _types(described)):
            raise _depends_on_data(func)
        if self.symbols.unknown([(t.shape, t.stride, t.offset) for t in _types(described)]):
            raise _depends_on_data(func)  # a front end's mode makes a symbol for such a size
        return described

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            with self.mode, self._python_kernels(), torch_api.quiet_fake_tensor():
                return as_iterated(func, args, func(*args, **kwargs))
        except (
            torch_api.DynamicOutputShapeException,
            torch_api.DataDependentOutputException,
        ) as error:
            raise _depends_on_data(func) from error
        except (torch_api.UnsupportedOperatorException, NotImplementedError) as error:
            raise _no_kernel(func) from error

    def _python_kernels(self) -> AbstractContextManager[None]:
        return torch_api.enable_python_dispatcher() if self.symbols.env else nullcontext()

    def _fake(self, tree: Tree, fakes: list[torch.Tensor], meta: Meta) -> Any:
        if isinstance(tree, TensorType):
            fakes.append(torch_api.fake_tensor(self.mode, meta(tree), tree.device))
            return fakes[-1]
        if isinstance(tree, (tuple, list)):
            return type(tree)([self._fake(item, fakes, meta) for item in tree])
        if isinstance(tree, dict):
            return {name: self._fake(item, fakes, meta) for name, item in tree.items()}
        return self.symbols.symbolic(tree)

    def _meta_of(self, stored: int, dense: Meta, type: TensorType) -> torch.Tensor:
        if not type.sparse:
            return dense(type)
        shape = map(self.symbols.number, type.shape)
        return torch_api.sparse_meta(shape, type.dtype, type.sparse, stored)

    def _meta(self, type: TensorType) -> torch.Tensor:
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
        torch_api.set_lazy(meta, type.lazy)
        return meta

    def _describe(self, result: Any, fakes: list[torch.Tensor]) -> Tree:
        if isinstance(result, torch.Tensor):
            for position, fake in enumerate(fakes):
                if result is fake:
                    return Given(position)
            return self.types.of(result).with_grad(False)
        if isinstance(result, (tuple, list)):
            return type(result)([self._describe(item, fakes) for item in result])
        return result


def _from(meta: torch.Tensor, offset: Any) -> torch.Tensor:
    """The same tensor so many elements into memory that is large enough."""
    size, stride = meta.shape, meta.stride()
    empty = any(type(n) is int and not n for n in size)  # an open size is none
    last = sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    end = offset if empty else offset + 1 + last
    return meta.new_empty((end,)).as_strided(size, stride, offset)


def _no_kernel(func: Any) -> Refusal:
    return Refusal(
        f"{func} has no meta kernel, so the types of its results are not known",
        kind="no meta kernel",
        do=OUTSIDE
        if func.namespace == "aten"
        else f"register one: torch.library.register_fake({func.name()!r})",
    )


def _depends_on_data(func: Any) -> Refusal:
    return Refusal(
        f"the size of what {func} returns depends on data",
        kind="data-dependent",
        do="use a form of fixed size: torch.where, a mask, or top-k",
    )


def _reads_numbers(func: Any) -> Refusal:
    return Refusal(
        f"{func} reads the numbers in a tensor",
        kind="data-dependent",
        do="give them as a list of Python numbers",
    )


def _symbolic(tree: Tree) -> bool:
    return any(type.symbols for type in _types(tree))


def _types(tree: Tree) -> list[TensorType]:
    return [leaf for leaf in torch_api.tree_leaves(tree) if isinstance(leaf, TensorType)]


def _empty(tree: Tree) -> Any:
    """The structure with a tensor of the CPU for each type."""
    if isinstance(tree, dict):
        return {name: _empty(item) for name, item in tree.items()}
    return map_leaves(
        tree, lambda t: torch.empty_strided(t.shape, t.stride, dtype=t.dtype)
        if isinstance(t, TensorType) else t
    )  # fmt: skip


def _moved(tree: Tree, old: torch.device, new: torch.device) -> Any:
    """The structure with one device in the place of another."""
    if isinstance(tree, TensorType):
        return tree.on(new) if tree.device == old else tree
    if isinstance(tree, torch.device):
        return new if tree == old else tree
    if isinstance(tree, (tuple, list)):
        return type(tree)([_moved(item, old, new) for item in tree])
    if isinstance(tree, dict):
        return {name: _moved(item, old, new) for name, item in tree.items()}
    return tree


def _recast(tree: Tree, old: torch.dtype, new: torch.dtype) -> Any:
    """The structure with one dtype in the place of another."""
    if isinstance(tree, TensorType):
        return tree.but(dtype=new) if tree.dtype == old else tree
    if isinstance(tree, (tuple, list)):
        return type(tree)([_recast(item, old, new) for item in tree])
    if isinstance(tree, dict):
        return {name: _recast(item, old, new) for name, item in tree.items()}
    return new if tree is old else tree


def frozen(tree: Tree, *, followed: bool = True) -> Any:
    """The structure as a key: numbers of different types, and zeros of different sign, differ.

    Without `followed`, it does not matter which tensors autograd follows.
    """
    if isinstance(tree, TensorType):
        return tree if followed else tree.with_grad(False)
    if isinstance(tree, (tuple, list)):
        return tuple([frozen(item, followed=followed) for item in tree])
    if isinstance(tree, dict):
        pairs = tree.items()
        return tuple([(name, frozen(item, followed=followed)) for name, item in pairs])
    if isinstance(tree, float):
        return tree.hex()
    return (type(tree), tree) if isinstance(tree, (int, bool)) else tree
