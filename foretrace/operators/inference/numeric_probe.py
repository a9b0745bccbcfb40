"""Symbolic types of results, from runs of a kernel with numbers in place of the symbols.

The kernel runs with two sets of numbers. A result's size that equals one operand's size both times
is that size; one that is the same number both times is static. Dense strides are products of sizes.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import sympy

from foretrace import torch_api
from foretrace.errors import Refusal, Remedy
from foretrace.ir.program.equality import Equality, equal, same_constant
from foretrace.ir.program.op import Op, SharedBody, Subgraph
from foretrace.ir.program.rewriter import Rewriter
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.nested import map_tree
from foretrace.ir.values.tensor_type import Size, TensorType
from foretrace.ir.values.value import Tree, Value

Numbers = dict[sympy.Symbol, int]
ORDINARY: Final = (0.75, 2.5)
"""Two floats that nearly every kernel takes, with different integer parts"""
CLOSE: Final = 1e-6
"""The relative distance of the two, where a kernel takes only that of the captured run"""


def probe(infer: Callable[[Tree], Tree], call: Tree, symbols: Symbols, name: str) -> Tree:
    """The types of a call's results, found by two runs with numbers for the symbols.

    Raises:
        Refusal: a size of the result is no size of an operand.
    """
    numbers, other = symbols.numbers(), symbols.other_numbers()
    one = infer(at_numbers(call, numbers))
    try:
        two = infer(at_numbers(call, other))
    except RuntimeError as error:
        if isinstance(error, Refusal):
            raise
        # the kernel requires sizes to be equal that are equal in the call
        other = {symbol: 2 * number + 6 for symbol, number in numbers.items()}
        try:
            two = infer(at_numbers(call, other))
        except RuntimeError as refused:
            if isinstance(refused, Refusal):
                raise
            return _of_these_sizes(one, call, symbols)
    sizes = dict.fromkeys(_sizes(call))
    known = {tuple(_number(size, each) for each in (numbers, other)): size for size in sizes}
    return _Merge(numbers, other, known, name).of(one, two)


def _of_these_sizes(one: Tree, call: Tree, symbols: Symbols) -> Tree:
    """The types found with the numbers of the captured run, which become guards.

    The kernel takes no others: `ctc_loss` asks of lists how long its targets are.
    """
    for size in _sizes(call):
        symbols.fixed(size)
    return _Merge({}, {}, {}, "").of(one, one)


@dataclass(frozen=True)
class _Merge:
    """Merges types that were found with two sets of numbers."""

    numbers: Numbers
    other: Numbers
    known: dict[tuple[int, ...], Size]
    name: str

    def of(self, one: Tree, two: Tree) -> Tree:
        if isinstance(one, (tuple, list)):
            return type(one)([self.of(a, b) for a, b in zip(one, two, strict=True)])
        if not isinstance(one, TensorType):
            return one
        shape = tuple(map(self._size, zip(one.shape, two.shape, strict=True)))
        offset = self._size((one.offset, two.offset))
        stride = self._stride(shape, one, two)
        return one.but(shape=shape, stride=stride, offset=offset, requires_grad=False, lazy="")

    def _size(self, pair: tuple[Any, Any]) -> Size:
        if pair in self.known:
            return self.known[pair]
        if pair[0] == pair[1]:
            return int(pair[0])
        raise Refusal(
            f"{self.name} has no meta kernel for symbolic sizes, and its result has a new size",
            kind="no meta kernel",
            do=(
                Remedy(
                    "capture it without dynamic_shapes, or make the sizes that it works on static",
                    ("capture", "export", "aot_export_module"),
                ),
                Remedy("compile it with dynamic=False", ("compile", "dynamo")),
            ),
        )

    def _stride(
        self, shape: tuple[Size, ...], one: TensorType, two: TensorType
    ) -> tuple[Size, ...]:
        """Products of sizes where the tensor is dense; else each has to be a known size."""
        stride: dict[int, Size] = {}
        step: Size = 1
        for dim in reversed(one.memory_order()):
            stride[dim], step = step, step * shape[dim]
        dense = tuple(stride[dim] for dim in range(len(shape)))
        sets = (self.numbers, self.other)
        found = [tuple(_number(size, each) for size in dense) for each in sets]
        if found == [one.stride, two.stride]:
            return dense
        return tuple(map(self._size, zip(one.stride, two.stride, strict=True)))


def _sizes(tree: Tree) -> Iterator[Size]:
    for leaf in torch_api.tree_leaves(tree):
        if isinstance(leaf, TensorType):
            yield from (*leaf.shape, *leaf.stride, leaf.offset)
        elif isinstance(leaf, sympy.Basic):
            yield leaf


def at_numbers(tree: Tree, numbers: Numbers) -> Tree:
    """The structure with numbers for the symbols."""

    def of(leaf: Any) -> Any:
        if isinstance(leaf, TensorType):
            shape = tuple(_number(size, numbers) for size in leaf.shape)
            stride = tuple(_number(size, numbers) for size in leaf.stride)
            offset = _number(leaf.offset, numbers)
            return leaf.but(shape=shape, stride=stride, offset=offset, requires_grad=False)
        return _number(leaf, numbers) if isinstance(leaf, sympy.Basic) else leaf

    return map_tree(tree, of)


def _number(size: Any, numbers: Numbers) -> int:
    return int(size.xreplace(numbers)) if isinstance(size, sympy.Basic) else size


def of_any_number(infer: Callable[[Tree], Any], call: Tree, symbols: Symbols) -> Any:
    """The types of the results of a call with floats that depend on data.

    They are inferred with two sets of numbers. Where the kernel refuses these, with those of the
    captured run, and numbers close to them. None: the types depend on the numbers.
    """
    known = symbols.floats.known
    try:
        found = [infer(at_floats(call, dict.fromkeys(known, n))) for n in ORDINARY]
    except (RuntimeError, ValueError, IndexError, ZeroDivisionError):
        near = {symbol: number * (1 + CLOSE) for symbol, number in known.items()}
        found = [infer(at_floats(call, numbers)) for numbers in (known, near)]
    one, other = found
    return one if one == other else None


def at_floats(tree: Tree, numbers: Mapping[sympy.Symbol, float]) -> Tree:
    """The structure with numbers for the floats."""

    def of(leaf: Any) -> Any:
        return numbers.get(leaf, leaf) if isinstance(leaf, sympy.Symbol) else leaf

    return map_tree(tree, of)


# ---- recordings that hold for any float ---------------------------------------------------------

Floats = Mapping[sympy.Symbol, float]
GENERIC: Final = (0.3137, 0.8713, 1.618, 2.71, 7.77, 123.4, -0.377, -5.3)
"""Floats without a special case in any formula, some in each interval that may have one"""
SPECIAL: Final = (0.0, 1.0, 2.0, -1.0, 0.5, 3.0, math.inf, math.nan)
"""Floats that may have a special case in a formula: `x * 1` is skipped"""


def with_any_number(
    record: Callable[[Floats], Subgraph], symbols: Collection[sympy.Symbol], known: Floats
) -> tuple[list[Op], list[tuple[sympy.Symbol, float]]] | None:
    """The recording that holds for any floats in place of the symbols, but for a few.

    It is recorded with many sets of numbers. Only the numbers themselves may differ.

    Returns:
        The ops, with symbols in place of numbers, and the floats that each symbol must not be.
        None: the ops depend on the numbers, or the captured run has one of the special floats.
    """
    sets = [_numbers_for(symbols, number) for number in GENERIC]
    first, *others = map(record, sets)
    if not all(_same(first, sets[0], *pair) for pair in zip(others, sets[1:], strict=True)):
        return None
    excluded = list[tuple[sympy.Symbol, float]]()
    for symbol in symbols:
        for number in SPECIAL:
            numbers = {**sets[0], symbol: number}
            if not _same(first, sets[0], record(numbers), numbers):
                excluded.append((symbol, number))
    special = any(same_constant(known[symbol], number) for symbol, number in excluded)
    if special or not all(math.isfinite(number) for _, number in excluded):
        return None
    return with_symbols(record(sets[0]).ops, symbols), excluded


def stand_in_numbers(symbols: Collection[sympy.Symbol]) -> dict[sympy.Symbol, float]:
    """Numbers that `with_symbols` replaces by the symbols."""
    return _numbers_for(symbols, GENERIC[0])


def _numbers_for(symbols: Collection[sympy.Symbol], number: float) -> dict[sympy.Symbol, float]:
    return {symbol: number * (1 + i / 7) for i, symbol in enumerate(symbols)}


def _same(one: Subgraph, its: Floats, other: Subgraph, others: Floats) -> bool:
    """Whether two recordings are equal but for the numbers of each."""
    return equal(one, other, _OfAnyNumber(its, others))


class _OfAnyNumber(Equality):
    """Equality in which the two numbers for one symbol are equal."""

    def __init__(self, its: Floats, others: Floats) -> None:
        super().__init__()
        self.numbers = {number: others[symbol] for symbol, number in its.items()}

    def leaf(self, one: Any, other: Any) -> bool:
        """Whether two constants are equal, or are the two numbers for one symbol."""
        return same_constant(self.numbers.get(one, one) if type(one) is float else one, other)


def with_symbols(ops: Iterable[Op], symbols: Collection[sympy.Symbol]) -> list[Op]:
    """Copies of ops with the symbols in place of their stand-in numbers."""
    return _WithSymbols(symbols).ops(ops)


class _WithSymbols(Rewriter):
    """Replaces stand-in numbers by their symbols; the values stay."""

    def __init__(self, symbols: Collection[sympy.Symbol]) -> None:
        super().__init__()
        self.symbols = {number: symbol for symbol, number in stand_in_numbers(symbols).items()}

    def leaf(self, leaf: Any) -> Any:
        """The symbol of a stand-in number."""
        return self.symbols.get(leaf, leaf) if type(leaf) is float else leaf

    def out(self, value: Value) -> Value:
        """The value itself."""
        return value

    def below(self, op: Op) -> list[Op] | SharedBody | None:
        """The ops of a shared body, as another body."""
        shared = op.definition
        if shared is None:
            return super().below(op)
        return replace(shared, ops=tuple(self.ops(shared.ops)))
