"""Types of a leaf's results: torch's meta kernels and its FakeTensor, asked once per types."""

import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, TypeAlias

import sympy
import torch

from foretrace import torch_api
from foretrace.errors import OUTSIDE, Refusal
from foretrace.ir.program.nested import leaves, map_tree
from foretrace.ir.program.op import Tree
from foretrace.ir.program.tensor_type import Size, TensorType
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.symbols.view_strides import viewed
from foretrace.operators.abstract_tensors.tensor_types import Types
from foretrace.operators.inference.cpu_kernels import (
    RAISED,
    CpuKernels,
    Make,
    depends_on_data,
    describe,
    recast,
    types_in,
    with_tensors,
)
from foretrace.operators.inference.eager_strides import as_eager, as_iterated
from foretrace.operators.inference.meta_kernels import MetaKernels
from foretrace.operators.inference.numeric_probe import of_any_number, probe
from foretrace.operators.inference.sparse_ops import (
    STORED_IN_COO,
    compressed_in,
    reads_sparse,
    stored_type,
)
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
STORES = "stored"
"""Of a compressed operand: how much it stores"""
READS_NUMBERS = "to be on CPU, got meta"
"""Said of a tensor whose numbers a kernel reads, such as a list of scalars as one tensor."""
VIEWS = frozenset({torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default})
TOO_STRICT = "this can't be cast because it is not safe"
"""What torch's Python kernels say of an `out` in whose dtype eager writes all the same."""

Counts: TypeAlias = Sequence[dict[str, Any]]
"""What is known of each tensor of a call, as FakeTensor remembers it"""
Once: TypeAlias = Callable[..., Tree]
"""Asks about one call, without the ways round what FakeTensor does not take"""


class Inference:
    """Asks FakeTensor for the results of a call whose tensors are given by type."""

    def __init__(
        self,
        types: Types,
        symbols: Symbols,
        learned: Learned,
        mode: torch_api.FakeTensorMode | None = None,
    ) -> None:
        self.types, self.symbols, self.learned = types, symbols, learned
        self._mode = mode
        self._fakes: tuple[Any, torch_api.FakeTensors | None] = (None, None)
        self._metas: dict[TensorType, torch.Tensor] = {}
        self._known: Cache[Tree] = Cache(learned.results, learned.settled, symbols)
        self._kernels = MetaKernels(types, self._meta)
        self.of_cpu = CpuKernels(types, symbols)

    @property
    def fakes(self) -> torch_api.FakeTensors:
        """Of the front end's mode, or of one of our own, made at the first question.

        Another one from where the program has its first symbol on: a mode has one ShapeEnv.
        """
        env, made = self._fakes
        if made is None or (env is not self.symbols.env and self._mode is None):
            env = self.symbols.env
            made = torch_api.FakeTensors(self._mode or torch_api.fake_mode(env))
            self._fakes = env, made
        return made

    def infer(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Tree:
        """Results with a TensorType for each new tensor, `Given(n)` for the n-th operand.

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
        """What is asked of a call with floats that data decides, which no kernel has to know."""
        found = of_any_number(lambda numbers: ask(func, *numbers), call, self.symbols)
        if found is None:
            raise depends_on_data(func)
        return found

    def again(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Tree:
        """The same, without the warnings that the run has given."""
        with ONE_AT_A_TIME, warnings.catch_warnings(action="ignore"):
            return self.infer(func, args, kwargs)

    def from_data(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], real: Tree, counts: Counts
    ) -> Tree:
        """Types of the results of a call whose sizes depend on data, with a new symbol for each.

        `real` is what the call gave in the captured run: of each symbol, the number. It has the
        last word on dtypes and layouts, where a meta kernel says otherwise. `counts` has what was
        found of each operand before, and then what is.
        """
        self.symbols.start()
        tensors = [leaf for leaf in leaves(real) if isinstance(leaf, torch.Tensor)]
        types = list[TensorType]()
        if compressed_in((args, kwargs)):
            types = types_in(self._of_stored(func, args, kwargs, counts))
        elif func in STORED_IN_COO:
            types = [stored_type(func, args[0], self._stored(counts[0]))]
        elif torch_api.has_fake_rule(func) or schema_of(func).viewed:
            with suppress(*RAISED):  # of a call that eager takes: a mask of bytes
                types = types_in(self._once(func, args, kwargs, counts=counts))
        types = types or list(map(self._open, tensors))
        found = iter([self._as(*pair) for pair in zip(types, tensors, strict=True)])
        return map_tree(real, lambda t: next(found) if isinstance(t, torch.Tensor) else t)

    def _of_stored(self, func: Any, args: Tree, kwargs: dict[str, Tree], counts: Counts) -> Tree:
        """The types of what compressed operands store: how much is one symbol for each.

        Raises:
            Refusal: their own sizes are open, too, or there are several.
        """
        operands = list(zip(types_in((args, kwargs)), counts, strict=False))
        known = [each for type, each in operands if isinstance(type.sparse, str)]
        if _symbolic((args, kwargs)) or len(known) > 1:
            raise depends_on_data(func)
        count = self._stored(known[0])

        def sized(none: TensorType, whole: TensorType) -> TensorType:
            pairs = zip(none.shape, whole.shape, strict=True)
            shape = tuple([one if one == other else count for one, other in pairs])
            return none.but(shape=shape).contiguous()

        found = map(types_in, self.of_cpu.both(func, args, kwargs))
        return list(map(sized, *found))

    def _stored(self, known: dict[str, Any]) -> Size:
        """How many elements a sparse operand stores, of which this is known: one symbol."""
        if STORES not in known:
            known[STORES] = self.symbols.size(torch_api.new_size(self.symbols.start()))
        size: Size = known[STORES]
        return size

    def _open(self, tensor: torch.Tensor) -> TensorType:
        """The type of a result of which nobody says what its sizes depend on: all are open."""
        env = self.symbols.start()
        sizes = [self.symbols.size(torch_api.new_size(env)) for _ in tensor.shape]
        return TensorType(tuple(sizes), (), tensor.dtype, tensor.device).contiguous()

    def _as(self, type: TensorType, tensor: torch.Tensor) -> TensorType:
        """The type of a result that was this tensor in the captured run."""
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

    def written(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> tuple[TensorType, ...]:
        """The type of each operand after a call that writes; a given `out` may be resized.

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
            raise _no_kernel(func)
        try:
            # each run of the program gives its own
            with ONE_AT_A_TIME, warnings.catch_warnings(action="ignore"):
                return self._run(func, args, kwargs, after=True)
        except RuntimeError as error:
            if TOO_STRICT in str(error):
                raise _no_kernel(func) from error
            raise

    def _ask(self, key: Any, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Tree:
        plain = lasts(key) and not symbols_of(key) and not reads_sparse((args, kwargs))
        found = self._kernels.ask(func, args, kwargs) if plain else self._viewed(func, args)
        run = self._of_compressed if compressed_in((args, kwargs)) else self._run
        found = as_eager(func, args, found or run(func, args, kwargs))
        call, found = map_tree(((args, kwargs), found), self._settled)
        return self.of_cpu.laid_out(func, call, found)

    def _viewed(self, func: Any, args: Tree) -> Tree | None:
        """The type of a view of what is contiguous, of open sizes; None: torch is to be asked."""
        if func not in VIEWS:
            return None
        of, given = args
        found = None if of.sparse else viewed(self.symbols, of.shape, of.stride, given)
        return found and of.but(shape=found[0], stride=found[1]).with_grad(False)

    def _settled(self, leaf: Any) -> Any:
        if not isinstance(leaf, TensorType) or not leaf.symbols:
            return leaf
        return leaf.but(shape=tuple(map(self.symbols.settled, leaf.shape)))

    def _run(self, func: Any, args: Tree, kwargs: dict[str, Tree], *, after: bool = False) -> Tree:
        ask: Once = partial(self._once, after=after)
        if _takes_numbers(func, args, kwargs):
            return probe(lambda call: ask(func, *call), (args, kwargs), self.symbols, str(func))
        try:
            if func not in SIZED_BY_NUMBERS:
                return ask(func, args, kwargs)
            ask = partial(self._of_kernel, after=after)
        except ZeroDivisionError:  # a form in Python, over how many elements there are
            ask = partial(self._of_kernel, after=after)
        except RAISED as error:
            if NOT_LINKED in str(error):
                return self._elsewhere(func, args, kwargs, ask)
            if NOT_STORED in str(error):
                return self._once(func, args, kwargs, stored=0, after=after)
            if NOT_COALESCED in str(error):
                raise depends_on_data(func) from error
            if READS_NUMBERS in str(error):
                raise _reads_numbers(func) from error
            without = isinstance(error, Refusal) and error.kind == NO_KERNEL  # runs on numbers
            said = any(words in str(error) for words in NUMBERS_ONLY)
            if not said and not (without and _symbolic((args, kwargs))):
                if isinstance(error, Refusal) or not self._can_run(func, args, kwargs):
                    raise
                ask = partial(self._of_kernel, after=after)
        if not _symbolic((args, kwargs)):
            return ask(func, args, kwargs)
        return probe(lambda call: ask(func, *call), (args, kwargs), self.symbols, str(func))

    def _elsewhere(self, func: Any, args: Tree, kwargs: dict[str, Tree], once: Once) -> Tree:
        """As on cpu: for a device that the build lacks, where a meta kernel takes a guard of it."""
        absent = [t.device for t in types_in((args, kwargs)) if t.device.type != "cpu"]
        there, here = absent[0], torch.device("cpu")
        result = once(func, *_moved((args, kwargs), there, here))
        return _moved(result, here, there)

    def _can_run(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> bool:
        """Whether the CPU's kernel may be run over zeros, which need not notice what does not fit.

        Meta kernels say that it fits, of other dtypes.
        """
        draws = torch.Tag.nondeterministic_seeded in func.tags
        if draws or not self.of_cpu.may_run(func, (args, kwargs)):
            return False
        try:
            self._once(func, *recast((args, kwargs)))
        except RAISED as error:
            return isinstance(error, Refusal)
        return True

    def _of_compressed(self, func: Any, args: Tree, kwargs: dict[str, Tree]) -> Tree:
        """By the CPU's kernel, over what stores nothing and what stores all; few have a meta."""
        if not self.of_cpu.may_run(func, (args, kwargs)):
            raise _no_kernel(func)
        if not _symbolic((args, kwargs)):
            return self._of_kernel(func, args, kwargs)
        asked = partial(self._of_kernel, func)
        return probe(lambda call: asked(*call), (args, kwargs), self.symbols, str(func))

    def _of_kernel(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], *, after: bool = False
    ) -> Tree:
        """As the CPU's kernel says: a meta kernel may take less than it."""
        ask: Once = partial(self.of_cpu.ask, after=after)
        if any(type.device.type != "cpu" for type in types_in((args, kwargs))):
            return self._elsewhere(func, args, kwargs, ask)
        return ask(func, args, kwargs)

    def _once(
        self, func: Any, args: Tree, kwargs: dict[str, Tree], *, stored: int = STORED,
        after: bool = False, counts: Counts | None = None,
    ) -> Tree:  # fmt: skip
        """Types of the results, or `after` the call of the operands, as meta kernels say.

        With `counts`, sizes that depend on data are symbols.
        """
        fakes: list[torch.Tensor] = []
        meta = partial(self._meta_of, stored, self._new_meta if after else self._meta)
        with torch_api.no_dispatch_modes(), torch_api.with_autograd(), torch.no_grad():
            fake = partial(self._fake, meta)
            real_args, real_kwargs = with_tensors((args, kwargs), fakes, fake, self.symbols)
            for tensor, known in zip(fakes, counts or (), strict=False):
                torch_api.put_counts(tensor, known)
            result = self._call(func, real_args, real_kwargs)
            for tensor, known in zip(fakes, counts or (), strict=False):
                known.update(torch_api.counts_of(tensor))
        described = describe(self.types, *((fakes, []) if after else (result, fakes)))
        if any(STORED in type.shape for type in types_in(described)):
            raise depends_on_data(func)
        sizes = [(t.shape, t.stride, t.offset) for t in types_in(described)]
        if counts is None and self.symbols.unknown(sizes):
            raise depends_on_data(func)  # a front end's mode makes a symbol for such a size
        return described

    def _call(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            with torch_api.asking(self.fakes.mode), self._python_kernels():
                result = torch_api.checked_call(func, args, kwargs)
                return as_iterated(func, args, result)
        except (
            torch_api.DynamicOutputShapeException,
            torch_api.DataDependentOutputException,
        ) as error:
            raise depends_on_data(func) from error
        except (torch_api.UnsupportedOperatorException, NotImplementedError) as error:
            raise _no_kernel(func) from error

    def _python_kernels(self) -> AbstractContextManager[None]:
        return torch_api.enable_python_dispatcher() if self.symbols.env else nullcontext()

    def _fake(self, meta: Make, type: TensorType) -> torch.Tensor:
        return self.fakes.make(meta(type), type.device)

    def _meta_of(self, stored: int, dense: Make, type: TensorType) -> torch.Tensor:
        if not type.sparse:
            return dense(type)
        shape = map(self.symbols.number, type.shape)
        return torch_api.sparse_meta(shape, type.dtype, int(type.sparse), stored)

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
        return torch_api.put_off(meta, type.lazy)


def _from(meta: torch.Tensor, offset: Any) -> torch.Tensor:
    """The same tensor so many elements into memory that is large enough.

    Memory of less than nothing is none: what data decides may be 0, and is not to be asked of.
    """
    size, stride = meta.shape, meta.stride()
    empty = any(type(n) is int and not n for n in size)  # an open size is none
    steps = zip(size, stride, strict=True)
    last = sum((n if _of_data(n) else n - 1) * step for n, step in steps)
    end = offset if empty else offset + 1 + last
    return meta.new_empty((end,)).as_strided(size, stride, offset)


def _of_data(number: int | torch.SymInt) -> bool:
    """Whether data decides a size."""
    symbols = () if type(number) is int else torch_api.expression(number).free_symbols
    return any(map(torch_api.is_from_data, symbols))


def _no_kernel(func: Any) -> Refusal:
    return Refusal(
        f"{func} has no meta kernel, so the types of its results are not known",
        kind="no meta kernel",
        do=OUTSIDE
        if func.namespace == "aten"
        else f"register one: torch.library.register_fake({func.name()!r})",
    )


def _reads_numbers(func: Any) -> Refusal:
    return Refusal(
        f"{func} reads the numbers in a tensor",
        kind="data-dependent",
        do="give them as a list of Python numbers",
    )


def _takes_numbers(func: Any, args: Tree, kwargs: dict[str, Tree]) -> bool:
    """Whether an open size is given where the schema has a plain int."""
    if not any(isinstance(leaf, sympy.Basic) for leaf in (*args, *kwargs.values())):
        return False
    given = schema_of(func).bind(args, kwargs)
    arguments = torch_api.schema_of(func).arguments
    ints = (each for each in arguments if isinstance(each.real_type, torch.IntType))
    return any(isinstance(given.get(each.name), sympy.Basic) for each in ints)


def _symbolic(tree: Tree) -> bool:
    return any(type.symbols for type in types_in(tree))


def _moved(tree: Tree, old: torch.device, new: torch.device) -> Any:
    """The structure with one device in the place of another."""

    def moved(leaf: Any) -> Any:
        if isinstance(leaf, TensorType):
            return leaf.on(new) if leaf.device == old else leaf
        return new if isinstance(leaf, torch.device) and leaf == old else leaf

    return map_tree(tree, moved)
