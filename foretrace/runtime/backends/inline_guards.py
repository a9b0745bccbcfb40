"""Where a generated function abandons its call: nothing was written, and draws are put back.

A body of straight-line Python asks questions about values where the program did; all others are
asked before it runs (decision 022). What a graph raises is the other case (decision 081).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import dropwhile
from types import MappingProxyType
from typing import Any, Final

import sympy
import torch

from foretrace import torch_api
from foretrace.errors import Refusal
from foretrace.ir.program.op import Op
from foretrace.ir.program.recording import Graph, Recording
from foretrace.ir.program.value_guard import ValueGuard
from foretrace.ir.program.walk import makes_leaf, subgraphs_of
from foretrace.ir.values.value import Value
from foretrace.lowering.cuts.runtime_asserts import ASSERT_NUMBER
from foretrace.lowering.emit.python_code import Straight
from foretrace.lowering.emit.python_source import INDENT, Source
from foretrace.lowering.reinplace.order import MayRaise, raises
from foretrace.operators.schemas.schema import schema_of
from foretrace.runtime.guards.abandoned import Abandoned
from foretrace.tracer.concrete.rng_draws import draws
from foretrace.tracer.data_dependence.value_guards import ASSERT
from foretrace.tracer.recorder.function_target import FunctionCall

aten = torch.ops.aten
ASSERTIONS = frozenset({ASSERT, ASSERT_NUMBER})
TORCHS = frozenset({"aten", "prims"})
"""Operators that do nothing but compute"""
PASSED_ON: Final = (Refusal, torch.OutOfMemoryError)
"""Errors that no `except` of the program's is asked about: it would not meet the same ones"""
LARGE: Final = 2**16
"""Elements of a tensor whose kernel takes longer than the states of generators"""
CPU: Final = torch.device("cpu")
NOTHING_ASKED: Final[Mapping[str, ValueGuard]] = MappingProxyType({})


def asked_inside(recorded: Recording, graph: Graph) -> dict[str, ValueGuard]:
    """The questions that the graph asserts before it has done anything that stays, by their texts.

    Not where the program changes Python's state, which its own code may have done by then.
    """
    known = {each.text: each for each in recorded.answered if each.asserted}
    known |= {asked.text: asked for _, asked in recorded.asked_of_numbers}
    if not known or recorded.changes or recorded.states:
        return {}
    found = {}
    for op in graph.ops:
        if op.target in ASSERTIONS:
            text = op.args[1]
            found.update({text: known[text]} if text in known else {})
        elif not _undone(op):
            break
    return found


class Undo:
    """Writes where a function abandons its call, and puts back what was drawn.

    Args:
        source: the function.
        ops: what it runs.
        abandoned: says why.
        may_raise: whether an operator's call may raise, of data.
        inside: the questions that it asks in the place of assertions, by their texts.
        first: the lines that take back what it does before all ops.
    """

    def __init__(
        self, source: Source, ops: Sequence[Op], abandoned: Abandoned, may_raise: MayRaise,
        inside: Mapping[str, ValueGuard] = NOTHING_ASKED, first: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.inside, self.may_raise, self.first = inside, may_raise, first
        self.abandon = source.bind(abandoned, "abandon")
        """its name"""
        self.states = "()"
        """an expression of the states of generators"""
        self._error = source.names.new("error")
        self._passed_on = source.bind(PASSED_ON, "passed_on")
        self._begin = list[str]()
        drawn = list(dropwhile(lambda op: not _may_draw(op), ops))
        generators = list(dict.fromkeys(drawn_from(drawn)))
        self._goes_on = drawn != [] and not any(_may_raise(op, may_raise) for op in drawn)
        if generators and not self._goes_on:
            self.states = source.names.new("states")
            self._begin = [f"{self.states} = {source.bind(States(generators), 'generators')}()"]

    def around(self, lines: Iterable[str], back: Sequence[str] | None = None) -> list[str]:
        """The lines of the graph, which abandon the call where they raise.

        `back`: of a later part, the lines that first take back what earlier ones have done.
        """
        taken_back = [*self.first, *(back or ())]
        if not (lines := [*lines]) or (self._goes_on and not taken_back):
            return lines
        return [
            *(self._begin if back is None else ()),
            "try:",
            *(INDENT + line for line in lines),
            f"except {self._passed_on}: raise",
            f"except Exception as {self._error}:",
            *(INDENT + line for line in taken_back),
            f"{INDENT}return {self.abandon}.raised({self._error}, {self.states})",
        ]

    def instead(self, op: Op, straight: Straight) -> str | None:
        """A question in the place of an assertion; None: the op runs."""
        answered = self.inside.get(op.args[1]) if op.target in ASSERTIONS else None
        if answered is None:
            return None
        return question_text(op, straight, self.abandon, answered, self.states)


def _may_raise(op: Op, may_raise: MayRaise) -> bool:
    """Whether an op may raise; not asked of a large one, beside which states cost nothing."""
    sizes = [value.type.numel for value in op.operands]
    small = all(isinstance(size, int) and size <= LARGE for size in sizes)
    return not small or raises(op, may_raise)


def _may_draw(op: Op) -> bool:
    """Whether an op draws, or runs code of the user's that may."""
    target, inside = op.target, (inner for each in subgraphs_of(op) for inner in each.ops)
    users = isinstance(target, torch_api.OpOverload) and target.namespace not in TORCHS
    return users or isinstance(target, FunctionCall) or draws(op) or any(map(_may_draw, inside))


class States:
    """Takes the states of generators: by copies of these, which are no tensors."""

    def __init__(self, generators: list[torch.Generator]) -> None:
        self.generators = generators

    def __call__(self) -> list[tuple[torch.Generator, torch.Generator]]:
        """Each with a copy."""
        return [(each, each.clone_state()) for each in self.generators]


def drawn_from(ops: Iterable[Op]) -> Iterator[torch.Generator]:
    """The generators from which ops draw."""
    for op in filter(_may_draw, ops):
        passed = [g for g in torch_api.tree_leaves((op.args, op.kwargs)) if _is_generator(g)]
        devices = [out.type.device for out in op.outs[:1]]
        devices += [] if draws(op) else [CPU]
        yield from passed or filter(None, map(_default, devices))


def _is_generator(leaf: Any) -> bool:
    return isinstance(leaf, torch.Generator)


def _default(device: torch.device) -> torch.Generator | None:
    """The default generator of a device; None: nothing is drawn there."""
    if device.type in ("cpu", "meta"):
        return torch.default_generator if device.type == "cpu" else None
    generators: Any = torch.get_device_module(device).default_generators
    return generators[device.index or 0]


def question_text(op: Op, straight: Straight, miss: str, answered: ValueGuard, states: str) -> str:
    """A statement that gives the call up where an assertion does not hold."""
    known, asked = straight.source.bind(answered, "question"), op.args[0]
    text = asked.text(straight) if isinstance(asked, Relation) else straight.tree(asked)
    return f"if not {text}: return {miss}({known}, {states})"


def _undone(op: Op) -> bool:
    """Whether a call has no effect to undo but its random draws."""
    if not isinstance(op.target, torch_api.OpOverload) or op.target.namespace not in TORCHS:
        return False
    return makes_leaf(op) or not schema_of(op.target).writes


# ---- numbers that data decides, compared as numbers where a record compares tensors of them -----

RELATIONS: Mapping[Any, str] = MappingProxyType({
    aten.eq.Scalar: "==", aten.ne.Scalar: "!=", aten.lt.Scalar: "<",
    aten.le.Scalar: "<=", aten.gt.Scalar: ">", aten.ge.Scalar: ">=",
})  # fmt: skip
"""What Python writes for a comparison of a tensor of one float64 with a number"""
LARGEST: Final = 1 << 53
"""Up to here each integer is a float"""


@dataclass(frozen=True, slots=True)
class Relation:
    """A comparison of a number that data decides with another: what its tensors would say."""

    number: sympy.Symbol
    sign: str
    other: float
    negated: bool

    def text(self, straight: Straight) -> str:
        """As Python asks it."""
        text = f"({straight.tree(self.number)} {self.sign} {straight.tree(self.other)})"
        return f"(not {text})" if self.negated else text


def with_relations(ops: Sequence[Op]) -> list[Op]:
    """The ops with numbers compared as numbers, without the tensors that only served that."""
    makers = {out: op for op in ops for out in op.outs}
    related = [_as_relation(op, makers) if op.target in ASSERTIONS else op for op in ops]
    unread = unread_in(related, set(makers.values()))
    return [op for op in related if op not in unread]


def unread_in(ops: Sequence[Op], among: Collection[Op], results: Iterable[Value] = ()) -> set[Op]:
    """The ops among some whose results no remaining op reads and the graph does not return."""
    found, read = set[Op](), set(results)
    for op in reversed(ops):
        if op in among and read.isdisjoint(op.outs):
            found.add(op)
        else:
            read.update(op.operands)
    return found


def _as_relation(op: Op, makers: Mapping[Value, Op]) -> Op:
    relation = _relation(op.args[0], makers) if isinstance(op.args[0], Value) else None
    if relation is None:
        return op
    return op.but(args=(relation, *op.args[1:]))


def _relation(asked: Value, makers: Mapping[Value, Op]) -> Relation | None:
    maker = makers.get(asked)
    negated = maker is not None and maker.target is aten.logical_not.default
    if maker is not None and negated:
        maker = makers.get(maker.args[0])
    if maker is None or maker.target not in RELATIONS:
        return None
    scalar, other = makers.get(maker.args[0]), maker.args[1]
    exact = type(other) is float or (type(other) is int and abs(other) <= LARGEST)
    if scalar is None or scalar.target is not aten.scalar_tensor.default or not exact:
        return None
    number, double = scalar.args[0], scalar.outs[0].type.dtype is torch.float64
    if not (double and isinstance(number, sympy.Symbol)):
        return None
    return Relation(number, RELATIONS[maker.target], other, negated)
