"""A cut as a torch.fx.GraphModule."""

import inspect
import operator
from collections.abc import Callable, Collection, Iterable
from itertools import count
from operator import attrgetter
from typing import Any

import sympy
import torch
from sympy.logic.boolalg import Boolean
from torch import fx

from foretrace import torch_api
from foretrace.ir.program.names import called_like_a_keyword, calls_target, spelled
from foretrace.ir.program.nested import leaves, map_tree
from foretrace.ir.program.op import Op, Subgraph, Tree, Value
from foretrace.ir.program.recording import Graph, Input, Output
from foretrace.ir.program.walk import leaves_that_run, shows
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.symbols.substitution import Size
from foretrace.ir.symbols.symbols import Symbols
from foretrace.lowering.emit.fake_vals import Vals
from foretrace.lowering.emit.fx_size_nodes import SizeEmitter
from foretrace.lowering.emit.module_stack import ModuleStacks

LITERALS = frozenset({
    bool, int, float, str, bytes, type(None), type(...),
    torch.dtype, torch.device, torch.layout, torch.memory_format, torch_api.OpOverload,
})  # fmt: skip
"""Types whose `repr` generated code reads as the same object"""
Needs = Callable[[Op], Collection[Value]]


class Complex(complex):
    """A number that generated code reads as the same one.

    Python reads `-1j` with the real part -0.0, and torch.fx has no word for an infinite part.
    """

    def __repr__(self) -> str:
        return f"complex({self.real!r}, {self.imag!r})"


class Emitter(SizeEmitter):
    """Builds one fx graph; kept ops become submodules with graphs of their own."""

    def __init__(self, symbols: Symbols, vals: Vals, needs: Needs) -> None:
        super().__init__(symbols)
        self.vals, self.needs, self.root = vals, needs, torch.nn.Module()
        self.append = torch_api.Nodes(self.graph).append
        self.stacks = ModuleStacks()
        self.unbound = set(self.data)
        """those that data decides, until a node gives them their numbers"""

    def inner(self) -> "Emitter":
        """An emitter for a subgraph of an operator."""
        return Emitter(self.symbols, self.vals, self.needs)

    def program(self, subgraph: Subgraph, name: str) -> fx.GraphModule:
        """The module of a subgraph."""
        for param in subgraph.params:
            if isinstance(param, Value):
                self.placeholder(param, param.hint or "arg")
            else:
                self.size_placeholder(param, str(param))
        for op in subgraph.ops:
            self.emit(op)
        self.graph.output(self._arguments(subgraph.result))
        return module_of(self.root, self.graph, name)

    def input(self, item: Input) -> None:
        """Add a placeholder for one input: a tensor, or a size."""
        if item.size is None:
            self.placeholder(item.value, item.role.name)
        else:
            self.size_placeholder(item.size, item.role.name)

    def placeholder(self, value: Value, name: str) -> None:
        """Add a placeholder for a tensor."""
        self.unbound -= value.type.symbols
        self._learn(value, self._placeholder(name))

    def _placeholder(self, name: str) -> fx.Node:
        name = self.names.new(name)
        return self.append("placeholder", name, (), {}, name)

    def _learn(self, value: Value, node: fx.Node) -> None:
        self.nodes[value] = node
        if not node.meta:
            torch_api.set_meta(node, self.vals.meta({}))
        node.meta["val"] = value

    def emit(self, op: Op) -> None:
        """Emit one op: a call of its target, or of a submodule with its body."""
        name = self.names.of(op)
        as_module = getattr(op.target, "as_module", None)
        if as_module is not None and calls_target(op):
            place = self._hold(name, as_module())
            self._results(op, self._append("call_module", place, op.args, {}, name), op.result)
        elif calls_target(op):
            node = self._append("call_function", op.target, op.args, op.kwargs, name)
            self._results(op, node, op.result)
        else:
            self._submodule(op, name)

    def _append(
        self, kind: str, target: Any, args: tuple[Tree, ...], kwargs: dict[str, Tree], name: str
    ) -> fx.Node:
        nodes, other = self.nodes, self._arguments
        args = tuple([nodes[arg] if type(arg) is Value else other(arg) for arg in args])
        kwargs = {key: other(arg) for key, arg in kwargs.items()} if kwargs else {}
        return self.append(kind, target, args, kwargs, name)

    def _submodule(self, op: Op, name: str) -> None:
        inputs = self.needs(op)
        inner = Emitter(self.symbols, self.vals, self.needs)
        for value in inputs:
            inner.placeholder(value, self.nodes[value].name)
        symbols = self._symbols_below(op)
        for symbol in symbols:
            inner.size_placeholder(symbol, str(symbol))
        for each in op.body or ():
            emit_flat(inner, each)
        place = self._hold(name, inner.finish(op.outs, name))
        node = self._append("call_module", place, (*inputs, *symbols), {}, name)
        self._results(op, node, tuple(op.outs))

    def _hold(self, name: str, module: torch.nn.Module) -> str:
        """The attribute of a node's submodule: modules have methods called `to` and `type`."""
        place = f"{name}_body" if hasattr(torch.nn.Module, name) else name
        self.root.add_module(place, module)
        return place

    def _symbols_below(self, op: Op) -> list[sympy.Symbol]:
        found = {
            s
            for each in leaves_that_run(op.body or ())
            for s in free_symbols((each.args, each.kwargs))
        }
        return sorted(found, key=str)

    def size_placeholder(self, size: Size, name: str) -> None:
        """Add a placeholder for a size."""
        self.unbound -= free_symbols(size)
        self.learn_size(size, self._placeholder(name))

    def _results(self, op: Op, node: fx.Node, result: Tree) -> None:
        meta = self.describe(node, op)
        if self.unbound and (symbols := self.unbound & shows(op)):  # what it takes is bound by now
            self.unbound -= symbols
            if not inspect.isroutine(op.target):  # of numbers Python's steps make an expression
                found = sorted(filter(self._is_open, symbols), key=attrgetter("name"))
                if found:
                    meta["unbacked_bindings"] = {s: _path(result, s) for s in found}
        if isinstance(result, Value):
            if result in op.outs:
                self.nodes[result], meta["val"] = node, result
            return
        if isinstance(result, sympy.Symbol):
            self.sizes[result], meta["val"] = node, result
            return
        meta["val"] = self.vals.tree(result)
        self._items(op, node, result)

    def _is_open(self, symbol: sympy.Symbol) -> bool:
        """Whether the symbol has no known number yet; a float never has one."""
        return symbol.is_integer is not True or not self.symbols.simplify(symbol).is_number

    def _items(self, op: Op, node: fx.Node, result: Tree) -> None:
        for index, item in enumerate(result if isinstance(result, (tuple, list)) else ()):
            if isinstance(item, (tuple, list)) or (isinstance(item, Value) and item in op.outs):
                name = self.names.new("getitem")
                part = self.append("call_function", operator.getitem, (node, index), {}, name)
                self.describe(part, op)
                if isinstance(item, Value):
                    self._learn(item, part)
                else:
                    part.meta["val"] = self.vals.tree(item)
                    self._items(op, part, item)

    def describe(self, node: fx.Node, op: Op) -> dict[str, Any]:
        """Set and return a node's `meta`: where the node comes from."""
        origin = op.origin
        meta = self.vals.meta(self.stacks.line(origin.frame))
        meta["foretrace"] = op
        if origin.module is not None:
            meta["nn_module_stack"] = self.stacks.of(origin.module)
        if op.because is not None:
            meta["autograd_backward"] = True  # as torch has it, and its tools read
        torch_api.set_meta(node, meta)
        return meta

    # ---- arguments ----------------------------------------------------------------------------

    def _arguments(self, tree: Tree) -> Any:
        kind = type(tree)
        if kind is Value:
            return self.nodes[tree]
        return tree if kind in LITERALS else map_tree(tree, self._argument)

    def _argument(self, leaf: Any) -> Any:
        kind = type(leaf)
        if kind is Value:
            return self.nodes[leaf]
        if kind in LITERALS:
            return leaf
        if isinstance(leaf, Boolean) and not isinstance(leaf, sympy.Symbol):
            return self.condition_node(leaf)
        if isinstance(leaf, sympy.Basic):
            return self.size_node(leaf)
        if kind is Subgraph:
            return self._subgraph_node(leaf)
        return Complex(leaf) if kind is complex else self._attribute(leaf)

    def _subgraph_node(self, subgraph: Subgraph) -> fx.Node:
        """A subgraph of an operator as a submodule, and the node that gets it."""
        numbers = (n for n in count() if not hasattr(self.root, f"{subgraph.name}_{n}"))
        name = self.names.new(f"{subgraph.name}_{next(numbers)}")
        inner = self.inner()
        self.root.add_module(name, inner.program(subgraph, name))
        return self.append("get_attr", name, (), {}, name)

    def _attribute(self, item: Any) -> fx.Node:
        """An argument that generated code has no literal for."""
        name = self.names.new(type(item).__name__)
        setattr(self.root, name, item)
        return self.graph.create_node("get_attr", name, (), {}, name)

    # ---- the whole ----------------------------------------------------------------------------

    def finish(self, results: Iterable[Tree], name: str) -> fx.GraphModule:
        """Close the graph."""
        self.graph.output(tuple(self._arguments(result) for result in results))
        class_name = "".join(part.capitalize() for part in name.split("_")) or "Graph"
        return module_of(self.root, self.graph, class_name)


def _path(result: Tree, symbol: sympy.Symbol) -> tuple[Any, ...]:
    """The pytree path from a call's result to the symbol's number, as torch writes it."""
    if result is symbol:
        return ()
    parts = [(None, result)] if isinstance(result, Value) else list(enumerate(result))
    place, value = next((i, v) for i, v in parts if isinstance(v, Value) and symbol in v.type.shape)
    return torch_api.size_of_result(value.type.shape.index(symbol), place)


def module_of(root: torch.nn.Module | dict[str, Any], graph: fx.Graph, name: str) -> fx.GraphModule:
    """A graph and its attributes as a module whose code Python can read."""
    calls = {id(n.target): n.target for n in graph.nodes if n.op == "call_function"}
    if any(map(called_like_a_keyword, calls.values())):
        graph.on_generate_code(lambda _: spelled)
    return torch_api.LazyGraphModule(root, graph, class_name=name)


def interpretable(module: fx.GraphModule) -> fx.GraphModule:
    """The module, with plain complex numbers in its graph, as operators take no subclass.

    Its code is unchanged: it reads them to the last bit.
    """
    found = [node for node in module.graph.nodes if _complex((*node.args, *node.kwargs.values()))]
    if found:
        module.code  # noqa: B018 - it is written while the graph has them
    for node in found:
        node.args, node.kwargs = map_tree((node.args, node.kwargs), _plain)
    return module


def _complex(arguments: Tree) -> bool:
    return any(type(leaf) is Complex for leaf in leaves(arguments))


def _plain(leaf: Any) -> Any:
    return complex(leaf) if type(leaf) is Complex else leaf


def emit_flat(emitter: Emitter, op: Op) -> None:
    """Emit an op of a kept op's body, opened to its leaves."""
    if op.leaf:
        emitter.emit(op)
    else:
        for inner in op.body or ():
            emit_flat(emitter, inner)


def to_fx(
    graph: Graph, symbols: Symbols, fakes: torch_api.FakeTensors, needs: Needs
) -> fx.GraphModule:
    """The graph module of a cut: its arguments and results are flat, in the signature's order."""
    emitter = Emitter(symbols, Vals(fakes, symbols), needs)
    for item in graph.inputs:
        emitter.input(item)
    for op in graph.ops:
        emitter.emit(op)
    module = emitter.finish(map(_returned, graph.outputs), graph.kind)
    torch_api.log_graph(graph.kind, module, symbols.log, _first_line(graph))
    return module


def _first_line(graph: Graph) -> tuple[str, int, str] | None:
    frames = (op.origin.frame for op in graph.ops)
    return next(((f.file, f.line, f.function) for f in frames if f is not None), None)


def _returned(output: Output) -> Tree:
    """What the graph returns for an output; the run adds objects that code has no literal for."""
    known = output.value is None or isinstance(output.value, (Value, sympy.Basic, bool, int, float))
    return output.value if known else None
