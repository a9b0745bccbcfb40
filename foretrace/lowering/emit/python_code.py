"""The ops of a cut as straight-line Python: one statement for each op, in the user's order.

Each op is called by the quickest way there is, and what no later line reads is let go. torch's own
autograd follows what the lines do, so a backward, a hook or a double backward is eager's.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import sympy
from sympy.logic.boolalg import Boolean

from foretrace import torch_api
from foretrace.errors import Frame
from foretrace.ir.program.op import Op, Subgraph, ViewStep
from foretrace.ir.program.recording import Graph
from foretrace.ir.program.walk import binds, subgraphs_of
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.value import Tree, Value, values_in
from foretrace.lowering.emit.bindings import quickest
from foretrace.lowering.emit.python_sizes import size_text
from foretrace.lowering.emit.python_source import INDENT, Source
from foretrace.operators.schemas.higher_order_schema import SIDES, higher_order_schema_of
from foretrace.tracer.recorder.function_target import FunctionCall


@dataclass(frozen=True, slots=True)
class Statement:
    """One call: its text, its results and operands, and the user's line."""

    text: str
    results: tuple[Value, ...]
    read: tuple[Value, ...]
    frame: Frame | None


class Straight:
    """Writes ops as statements of a source.

    Args:
        source: what the statements are added to.
        symbols: the program's sizes.
        names: local names of the inputs; those of other values are added.
        instead: a statement for an op that is not to be called; None: it is called.
    """

    def __init__(
        self,
        source: Source,
        symbols: Symbols,
        names: dict[Value, str],
        instead: "Instead | None" = None,
    ) -> None:
        self.source, self.symbols, self.names, self.instead = source, symbols, names, instead
        self._once: dict[Value, str] = {}
        self._data = symbols.data

    def ops(self, graph: Graph, later: Collection[Op] = ()) -> None:
        """Statements for all ops; values are let go after their last use.

        Of those that run later, only what others read.
        """
        kept = {v for output in graph.outputs for v in values_in(output.value)}
        kept.update(item.value for item in graph.inputs)
        kept.update(value for op in later for value in op.operands)
        self.run(_without(graph.ops, later) if later else graph.ops, kept)

    def run(self, ops: Iterable[Op], kept: Iterable[Value]) -> None:
        """Statements for these ops; what is not kept is let go after its last use."""
        statements = [each for op in ops for each in self._op(op)]
        frame = None
        for statement, dead in zip(statements, _dying(statements, kept), strict=True):
            if statement.frame is not None and statement.frame != frame:
                frame = statement.frame
                self.source.frames[len(self.source.lines)] = frame
                self.source.add(f"# {frame}")
            self.source.add(statement.text)
            if dead:
                self.source.add(f"del {', '.join(self.names[value] for value in dead)}")

    def _op(self, op: Op) -> Iterator[Statement]:
        if not op.outs and self.instead and (text := self.instead(op, self)):
            yield Statement(text, (), op.operands, op.origin.frame)
            return
        if not _called_whole(op):
            for inner in op.body or ():
                yield from self._op(inner)
            return
        call, args = self._called(op)
        parts = [self.tree(arg) for arg in args]
        named = op.kwargs if args is op.args else {}
        parts += [f"{name}={self.tree(arg)}" for name, arg in named.items()]
        text = f"{call}({', '.join(parts)})"
        yield Statement(self._assigned(op, text), op.outs, op.operands, op.origin.frame)
        yield from self._sizes(op)

    def _sizes(self, op: Op) -> Iterator[Statement]:
        """The sizes that data has decided, by name."""
        for symbol in sorted(self._data & binds(op) if op.outs and self._data else (), key=str):
            out, dim = next(
                (v, v.type.shape.index(symbol)) for v in op.outs if symbol in v.type.shape
            )
            text = f"{symbol} = {self.names[out]}.size({dim})"
            yield Statement(text, (), (out,), op.origin.frame)

    def _called(self, op: Op) -> tuple[str, tuple[Tree, ...]]:
        """What is called, and with what; of what only calls a program, that program itself.

        Of a Python `if`, the side that holds: of what the other reads autograd knows nothing then.
        """
        holder = higher_order_schema_of(op.target) if subgraphs_of(op) else None
        if holder is not None and op.choice is SIDES:
            yes, no = map(self.tree, holder.programs(op.args))
            return f"({yes} if {self.tree(op.args[0])} else {no})", (*holder.split(op.args)[0],)
        if holder is not None and holder.rest is not None:
            return self.tree(holder.programs(op.args)[0]), op.args[holder.rest :]
        return self.source.bind(_callable(op), str(op.target).replace(".", "_")), op.args

    def _assigned(self, op: Op, call: str) -> str:
        for out in op.outs:
            self.names[out] = self.source.names.of(op)
        if isinstance(op.result, sympy.Symbol):
            return f"{op.result} = {call}"
        if not op.outs:
            return call
        return f"{self._pattern(op, op.result)} = {call}"

    def _pattern(self, op: Op, result: Tree) -> str:
        """The target of the assignment: names of results, `_` elsewhere."""
        if isinstance(result, (tuple, list)):
            inside = ", ".join(self._pattern(op, item) for item in result)
            return f"({inside}{',' * (len(result) == 1)})"
        return self.names[result] if isinstance(result, Value) and result in op.outs else "_"

    def named_once(self, value: Value, text: str) -> str:
        """A name for the expression's result, the same one each time for a value."""
        if value not in self._once:
            self._once[value] = name = self.source.names.new("view")
            self.source.add(f"{name} = {text}")
        return self._once[value]

    def taken(self, step: ViewStep, of: str) -> str:
        """The view that a call takes of what the expression gives."""
        call = self.source.bind(step.func, str(step.func).replace(".", "_"))
        return f"{call}({', '.join([of, *map(self.tree, step.args[1:])])})"

    def tree(self, tree: Tree) -> str:
        """An argument."""
        if isinstance(tree, Value):
            return self.names[tree]
        if isinstance(tree, (tuple, list)):
            inside = ", ".join(self.tree(item) for item in tree)
            is_tuple = isinstance(tree, tuple)
            return f"({inside}{',' * (len(tree) == 1)})" if is_tuple else f"[{inside}]"
        if type(tree) is dict:  # among the arguments of a Function
            pairs = (f"{self.source.literal(key)}: {self.tree(tree[key])}" for key in tree)
            return f"{{{', '.join(pairs)}}}"
        if isinstance(tree, sympy.Basic):
            condition = isinstance(tree, Boolean) and not isinstance(tree, sympy.Symbol)
            return size_text(tree if condition else self.symbols.simplify(tree))
        if isinstance(tree, Subgraph):
            return self._subgraph(tree)
        return self.source.literal(tree)

    def _subgraph(self, subgraph: Subgraph) -> str:
        """A program that an operator holds, as a function inside this one."""
        inner, name = self.source.inner(), self.source.names.new(subgraph.name)
        values = {p: self.source.names.new(p.hint or "arg") for p in subgraph.values}
        params = [values[p] if p in values else str(p) for p in subgraph.params]
        within = Straight(inner, self.symbols, {**self.names, **values})
        within.run(subgraph.ops, {*values_in(subgraph.result), *subgraph.values})
        inner.add(f"return {within.tree(subgraph.result)}")
        lines = [f"def {name}({', '.join(params)}):", *(INDENT + line for line in inner.lines)]
        self.source.add(*lines)
        return f"{self.source.bind(torch_api.closed_program, 'closed')}({name})"


Instead: TypeAlias = Callable[[Op, Straight], str | None]
"""A statement for an op that is not to be called; None: it is called"""


def _callable(op: Op) -> Any:
    if isinstance(op.target, FunctionCall):
        return op.target.apply
    return quickest(op) if isinstance(op.target, torch_api.OpOverload) else op.target


def _called_whole(op: Op) -> bool:
    """Whether the target itself can be called, or only its body."""
    if isinstance(op.target, FunctionCall):
        return True
    if not isinstance(op.target, torch_api.OpOverload):
        return op.leaf or bool(subgraphs_of(op))
    return op.region is None or set(op.outs) <= set(values_in(op.result))


def _without(ops: Sequence[Op], left: Collection[Op]) -> list[Op]:
    """The ops without those left that none of the others reads."""
    found, read = list[Op](), set[Value]()
    for op in reversed(ops):
        if op not in left or not read.isdisjoint(op.outs):
            found.append(op)
            read.update(op.operands)
    return found[::-1]


def _dying(statements: Sequence[Statement], kept: Iterable[Value]) -> list[list[Value]]:
    """For each statement, the values whose last use it is."""
    seen, rows = set(kept), list[list[Value]]()
    for statement in reversed(statements):
        both = dict.fromkeys((*statement.read, *statement.results))
        rows.append([value for value in both if value not in seen])
        seen.update(both)
    return rows[::-1]
