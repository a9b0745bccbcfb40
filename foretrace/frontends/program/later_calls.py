"""Whether all later calls of a program compute what its first one does, whatever calls leave.

The program is recorded again in the state that a call leaves, until a call finds what an earlier
one has found. Where each finds something else, it may only count, or fill what it does not read.
"""

from collections.abc import Callable, Collection
from contextlib import suppress
from itertools import chain
from typing import Any, Final, NamedTuple

import sympy
import torch
from torch import nn

from foretrace.errors import Refusal
from foretrace.frontends.program.program import Program
from foretrace.ir.program.effects import FindObject
from foretrace.ir.program.equality import Equality, equal
from foretrace.ir.program.interface import Input
from foretrace.ir.program.op import Op, SharedBody, Subgraph, Target, target_name
from foretrace.ir.program.recording import Recording
from foretrace.ir.program.walk import called_in
from foretrace.ir.pydata.containers import flatten
from foretrace.ir.pydata.location import Filling, OnArgument, OnGradient
from foretrace.ir.pydata.plain_data import plain
from foretrace.ir.pydata.state import NUMBERS, OPEN, Change
from foretrace.ir.values.tensor_type import TensorType
from foretrace.ir.values.value import Tree, Value, values_in
from foretrace.lowering.cuts.cut import Level, flatten as flatten_ops
from foretrace.lowering.cuts.dead_code import live
from foretrace.python_state.effects.counters import SymbolicCounters
from foretrace.session.run.session import Session
from foretrace.session.run.session_parts import Assumed
from foretrace.session.run.setup import prepare, record_to_fixpoint

ROUNDS: Final = 3
"""Calls after the first that are looked at for one that finds what another one found"""


class CallChange(NamedTuple):
    """What a call changes at a place, and what the next one finds there by `_form`."""

    change: Change
    form: Any


def changes_of_a_call(recorded: Recording) -> list[CallChange]:
    """What a call changes of Python's state."""
    states = recorded.states
    found = [each.of_call(()) for each in recorded.effects_of(FindObject)]

    def contents(leaf: Callable[[Tree], Any]) -> list[Any]:
        built = list[Any]()
        for state in states:
            leaves = (output.value for output in recorded.outputs[state.first :][: state.count])
            built.append(state.build(map(leaf, leaves), found, built))
        return built

    def zeros(leaf: Tree) -> Any:
        if isinstance(leaf, sympy.Basic):
            return recorded.symbols.concrete(leaf) + 1
        if not isinstance(leaf, Value):
            return leaf
        type, hint = leaf.type, recorded.symbols.hint
        shape, stride = tuple(map(hint, type.shape)), tuple(map(hint, type.stride))
        tensor = torch.empty_strided(shape, stride, dtype=type.dtype, device=type.device)
        return tensor.zero_().requires_grad_(type.requires_grad)

    def form(leaf: Tree) -> Any:
        return OPEN if isinstance(leaf, sympy.Basic) else zeros(leaf)

    left = [
        CallChange(Change(state.place, item, rebound=True, at=state.at), _form(of_form))
        for state, item, of_form in zip(states, contents(zeros), contents(form), strict=True)
        if not isinstance(state.place, (OnGradient, OnArgument))  # the next call has its own
    ]
    return [*(CallChange(each, _form(each.after)) for each in recorded.changes), *left]


def with_open_numbers(
    mod: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Any
) -> Program:
    """The module with numbers that it counts with open, and lists that it fills unread."""

    def make(assumed: Assumed) -> Session:
        return prepare(
            mod, args, kwargs, None, shapes, values="guard", assumed=assumed, separate=True
        )

    ran = record_to_fixpoint(SymbolicCounters(), make, mod, args, kwargs)
    return Program(ran.recorded, ran.semantics)


def same_again(
    program: Program,
    again: Callable[[], Program],
    counting: Callable[[], Program],
    bound: list[CallChange],
) -> bool:
    """Whether all later calls compute the same: those up to one that finds what another found.

    Where each call finds something else: whether the program only counts, or fills.
    """
    done, seen = list[Change](), list[dict[Any, Any]]([{}])
    _finds_again(seen, bound)
    try:
        with suppress(Refusal):
            for _ in range(ROUNDS):
                for each in bound:
                    each.change.redo()
                    done.append(each.change)
                following = again()
                if not _equal(program, following):
                    return False
                bound = changes_of_a_call(following.recorded)
                if _finds_again(seen, bound):
                    return True
            try:
                opened = counting()
            except Refusal as refusal:  # of what nothing sees, the calls so far are what is known
                return refusal.kind == "unknown call"
            return _only_counts(opened)
    finally:
        for change in reversed(done):
            change.undo()
    return False


def _finds_again(seen: list[dict[Any, Any]], bound: list[CallChange]) -> bool:
    """Whether the next call finds what an earlier one has found; it is noted if not.

    `seen`: the forms that each call has found, of all places that calls have changed so far.
    """
    places = {each.change.place.identity: each for each in bound}
    for key, each in places.items():
        for forms in seen:
            forms.setdefault(key, _form(each.change.place.before))
    following = seen[-1] | {key: each.form for key, each in places.items()}
    sizes = any(one is type(OPEN) for each in places.values() for one, *_ in each.form[1])
    again = not sizes and following in seen
    seen.append(following)
    return again


def _only_counts(program: Program) -> bool:
    """Whether it computes with nothing that an earlier call has left, and leaves other numbers."""
    recorded, function = program.recorded, _as_function(program)
    states = {item.value for item in recorded.inputs if item.read is not None}
    read = [op for op in called_in(recorded.ops) if _is_number_of(op, states)]
    numbers = {symbol for op in read for symbol in _symbols_in(op.result)}
    used = [
        (op.operands, op.args, op.kwargs)
        for op in called_in(function.ops)
        if not _is_number_of(op, states)
    ]
    leaves = flatten([*used, function.result])[0]
    guards = (*recorded.symbols.guards(), *recorded.symbols.assertions())
    asked = any(not numbers.isdisjoint(each.symbols) for each in guards)
    if asked or any(each in states for each in leaves if isinstance(each, Value)):
        return False
    if not numbers.isdisjoint(_symbols_in(leaves)):
        return False
    kept = [
        each for each in changes_of_a_call(recorded) if not isinstance(each.change.place, Filling)
    ]
    return all(_same_but_for_open(_form(each.change.place.before), each.form) for each in kept)


def _same_but_for_open(before: Any, after: Any) -> bool:
    pairs = zip(before[1], after[1], strict=False)
    return before[0] == after[0] and all(
        one == other or (other[0] is type(OPEN) and one[0] in NUMBERS) for one, other in pairs
    )


def _form(item: Any) -> Any:
    """What a call may ask of a place: all but the numbers in tensors."""
    leaves, structure = flatten(item)
    return structure, [
        (each.dtype, each.shape, each.device, each.requires_grad)
        if isinstance(each, torch.Tensor)
        else (type(each), repr(each) if plain(each) else id(each))
        for each in leaves
    ]


def _is_number_of(op: Op, states: Collection[Value]) -> bool:
    return isinstance(op.result, sympy.Basic) and any(each in states for each in op.operands)


def _symbols_in(items: Any) -> set[sympy.Basic]:
    found = (each.free_symbols for each in flatten(items)[0] if isinstance(each, sympy.Basic))
    return set[sympy.Basic]().union(*found)


def _equal(one: Program, other: Program) -> bool:
    """Whether what both compute, arguments and constants are equal, and no state is read for it."""
    first, second = _as_function(one), _as_function(other)
    if _reads_state(first, one.recorded) or _reads_state(second, other.recorded):
        return False
    same = equal(first, second, _Repeated())
    return same and all(map(_same_constant, *(_passed_inputs(x.recorded) for x in (one, other))))


def _passed_inputs(recorded: Recording) -> list[Input]:
    return [item for item in recorded.inputs if item.read is None]


def _reads_state(function: Subgraph, recorded: Recording) -> bool:
    """Whether it uses what an earlier call has left."""
    states = {item.value for item in recorded.inputs if item.read is not None}
    used = (value for op in called_in(function.ops) for value in op.operands)
    return any(value in states for value in chain(used, values_in(function.result)))


def _same_constant(one: Any, other: Any) -> bool:
    if one.role.kind not in ("constant", "captured") or one.tensor is other.tensor:
        return True
    return torch.equal(one.tensor, other.tensor)


def _as_function(program: Program) -> Subgraph:
    """What a program returns and writes to its inputs, as a closed function of the inputs."""
    recorded = program.recorded
    news = [(mutation.index, mutation.value) for mutation in recorded.mutations]
    results = (news, [output.value for output in recorded.returned])
    inputs = tuple(item.value for item in _passed_inputs(recorded))
    ops = [*flatten_ops(recorded.ops, Level(written=False))]
    return Subgraph(
        "program", inputs, tuple(live(ops, values_in(results), program.semantics)), results
    )


class _Repeated(Equality):
    """Compares recordings by their text, which has no lines and no strides."""

    def type(self, one: TensorType, other: TensorType) -> bool:
        """Whether dtypes and shapes are equal."""
        return str(one) == str(other)

    def leaf(self, one: Any, other: Any) -> bool:
        """Whether constants have equal text."""
        return repr(one) == repr(other)

    def target(self, one: Target, other: Target) -> bool:
        """Whether functions have one name; each run may create its own."""
        return target_name(one) == target_name(other)

    def shared(self, one: SharedBody, other: SharedBody) -> None:
        """A body that calls share follows from the call."""
