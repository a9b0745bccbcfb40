"""The nodes of an fx graph that compute sizes: of symbols, expressions and conditions."""

from collections.abc import Callable
from typing import Any

import sympy
import torch
from sympy.logic.boolalg import Boolean
from torch import fx

from foretrace.ir.program.names import Names
from foretrace.ir.program.op import Value, target_name
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.symbols.substitution import Size, solved
from foretrace.ir.symbols.symbols import Symbols
from foretrace.lowering.emit.fx_sizes import write_size


class SizeEmitter:
    """Adds nodes for sizes to an fx graph; each expression is computed once."""

    def __init__(self, symbols: Symbols) -> None:
        self.symbols, self.data = symbols, symbols.data
        self.graph, self.names = fx.Graph(), Names()
        self.nodes: dict[Value, fx.Node] = {}
        self.sizes: dict[sympy.Basic, Any] = {}

    def learn_size(self, size: Size, node: fx.Node) -> None:
        """Compute other sizes from the size of this node."""
        node.meta["val"] = self.symbols.symbolic(size)
        if isinstance(size, sympy.Expr):
            self.sizes.setdefault(self.symbols.simplify(size), node)

    def size_node(self, expr: Any) -> Any:
        """The one node that computes an expression of the inputs' sizes."""
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

    def condition_node(self, condition: Boolean) -> Any:
        """The node of a condition, unsimplified: facts about sizes may follow from it."""
        symbols = {symbol: self._symbol_node(symbol) for symbol in condition.free_symbols}
        return write_size(condition, symbols, self._create_size)

    def _symbol_node(self, symbol: sympy.Symbol) -> Any:
        if symbol not in self.sizes:
            self.sizes[symbol] = self._symbol(symbol)
        return self.sizes[symbol]

    def _symbol(self, symbol: sympy.Symbol) -> Any:
        """A node for a symbol: an input's size that equals it, or that determines it."""
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
        """Whether sizes are read from a node: an input, or one with sizes that data decides."""
        return node.op == "placeholder" or not self.data.isdisjoint(value.type.symbols)

    def _place(self, symbol: sympy.Symbol) -> fx.Node:
        """A stride of an input that no size explains (rows with gaps), or its offset."""
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
            computed = self.graph.create_node("call_function", target, (node, *dim), {}, name)
        computed.meta["val"] = self.symbols.symbolic(size)
        self.describe_size(computed)
        return computed

    def _last_placeholder(self) -> fx.Node:
        return [node for node in self.graph.nodes if node.op == "placeholder"][-1]

    def _expression(self, expr: sympy.Basic) -> Any:
        symbols = {symbol: self.size_node(symbol) for symbol in free_symbols(expr)}
        return write_size(expr, symbols, self._create_size)

    def _create_size(self, function: Callable[..., Any], args: tuple[Any, ...]) -> fx.Node:
        name = self.names.new(function.__name__)
        node = self.graph.create_node("call_function", function, args, {}, name)
        self.describe_size(node)
        return node

    def describe_size(self, node: fx.Node) -> None:
        """Set the origin of a node that computes a size: there is no user line."""
