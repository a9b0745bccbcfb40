"""ShapeEnv and the expressions in it."""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, wraps
from inspect import unwrap
from types import MappingProxyType
from typing import Any

import sympy
import torch

# ShapeEnv names each symbol by a Source (torch._dynamo's own take half a second to import), and
# GuardSource says where such a source stands.
from torch._guards import GuardSource, Source

# What torch's kernels for fake tensors do with the size of what `nonzero` gives, and what looks for
# open sizes in a tensor (2.15's flex_attention asks it; checked on 2.13, 2.14 and 2.15).
from torch.fx.experimental.symbolic_shapes import (
    CallMethodKey,
    DimDynamic,
    GuardOnDataDependentSymNode as GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
    StrictMinMaxConstraint,
    _constrain_range_for_size as constrain_to_size,
    _iterate_exprs,
    _maybe_evaluate_static_worker as evaluations,
    eval_is_non_overlapping_and_dense,
)

# The steps of a path from what a call returns to a size in it.
from torch.utils._pytree import SequenceKey

# Where all functions of its expressions are defined, to be named in a file.
from torch.utils._sympy import functions

# What `//` and `%` of sizes are in an expression.
from torch.utils._sympy.functions import FloorDiv as FloorDiv, Mod as Mod

# Evaluates the expressions of a ShapeEnv; its functions (FloorDiv, Mod, ...) are defined there.
from torch.utils._sympy.interp import sympy_interp

# The upper bound of a size that has none.
from torch.utils._sympy.numbers import int_oo as int_oo

# What a symbol of a ShapeEnv stands for: a size, a float, ...
from torch.utils._sympy.symbol import SymT, symbol_is_type

# Lower and upper bound of a symbol, as ShapeEnv takes them.
from torch.utils._sympy.value_ranges import ValueRanges as ValueRanges

TRUTH_OF_RELATION = torch.SymBool.__bool__.__code__
"""What runs where Python asks whether a relation of symbols holds"""
LOOKS_FOR_SIZES = unwrap(_iterate_exprs).__code__
"""Reads sizes, strides and offset of a tensor to find expressions, whatever the numbers are"""
TRUTHS = (TRUTH_OF_RELATION, torch.SymInt.__bool__.__code__)
MOST_EVALUATIONS = 2_000
"""Answers about sizes that torch keeps, before they are dropped"""


def expression(number: Any) -> Any:
    """The sympy expression inside a SymInt, SymFloat or SymBool."""
    return number.node.expr


def interpret_expression(expr: Any, functions: Any, symbols: dict[Any, Any]) -> Any:
    """Compute a sympy expression with functions on objects.

    `torch.utils._sympy` is where ShapeEnv's own functions (FloorDiv, Mod, ...) are defined.
    """
    return sympy_interp(functions, symbols, expr)


def symbol_values(shape_env: Any) -> dict[Any, Any]:
    """The number that each symbol had in the captured run; renamed in torch 2.13."""
    found = getattr(shape_env, "backed_var_to_val", None)
    found = found if found is not None else shape_env.var_to_val
    return {**found, **values_from_data(shape_env)}


def values_from_data(shape_env: Any) -> dict[Any, Any]:
    """The number that each symbol had that depends on data; renamed in torch 2.13.

    A ShapeEnv that knows it answers what it must, and notes the answer as an assertion; what it may
    leave open (`guard_or_false`) stays so. Source: `evaluate_expr`, symbolic_shapes.py.
    """
    found = getattr(shape_env, "real_tensor_prop_unbacked_vals", None)
    return dict(found if found is not None else shape_env.unbacked_var_to_val)


@lru_cache(1 << 14)
def is_from_data(symbol: Any) -> bool:
    """Whether a symbol is of a number that data decides; its name says it."""
    return symbol_is_type(symbol, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT))


def is_float_from_data(expr: Any) -> bool:
    """Whether it is the symbol of a float that data decides."""
    return isinstance(expr, sympy.Symbol) and symbol_is_type(expr, SymT.UNBACKED_FLOAT)


def note_value(shape_env: Any, symbol: Any, number: int) -> None:
    """Let a ShapeEnv know what a symbol that depends on data was in the captured run.

    It waits for no kernel's result any more: FakeTensor looks for a new symbol in the next one.
    """
    shape_env.pending_fresh_unbacked_symbols = [
        each for each in shape_env.pending_fresh_unbacked_symbols if each is not symbol
    ]
    set_value = getattr(shape_env, "set_real_tensor_prop_unbacked_vals", None)
    (set_value or shape_env.set_unbacked_var_to_val)(symbol, number)


def count_from(shape_env: Any, number: int) -> None:
    """Let symbols that depend on data have numbers from here on in their names (2.13: u0, u1)."""
    shape_env.unbacked_symint_counter = number


def adopt_symbol(shape_env: Any, other: Any, symbol: Any) -> None:
    """Let a ShapeEnv have a symbol that depends on data as another has it, under the same name."""
    before = shape_env.unbacked_symint_counter
    count_from(shape_env, int(str(symbol).removeprefix("u")))
    created = shape_env.create_unbacked_symint()
    count_from(shape_env, before)
    if symbol in other.size_like:
        constrain_to_size(created)
    note_value(shape_env, expression(created), values_from_data(other)[symbol])


def new_size(shape_env: ShapeEnv) -> torch.SymInt:
    """A new symbol for a size that depends on data."""
    size: Any = shape_env.create_unbacked_symint()
    constrain_to_size(size)
    return size


def size_of_result(dim: int, position: int | None = None) -> tuple[Any, ...]:
    """The path from what a call returns to a size of it, as `unbacked_bindings` has it."""
    result: tuple[Any, ...] = () if position is None else (SequenceKey(position),)
    return (*result, CallMethodKey("size"), SequenceKey(dim))


def assertions_of(shape_env: Any) -> list[Any]:
    """The conditions on symbols that depend on data which a ShapeEnv wants asserted."""
    return [each for found in shape_env.deferred_runtime_asserts.values() for each in found]


class RecordedShapeEnv(ShapeEnv):
    """A ShapeEnv that reports each question that it is asked from outside, with its answer.

    `_maybe_evaluate_static` is how `statically_known_true` asks; `guard_or_defer_runtime_assert` is
    how `torch._check` does.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._inside = False
        self._implied: dict[Any, Any] = {}
        # torch keeps each for ever: each example's sizes make others (2.11, 2.13, 2.15)
        if evaluations.cache_info().currsize > MOST_EVALUATIONS:
            evaluations.cache_clear()

    def report(
        self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any
    ) -> None:
        """A question was answered."""

    def _log_real_tensor_propagation(self, orig_expr: Any, unsound_result: Any) -> None:
        """Warn of nothing: an answer that the example gives is asserted in every graph."""

    def answered(self, relation: Any) -> Any:
        """The answer to a relation from elsewhere; None if there is none."""
        return None

    def evaluate_expr(self, *args: Any, **kwargs: Any) -> Any:
        """As ShapeEnv has it."""
        answer = None if self._inside else self._elsewhere(args[0])
        if answer is not None:
            return sympy.true if answer else sympy.false
        return self._reporting("evaluate_expr", super().evaluate_expr, args, kwargs)

    def guard_or_defer_runtime_assert(  # type: ignore[override]
        self, *args: Any, **kwargs: Any
    ) -> Any:
        """As ShapeEnv has it."""
        ask = super().guard_or_defer_runtime_assert
        return self._reporting("guard_or_defer_runtime_assert", ask, args, kwargs)

    @wraps(ShapeEnv._maybe_evaluate_static)  # it has the cache that ShapeEnv clears
    def _maybe_evaluate_static(  # type: ignore[override]
        self, *args: Any, **kwargs: Any
    ) -> Any:
        ask = super()._maybe_evaluate_static
        return self._reporting("_maybe_evaluate_static", ask, args, kwargs)

    def get_implications(self, e: Any) -> Any:  # type: ignore[override]
        """As ShapeEnv has it, whose cache of all keeps every ShapeEnv alive (2.11, 2.13, 2.15)."""
        if e not in self._implied:
            self._implied[e] = unwrap(ShapeEnv.get_implications)(self, e)
        return self._implied[e]

    def _elsewhere(self, relation: Any) -> Any:
        """The answer from elsewhere to what cannot be decided without one."""
        self._inside = True
        try:
            known = super()._maybe_evaluate_static(relation)
            return self.answered(relation) if known is None else None
        finally:
            self._inside = False

    def _reporting(self, method: str, ask: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        if self._inside:
            return ask(*args, **kwargs)
        self._inside = True
        try:
            answer = ask(*args, **kwargs)
        finally:
            self._inside = False
        self.report(method, args, kwargs, answer)
        return answer


def symbol_state(shape_env: ShapeEnv, symbol: Any) -> tuple[Any, ...]:
    """What a ShapeEnv knows of a symbol: its number, its range, and what it was found equal to."""
    number = symbol_values(shape_env).get(symbol)
    bounds = shape_env.var_to_range.get(symbol)
    return symbol, number, bounds, shape_env.replacements.get(symbol)


def symbolic_sizes(
    shape_env: ShapeEnv,
    tensor: torch.Tensor,
    name: str,
    wanted: list[tuple[int, Any] | bool],
) -> tuple[Any, Any, Any]:
    """Sizes, strides and offset of an input with new symbols; `wanted`: a range, or yes, or no.

    `torch._dynamo.source.ConstantSource` would import dynamo; any Source does.
    """
    context: Any = StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.DYNAMIC if want else DimDynamic.STATIC for want in wanted],
        constraint_sizes=[
            StrictMinMaxConstraint(vr=ValueRanges(*want), warn_only=False)
            if isinstance(want, tuple)
            else None
            for want in wanted
        ],
    )
    source = InputSource(name)
    return shape_env.create_symbolic_sizes_strides_storage_offset(
        tensor, source, symbolic_context=context
    )


def note_names(shape_env: Any, symbols: Iterable[Any]) -> None:
    """Let a ShapeEnv find symbols by their names, which it wants from 2.15 on."""
    names: dict[str, Any] = getattr(shape_env, "name_to_symbol", {})
    names.update((symbol.name, symbol) for symbol in symbols)


def new_symbol(shape_env: ShapeEnv, name: str, number: int, bounds: tuple[int, Any]) -> Any:
    """A symbol that is no input's size, but that sizes of inputs are computed from."""
    symbol = shape_env.create_symbol(
        number,
        InputSource(name),
        dynamic_dim=DimDynamic.DYNAMIC,
        constraint_dim=StrictMinMaxConstraint(vr=ValueRanges(*bounds), warn_only=False),
    )
    shape_env.var_to_sources.pop(symbol)  # a guard's code cannot name it
    return symbol


@dataclass(frozen=True)
class InputSource(Source):
    """Where a symbol comes from, for ShapeEnv's own messages: the name of an input."""

    input: str

    @property
    def guard_source(self) -> GuardSource:
        """Not guarded by torch; foretrace checks sizes itself."""
        return GuardSource.CONSTANT

    @property
    def _name_template(self) -> str:
        return self.input


def symbol_ranges(shape_env: ShapeEnv) -> dict[Any, tuple[int, int]]:
    """The bounds that ShapeEnv keeps of each symbol; without a bound, a very large number."""
    most = sys.maxsize
    bounds = shape_env.var_to_range.items()
    return {s: (int(max(r.lower, -most)), int(min(r.upper, most))) for s, r in bounds}


def is_dense(*sizes_and_strides: int) -> int:
    """What `IsNonOverlappingAndDenseIndicator` is of numbers: sizes, then as many strides."""
    half = len(sizes_and_strides) // 2
    return eval_is_non_overlapping_and_dense(sizes_and_strides[:half], sizes_and_strides[half:])


SIZE_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    name: vars(torch)[f"_sym_{name}"]
    for name in (
        "sqrt", "cos", "cosh", "sin", "sinh", "tan", "tanh", "asin", "acos", "atan", "log2",
    )
})  # fmt: skip
"""Functions of a number that may be symbolic; only `torch.sym_sqrt` has a public name."""


def size_functions() -> dict[str, type[sympy.Basic]]:
    """The functions of torch's own that an expression of a ShapeEnv may have, by name.

    `torch.utils._sympy.functions` is where they are defined, and `OpaqueUnaryFn_*` created (2.13).
    """
    return {
        name: each
        for name, each in vars(functions).items()
        if isinstance(each, type)
        and issubclass(each, sympy.Basic)
        and each.__module__ == functions.__name__
        and name == each.__name__
    }
