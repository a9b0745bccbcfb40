"""What a call computes before its graph runs: numbers of its inputs, and questions of them.

An optimizer counts its steps in tensors; each call reads the counts, computes with them in Python,
and asks whether the result is as it was in the capture. Here that is straight-line Python between
the guards and the graph, done once: a graph gets the numbers, and asks nothing of them again.
"""

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import sympy
import torch

from foretrace import torch_api
from foretrace.ir.program.interface import Input, Role, size_input
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.value_guard import ValueGuard
from foretrace.ir.program.walk import binds, subgraphs_of
from foretrace.ir.symbols.shape_env import free_symbols
from foretrace.ir.symbols.symbols import Symbols
from foretrace.ir.values.value import Value, values_in
from foretrace.lowering.emit.python_code import Straight
from foretrace.lowering.emit.python_source import INDENT, Source
from foretrace.operators.schemas.schema import schema_of
from foretrace.runtime.backends.inline_guards import (
    ASSERTIONS,
    TORCHS,
    Undo,
    question_text,
    unread_in,
    with_relations,
)
from foretrace.tracer.concrete.rng_draws import draws

aten = torch.ops.aten
SMALL: Final = 1
"""Elements of a tensor that is computed twice, before the graph and in it"""


@dataclass(frozen=True, slots=True, eq=False)
class ScalarPrelude:
    """The ops that run before a graph, and what they ask and give.

    `asked`: the questions, by the texts of their assertions. `numbers`: what the graph takes of
    them. `gone`: the ops that the graph has no more.
    """

    ops: tuple[Op, ...] = ()
    asked: Mapping[str, ValueGuard] = field(default_factory=dict)
    numbers: tuple[sympy.Symbol, ...] = ()
    gone: frozenset[Op] = frozenset()

    def inputs(self) -> list[Input]:
        """The inputs of a graph that gets the numbers; they come last."""
        return [size_input(number, Role("size", str(number))) for number in self.numbers]

    def without(self, graph: Graph) -> Graph:
        """A graph that has the numbers already, by their names."""
        return replace(graph, ops=[op for op in graph.ops if op not in self.gone])

    def with_numbers(self, graph: Graph) -> Graph:
        """A graph that gets the numbers as inputs."""
        return replace(self.without(graph), inputs=[*graph.inputs, *self.inputs()])

    def write(
        self,
        source: Source,
        recorded: Recording,
        inputs: Sequence[str],
        undo: Undo | None,
    ) -> None:
        """Add the lines.

        Args:
            source: takes them.
            recorded: the program.
            inputs: names of its inputs.
            undo: abandons the call where an answer is another; None: the assertion raises.
        """
        body, ops = source.inner(), self.ops if undo is None else with_relations(self.ops)

        def instead(op: Op, straight: Straight) -> str | None:
            if undo is None or op.target not in ASSERTIONS:
                return None
            return question_text(op, straight, undo.abandon, self.asked[op.args[1]], undo.states)

        names = {item.value: name for item, name in zip(recorded.inputs, inputs, strict=True)}
        straight = Straight(body, recorded.symbols, names, instead)
        straight.run(ops, [item.value for item in recorded.inputs])
        if any(out.type.requires_grad for op in ops for out in (*op.operands, *op.outs)):
            no_grad = source.bind(torch.no_grad, "no_grad")
            body.lines = [f"with {no_grad}():", *(INDENT + line for line in body.lines)]
        source.add(*body.lines)


NOTHING: Final = ScalarPrelude()


@dataclass(frozen=True, slots=True, eq=False)
class InferenceGraph:
    """A compiled graph that is not trained.

    `run` gets the inputs of the program, then the numbers of `early`. `written`: the inputs that it
    writes to itself; it does not give their new contents.
    """

    run: Callable[..., Sequence[Any]]
    early: ScalarPrelude = NOTHING
    written: frozenset[int] = frozenset()


def found_early(graph: Graph, recorded: Recording) -> ScalarPrelude:
    """What can be computed before a graph that has no ops that write.

    Args:
        graph: a forward cut.
        recorded: the program.
    """
    known = {each.text: each for each in recorded.asked_before if each.asserted}
    possible = _Possible(graph.inputs, recorded.symbols, known)
    early = _needed(list(filter(possible.take, graph.ops)), possible)
    if not early:
        return NOTHING
    returned = [value for output in graph.outputs for value in values_in(output.value)]
    gone = unread_in(graph.ops, early, returned)
    bound = {symbol for op in gone for symbol in binds(op)}
    left = [op for op in graph.ops if op not in gone]
    read = {s for op in left for s in possible.numbers((op.args, op.kwargs))}
    read |= {s for output in graph.outputs for s in possible.numbers(output.value)}
    asked = {op.args[1]: known[op.args[1]] for op in early if op.target in ASSERTIONS}
    return ScalarPrelude(
        tuple(op for op in graph.ops if op in early),
        asked,
        tuple(sorted(bound & read, key=str)),
        frozenset(gone),
    )


class _Possible:
    """Goes through a graph: which ops can be called before it."""

    def __init__(self, inputs: Iterable[Input], symbols: Symbols, known: Collection[str]) -> None:
        self.symbols, self.known, self.data = symbols, known, symbols.data
        self.there: set[Any] = {item.value for item in inputs}

    def numbers(self, tree: Any) -> set[sympy.Symbol]:
        """The numbers that data decides of which a structure speaks."""
        named = free_symbols(tree) if self.data else set()
        simplified = (free_symbols(self.symbols.simplify(each)) for each in named)
        return self.data & set(named).union(*simplified)

    def take(self, op: Op) -> bool:
        """Whether the op reads only values that exist before the graph, and is pure."""
        found = (
            _computes(op, self.known)
            and self.there.issuperset(op.operands)
            and self.there.issuperset(self.numbers((op.args, op.kwargs)))
        )
        if found:
            self.there.update((*op.outs, *binds(op)))
        return found


def _needed(possible: list[Op], of: _Possible) -> set[Op]:
    """The ops that compute numbers or assert, and the ops that these read."""
    early, read = set[Op](), set[Any]()
    for op in reversed(possible):
        if _ends(op) or not read.isdisjoint(op.outs):
            early.add(op)
            read.update((*op.operands, *of.numbers((op.args, op.kwargs))))
    return early


def _ends(op: Op) -> bool:
    """Whether the op computes a number or asserts: the graph need not repeat it."""
    return not op.outs


def _computes(op: Op, known: Collection[str]) -> bool:
    """Whether an op can be called twice, or earlier: its results are small."""
    if op.target in ASSERTIONS:
        return op.args[1] in known and not subgraphs_of(op)
    if op.writes or subgraphs_of(op) or not all(map(_small, op.outs)):
        return False
    if not isinstance(op.target, torch_api.OpOverload):
        return step(op)
    schema = schema_of(op.target)
    gives = bool(op.outs) or isinstance(op.result, sympy.Symbol)
    return gives and op.target.namespace in TORCHS and not schema.writes and not draws(op)


def step(op: Op) -> bool:
    """Whether it is a step of Python's between numbers that data decides."""
    number = isinstance(op.result, sympy.Symbol) and not op.outs and op.leaf
    return number and inspect.isroutine(op.target)


def _small(value: Value) -> bool:
    type, count = value.type, value.type.numel
    plain = not (type.wrapped or type.sparse or type.lazy)
    return plain and isinstance(count, int) and count <= SMALL
