"""Symbolic result types of operators whose meta kernel knows numbers only.

The kernel runs twice, with two sets of numbers for the symbols. A size of the result that equals
the same operand's size both times is that size; one that is the same number both times is fixed.
Strides without gaps are products of the sizes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import sympy

from foretrace import torch_api
from foretrace.errors import Refusal, Way
from foretrace.ir.op import Tree
from foretrace.ir.tree import map_tree
from foretrace.ir.types import Size, TensorType
from foretrace.symbols.sizes import Symbols

Numbers = dict[sympy.Symbol, int]
ORDINARY: Final = (0.75, 2.5)
"""Floats that nearly every kernel takes, of which no integer part is the other's"""
CLOSE: Final = 1e-6
"""How far apart two are, if it takes no others"""


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
        # the kernel wants sizes to be equal that are; it says so at each call
        other = {symbol: 2 * number + 6 for symbol, number in numbers.items()}
        two = infer(at_numbers(call, other))
    sizes = dict.fromkeys(_sizes(call))
    known = {tuple(_number(size, each) for each in (numbers, other)): size for size in sizes}
    return _Merge(numbers, other, known, name).of(one, two)


@dataclass(frozen=True)
class _Merge:
    """Makes one type of two, which were found with two sets of numbers."""

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
        return TensorType(shape, self._stride(shape, one, two), one.dtype, one.device, offset)

    def _size(self, pair: tuple[Any, Any]) -> Size:
        if pair in self.known:
            return self.known[pair]
        if pair[0] == pair[1]:
            return int(pair[0])
        raise Refusal(
            f"{self.name} has no meta kernel for symbolic sizes, and its result has a new size",
            kind="no meta kernel",
            do=(
                Way(
                    "capture it without dynamic_shapes, or make the sizes that it works on static",
                    ("capture", "export", "aot_export_module"),
                ),
                Way("compile it with dynamic=False", ("compile", "dynamo")),
            ),
        )

    def _stride(
        self, shape: tuple[Size, ...], one: TensorType, two: TensorType
    ) -> tuple[Size, ...]:
        """Products of sizes where there are no gaps; else each is to be one that is known."""
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
            return TensorType(shape, stride, leaf.dtype, leaf.device, offset, lazy=leaf.lazy)
        return _number(leaf, numbers) if isinstance(leaf, sympy.Basic) else leaf

    return map_tree(tree, of)


def _number(size: Any, numbers: Numbers) -> int:
    return int(size.xreplace(numbers)) if isinstance(size, sympy.Basic) else size


def of_any_number(infer: Callable[[Tree], Any], call: Tree, symbols: Symbols) -> Any:
    """The types of the results of a call that takes floats which data decides.

    They are asked with two sets of numbers; with those of the captured run where a kernel refuses
    others, and with others close by. None: they depend on the numbers.
    """
    known = symbols.floats.known
    try:
        found = [infer(_at_floats(call, dict.fromkeys(known, n))) for n in ORDINARY]
    except (RuntimeError, ValueError, IndexError, ZeroDivisionError):
        near = {symbol: number * (1 + CLOSE) for symbol, number in known.items()}
        found = [infer(_at_floats(call, numbers)) for numbers in (known, near)]
    one, other = found
    return one if one == other else None


def _at_floats(tree: Tree, numbers: Mapping[sympy.Symbol, float]) -> Tree:
    def of(leaf: Any) -> Any:
        return numbers.get(leaf, leaf) if isinstance(leaf, sympy.Symbol) else leaf

    return map_tree(tree, of)
