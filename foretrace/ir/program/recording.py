"""A recorded program, and a cut through its tree."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from sympy.core.relational import Relational

from foretrace import torch_api
from foretrace.errors import Frame
from foretrace.forks import cached_property
from foretrace.ir.program.call_requirements import BackwardGuards, CallRequirements
from foretrace.ir.program.effect import Effect, Phase
from foretrace.ir.program.effects import ChangePlace, E, LeaveState, by_kind, of_kind
from foretrace.ir.program.interface import Input, Mutation, Output, Signature, Target, roles_of
from foretrace.ir.program.op import GradientCall, Op
from foretrace.ir.program.origin import Checkpoint, ModuleCall
from foretrace.ir.program.value_guard import GuardEvaluator, SymbolGuard, ValueGuard
from foretrace.ir.program.walk import MissingHistory, bare_in, bound_inside, called_in, every_op
from foretrace.ir.pydata.containers import Structure
from foretrace.ir.pydata.state import Change, State
from foretrace.ir.symbols.symbols import Guard, Symbols
from foretrace.ir.values.value import Tree, Value


@dataclass(frozen=True, slots=True, eq=False)
class Overwritten:
    """What became of the memory of a value that the program wrote over."""

    now: Value | None
    """what it holds after the run; None where autograd's version counter sees the write, so
    that eager refuses a backward that reads it"""
    by: Frame | None
    """the user's line that wrote"""
    form: Op | None = None
    """the op that computed the new content, of which autograd saves a copy of the old"""
    inside: Checkpoint | None = None
    """the checkpoint in which it was written"""
    before: Op | None = None
    """the op that changes its shape in place, if it is written in no other way: what is saved
    afterwards is as it was"""
    detached: bool = False
    """it was only detached in place: what saved it as an operand does not find its node"""
    alone: bool = False
    """its tensor got other memory, by `.data`: views of it see what they saw"""


@dataclass(eq=False)
class Recording:
    """The tree of one run.

    Mutation is already explicit: `mutations` has the new contents of inputs.
    """

    ops: list[Op]
    inputs: list[Input]
    outputs: list[Output]
    mutations: list[Mutation]
    symbols: Symbols
    answered: list[ValueGuard]
    """guards on answers that constants gave; the others are the symbols'"""
    target: Target
    requires: CallRequirements
    out_structure: Structure
    """how what the program returns is nested"""
    again: GuardEvaluator
    """answers questions about values once more"""
    effects: list[Effect] = field(default_factory=list)
    """what a call does beside returning its results, in order"""
    overwritten: dict[Value, Overwritten] = field(default_factory=dict)
    hooks: list[Op] = field(default_factory=list)
    """the registrations of hooks on gradients, in order; of some that were removed again, too"""
    torch_version: str = str(torch.__version__)
    """of the torch whose autograd the rules were asked of"""

    @property
    def returned(self) -> list[Output]:
        """The outputs that the program returns; after them come those that it leaves as state."""
        return [output for output in self.outputs if output.role.kind != "state"]

    def effects_of(self, kind: type[E]) -> list[E]:
        """Its effects of one kind."""
        return of_kind(self.effects, kind)

    def effects_in(self, phase: Phase) -> Iterator[tuple[type[Effect], list[Any]]]:
        """The kinds of effect of a phase, each with its effects."""
        return by_kind(self.effects, phase)

    @property
    def states(self) -> list[State]:
        """Where it leaves tensors and numbers in Python's state."""
        return [each.state for each in self.effects_of(LeaveState)]

    @property
    def changes(self) -> list[Change]:
        """What else it changes of Python's state."""
        return [each.change for each in self.effects_of(ChangePlace)]

    def defined_at(self, value: Tree) -> Frame | None:
        """The line that computed a value; the definition of the program where no op did."""
        op = maker_of(self.ops, value)
        return op.origin.frame if op is not None else self.requires.defined

    def reshaped_at(self, value: Value) -> Frame | None:
        """The line that gave an input another shape in place."""
        over = self.overwritten.get(value)
        return over.by if over is not None else self.requires.defined

    @property
    def in_run_order(self) -> list[tuple[int | None, Output]]:
        """The outputs and their places; views of inputs at last, in the order of the run.

        That is the order in which autograd adds up the gradients of such views. Views that others
        are taken of are among them, without a place.
        """
        return self._ordered[0]

    @property
    def returns_results(self) -> bool:
        """Whether each output is what a graph gives for it: no input, no view of one, no mark."""
        return self._ordered[1]

    @cached_property
    def _ordered(self) -> tuple[list[tuple[int | None, Output]], bool]:
        place_of = {out: n for n, op in enumerate(called_in(self.ops)) for out in op.outs}
        known = {o.value: o for o in self.outputs if isinstance(o.value, Value)}
        above = list[Output]()
        for each in self.outputs:
            at: Output | None = each
            while at and (at := at.through) and at.same_as is None and at.value not in known:
                above.append(known.setdefault(at.value, at))
        order = sorted(
            [*((None, output) for output in above), *enumerate(self.outputs)],
            key=lambda item: -1 if item[1].view_of is None else place_of.get(item[1].value, -1),
        )
        return order, all(map(self._is_result, self.outputs))

    def _is_result(self, output: Output) -> bool:
        value, input_of = output.value, (output.same_as, output.view_of)
        return (
            isinstance(value, Value)
            and input_of == (None, None)
            and self.missing(value) in (None, "leaf")
        )

    def missing(self, value: Value) -> MissingHistory | None:
        """Why a value that requires grad has no history, if it has none."""
        return self._without_history.get(value)

    def is_new_leaf(self, value: Value) -> bool:
        """Whether the program turned it into a leaf that requires grad."""
        return self._without_history.get(value) == "leaf"

    @property
    def makes_leaves(self) -> bool:
        """Whether the program makes leaves that require grad, returned or not."""
        return "leaf" in self._without_history.values()

    def hooked_tensors(self) -> Iterator[Input]:
        """The parameters and tensors from outside with hooks that a caller's backward may run."""
        own = (item for item in self.inputs if item.argument is None and item.size is None)
        for item in own if self.trained_outside else ():
            tensor = item.live()
            if tensor is not None and torch_api.has_hooks(tensor):
                yield item

    def loose(self, value: Value) -> bool:
        """Whether it is a view taken under no_grad: no backward can begin there."""
        return self._without_history.get(value) == "loose"

    def spent(self, value: Tree) -> bool:
        """Whether a backward of the program's own has run there, and let go of what it needs."""
        return isinstance(value, Value) and self._without_history.get(value) == "spent"

    def followed(self, value: Value) -> bool:
        """Whether a gradient can go through it."""
        return value.type.requires_grad and value not in self._without_history

    @property
    def gives_followed(self) -> bool:
        """Whether a gradient can go through something that it returns."""
        return any(isinstance(o.value, Value) and self.followed(o.value) for o in self.outputs)

    @property
    def asks_gradients(self) -> bool:
        """Whether the program computes gradients itself."""
        return any(type(op.target) is GradientCall for op in every_op(self.ops))

    @property
    def trained_outside(self) -> bool:
        """Whether a gradient that a caller asks for can go through something that it leaves."""
        return self.gives_followed or any(map(self.writes_followed, self.mutations))

    def differentiable(self, value: Tree) -> bool:
        """Whether a backward can begin there, so that it takes a tangent."""
        return (
            isinstance(value, Value)
            and value.type.requires_grad
            and not (self.loose(value) or self.spent(value))
        )

    def writes_followed(self, mutation: Mutation) -> bool:
        """Whether an input has the history of what was written to it."""
        item, quiet = self.inputs[mutation.index], mutation.hidden or mutation.kept
        leaf = item.leaf and item.value.type.requires_grad
        return mutation.value.type.requires_grad and not (quiet or leaf)

    def ends_followed(self, index: int) -> bool:
        """Whether autograd follows an input, as it was passed or with what is written to it."""
        written = (m.value.type.requires_grad for m in self.mutations if m.index == index)
        return self.inputs[index].value.type.requires_grad or any(written)

    @cached_property
    def _without_history(self) -> dict[Value, MissingHistory]:
        return dict(bare_in(self.ops))

    @property
    def guards(self) -> tuple[Guard | ValueGuard, ...]:
        """Conditions on the sizes of a later run; a cut may add some."""
        return (*self.symbols.guards(), *self.symbols.assertions(), *self.answered)

    @property
    def asked(self) -> tuple[ValueGuard, ...]:
        """The questions about values, in their order, those of numbers last."""
        return (*self.answered, *(each for _, each in self.asked_of_numbers))

    @property
    def asked_before(self) -> tuple[ValueGuard, ...]:
        """The guards that are asked before a graph runs: none of a number of one side."""
        bound = bound_inside(self.ops) if self.symbols.data else set()
        numbers = [each for guard, each in self.asked_of_numbers if bound.isdisjoint(guard.symbols)]
        return (*self.answered, *numbers)

    @property
    def asked_of_numbers(self) -> tuple[tuple[Guard, SymbolGuard], ...]:
        """What it has assumed of numbers that data decides; a cut may add some."""
        return tuple(
            (guard, self._asked(guard, len(self.answered) + place))
            for place, guard in enumerate(self.symbols.assertions())
        )

    def _asked(self, guard: Guard, number: int) -> SymbolGuard:
        hint = self.symbols.concrete
        then = ", ".join(f"{s} = {hint(s)}" for s in sorted(guard.symbols, key=str))
        asked = _as_torch_writes(guard.condition)
        return SymbolGuard(
            asked, (), False, True, frozenset(), guard.frame, self.again,
            asserted=True, number=number, of=guard.condition, then=then,
        )  # fmt: skip


def _as_torch_writes(condition: sympy.Basic) -> str:
    """A condition with its number on the right: `u0 >= 4`."""
    turned = isinstance(condition, Relational) and condition.lhs.is_number
    return str(condition.reversed if turned else condition)


def maker_of(ops: Iterable[Op], value: Tree) -> Op | None:
    """The op as written whose result a value is."""
    for op in ops:
        if value in op.outs:
            return op
        found = maker_of(op.region or (), value) if isinstance(op.target, ModuleCall) else None
        if found is not None:
            return found
    return None


@dataclass(slots=True, eq=False)
class Graph:
    """A cut: flat ops, with bodies only under ops that were kept."""

    inputs: list[Input]
    ops: list[Op]
    outputs: list[Output]
    kind: str
    reads: BackwardGuards | None = None
    """what the program's own Python has read that ran when the backward was derived"""

    @property
    def signature(self) -> Signature:
        """Roles of every input and output."""
        return Signature(roles_of(self.inputs), roles_of(self.outputs))
