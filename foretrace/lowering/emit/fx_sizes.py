"""Sizes as fx nodes: each function that a ShapeEnv's expressions may have, and where they begin."""

import math
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import sympy
import torch
from sympy.logic.boolalg import Boolean
from torch import fx

from foretrace import torch_api
from foretrace.ir.program.names import Names
from foretrace.ir.program.op import target_name
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.symbols.substitution import Size, solved
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.value import Value

Make = Callable[[Callable[..., Any], tuple[Any, ...]], Any]
"""Adds a node that calls a function of nodes and numbers"""

FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    "add": operator.add, "mul": operator.mul, "sub": operator.sub, "neg": operator.neg,
    "abs": operator.abs, "floordiv": operator.floordiv, "mod": operator.mod,
    "python_mod": operator.mod, "pow": operator.pow, "pow_by_natural": operator.pow,
    "truediv": operator.truediv, "int_truediv": operator.truediv,
    "round_decimal": round, "is_non_overlapping_and_dense_indicator": torch_api.is_dense,
    **torch_api.SIZE_FUNCTIONS,
    "minimum": torch.sym_min, "maximum": torch.sym_max,
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le,
    "gt": operator.gt, "ge": operator.ge, "and_": operator.and_, "or_": operator.or_,
    "not_": torch.sym_not, "where": torch.sym_ite,
    "bitwise_and": operator.and_, "bitwise_or": operator.or_, "bitwise_xor": operator.xor,
    "floor": math.floor, "ceil": math.ceil,
})  # fmt: skip
"""The graph's form of each function of torch's sympy, as torch's own verifier allows."""

ROUNDING: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "floor_to_int": math.floor,
        "ceil_to_int": math.ceil,
        "trunc_to_int": math.trunc,
        "round_to_int": round,
    }
)
"""The same for functions that torch calls with the dtype of the result."""


class SizeFunctions:
    """Handlers for torch's interpreter of expressions: a method for each function, by name."""

    def __init__(self, make: Make) -> None:
        self.make = make

    def constant(self, number: Any, dtype: torch.dtype) -> Any:
        """A number of the expression."""
        kinds: dict[torch.dtype, type] = {torch.int64: int, torch.bool: bool}
        return kinds.get(dtype, float)(number)

    def to_dtype(self, node: Any, dtype: torch.dtype) -> Any:
        """An integer as a float."""
        return self.make(torch.sym_float, (node,))

    def piecewise(self, *cases: tuple[Any, Any]) -> Any:
        """The first case whose condition holds."""
        (value, condition), *rest = cases
        if condition is True or not rest:
            return value
        return self.make(torch.sym_ite, (condition, value, self.piecewise(*rest)))

    def expr_cond_pair(self, value: Any, condition: Any) -> tuple[Any, Any]:
        """One case of `piecewise`."""
        return value, condition

    def identity(self, node: Any) -> Any:
        """Return the node itself."""
        return node

    def trunc(self, node: Any) -> Any:
        """The number before the point, as a float."""
        return self.make(torch.sym_float, (self.make(math.trunc, (node,)),))

    def modular_indexing(self, base: Any, divisor: Any, modulus: Any) -> Any:
        """`base // divisor % modulus`."""
        part = base if divisor == 1 else self.make(operator.floordiv, (base, divisor))
        return self.make(operator.mod, (part, modulus))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in ROUNDING:
            return lambda node, dtype: self.make(ROUNDING[name], (node,))
        if name not in FUNCTIONS:
            raise AttributeError(name)
        return lambda *args: self.make(FUNCTIONS[name], args)


def write_size(
    expr: sympy.Basic, symbols: dict[sympy.Symbol, Any], create: Callable[..., fx.Node]
) -> Any:
    """The node that computes `expr` from the nodes of its symbols; each has its `val`.

    Args:
        expr: over the symbols, with the functions of `torch.utils._sympy`.
        symbols: the node, or number, of each symbol.
        create: makes a node from a function and its arguments.
    """

    def make(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        known = [arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in args]
        if not any(isinstance(arg, fx.Node) for arg in args):
            return function(*args)
        node = create(function, args)
        node.meta["val"] = function(*known)
        return node

    return torch_api.interpret_expression(expr, SizeFunctions(make), symbols)


class SizeNodes:
    """The nodes of one graph, and those among them that compute sizes: created once each."""

    def __init__(self, symbols: Symbols) -> None:
        self.symbols, self.graph, self.names = symbols, fx.Graph(), Names()
        self.nodes: dict[Value, fx.Node] = {}
        self.sizes: dict[sympy.Basic, Any] = {}
        self.data = symbols.data

    def _learn_size(self, size: Size, node: fx.Node) -> None:
        """What is computed of a size begins here."""
        node.meta["val"] = self.symbols.symbolic(size)
        if isinstance(size, sympy.Expr):
            self.sizes = {self.symbols.simplify(size): node, size: node} | self.sizes

    def _size(self, expr: Any) -> Any:
        """The node that computes an expression; created once, from the sizes of the inputs."""
        if expr in self.symbols.floats.known and expr in self.sizes:  # torch knows nothing of it
            return self.sizes[expr]
        expr = self.symbols.simplify(expr)
        if isinstance(expr, sympy.Integer):
            return int(expr)
        if expr not in self.sizes:
            if isinstance(expr, sympy.Symbol):
                self.sizes[expr] = self._symbol(expr)
            else:
                self.sizes[expr] = self._expression(expr)
        return self.sizes[expr]

    def _condition(self, condition: Boolean) -> Any:
        """A condition as it was asked: what is known of sizes by now may follow from it."""
        symbols = {symbol: self._size_of(symbol) for symbol in condition.free_symbols}
        return write_size(condition, symbols, self._create_size)

    def _size_of(self, symbol: sympy.Symbol) -> Any:
        if symbol not in self.sizes:
            self.sizes[symbol] = self._symbol(symbol)
        return self.sizes[symbol]

    def _symbol(self, symbol: sympy.Symbol) -> Any:
        """The size of an input that the symbol is, or else that it follows from."""
        sizes = [
            (size if size == symbol else self.symbols.simplify(size), node, dim)
            for value, node in self.nodes.items()
            if self._gives_sizes(value, node)
            for dim, size in enumerate(value.type.shape)
            if not isinstance(size, int)
        ]
        for size, node, dim in sizes:
            if size == symbol:
                return self._size_node(symbol, node, dim)
        for size, node, dim in sizes:
            whole = sympy.Dummy("size", integer=True)
            expr = solved(size, symbol, whole) if symbol in size.free_symbols else None
            if expr is not None:
                return write_size(
                    expr, {whole: self._size_node(size, node, dim)}, self._create_size
                )
        return self._place(symbol)

    def _gives_sizes(self, value: Value, node: fx.Node) -> bool:
        """Whether sizes are read off a node: an input, or what data decides the sizes of."""
        return node.op == "placeholder" or not self.data.isdisjoint(value.type.symbols)

    def _place(self, symbol: sympy.Symbol) -> fx.Node:
        """A stride of an input that no size explains (of rows with gaps), or its offset."""
        for value, node in self.nodes.items():
            if node.op == "placeholder" and symbol in value.type.stride:
                dim = value.type.stride.index(symbol)
                return self._size_node(symbol, node, dim, target=torch.ops.aten.sym_stride.int)
            if node.op == "placeholder" and symbol == value.type.offset:
                target = torch.ops.aten.sym_storage_offset.default
                return self._size_node(symbol, node, target=target)
        raise AssertionError(f"no input has the size {symbol}")

    def _size_node(
        self, size: sympy.Expr, node: fx.Node, *dim: int, target: Any = torch.ops.aten.sym_size.int
    ) -> fx.Node:
        name = self.names.new(f"{target_name(target)}_{size}")
        after = self._last_placeholder() if node.op == "placeholder" else node
        with self.graph.inserting_after(after):
            created = self.graph.create_node("call_function", target, (node, *dim), {}, name)
        created.meta["val"] = self.symbols.symbolic(size)
        self.describe_size(created)
        return created

    def _last_placeholder(self) -> fx.Node:
        return [node for node in self.graph.nodes if node.op == "placeholder"][-1]

    def _expression(self, expr: sympy.Basic) -> Any:
        symbols = {symbol: self._size(symbol) for symbol in free_symbols(expr)}
        return write_size(expr, symbols, self._create_size)

    def _create_size(self, function: Callable[..., Any], args: tuple[Any, ...]) -> fx.Node:
        name = self.names.new(function.__name__)
        node = self.graph.create_node("call_function", function, args, {}, name)
        self.describe_size(node)
        return node

    def describe_size(self, node: fx.Node) -> None:
        """Say where a node that computes a size comes from: from no line of the user."""
