"""What a recording leaves and assumes, in a graph that torch's own tools call.

Such a graph has no guards on Python values, and none of the program's effects on them.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from foretrace.errors import Frame, LazyFrame, Refusal
from foretrace.ir.program.call_requirements import FIRST_CALL
from foretrace.ir.program.effect import Effect
from foretrace.ir.program.effects import (
    CallMemo,
    ChangePlace,
    FindObject,
    LeaveState,
    ReturnArgument,
)
from foretrace.ir.program.recording import Recording
from foretrace.ir.program.tensor_effects import (
    ClearGrad,
    CountWrite,
    MarkOutput,
    Reshape,
    SetRequiresGrad,
)
from foretrace.ir.pydata.location import OnData, OnGradient
from foretrace.ir.pydata.state import State

GUARDED: Final = "the graph is for inputs that answer as the example does, and asserts each answer:"


def check_shapes_stay(recorded: Recording) -> Recording:
    """The recording itself.

    Raises:
        Refusal: the program gives an input another shape in place, or other memory, or binds one
            of the names of a tensor, which no graph can do.
    """
    registered = (each.registered.get("_buffers", {}) for each in recorded.requires.python.modules)
    names = Counter(id(tensor) for table in registered for tensor in table.values())
    for mutation in recorded.mutations:
        item = recorded.inputs[mutation.index]
        if mutation.rebound and names[id(item.tensor)] > 1:
            raise Refusal(
                f"the program binds the {item.role}, whose tensor has other names, too: a graph"
                " would copy into that",
                kind="aliased inputs",
                at=recorded.defined_at(mutation.value),
                do="register a clone() of it under each name",
            )
    for kind, check in IN_OTHER_GRAPHS.items():
        for effect in recorded.effects_of(kind):
            check(recorded, effect)
    return recorded


def _refuse_memory(recorded: Recording, effect: LeaveState) -> None:
    """Refuse new memory of an input; `check_settled` decides on other state."""
    state = effect.state
    if isinstance(state.place, OnData):
        raise Refusal(
            f"the program sets {state.place.name}, and a graph leaves an input's memory",
            kind="side effect",
            at=state.at,
            do=(
                "write to it under no_grad: copy_(new)",
                "or foretrace.capture(...).cut('aten'), which takes it as it is",
            ),
        )


def _refuse_shape(recorded: Recording, effect: Reshape) -> None:
    item = recorded.inputs[effect.index]
    raise Refusal(
        f"the program changes the shape of the {item.role} in place, and a graph leaves it",
        kind="side effect",
        at=recorded.reshaped_at(item.value),
        do=(
            "use the operator that returns a new tensor, such as reshape() or transpose()",
            "or foretrace.capture(...).cut('export'), which takes it as it is",
        ),
    )


def _left_out(recorded: Recording, effect: Effect) -> None:
    """Leave the effect out: the graph is called without foretrace."""


IN_OTHER_GRAPHS: Final[Mapping[type[Effect], Callable[[Recording, Any], None]]] = MappingProxyType(
    {
        LeaveState: _refuse_memory,
        Reshape: _refuse_shape,
        CountWrite: _left_out,
        CallMemo: _left_out,
        ChangePlace: _left_out,
        ClearGrad: _left_out,
        FindObject: _left_out,
        MarkOutput: _left_out,
        SetRequiresGrad: _left_out,
        ReturnArgument: _left_out,
    }
)
"""For each kind of effect, whether a graph of torch's own tools refuses it or leaves it out"""


def carried(recorded: Recording) -> list[tuple[int, int]]:
    """The inputs that hold at the next call what this one leaves, each with the output that it is.

    The `.grad` that a call leaves, and none reads, is left out.

    Raises:
        Refusal: the program leaves anything else, which the next call of a cut finds changed, too.
    """
    found = list[tuple[int, int]]()
    for state in recorded.states:
        inputs = _read_again(recorded, state)
        if inputs is None:
            raise _unsettled(state.place.name, state.at)
        found += zip(inputs, range(state.first, state.first + state.count), strict=False)
    for change in recorded.changes:
        raise _unsettled(change.name, change.at)
    for cleared in recorded.effects_of(ClearGrad):
        if recorded.requires.inputs.gradients.get(cleared.index) is not None:
            name = recorded.inputs[cleared.index].role.name
            raise _unsettled(f"{name}.grad", recorded.requires.defined)
    return found


def _read_again(recorded: Recording, state: State) -> list[int] | None:
    """The inputs that read a state at the next call; None: that finds no such state."""
    if isinstance(state.place, OnGradient):
        gradients = recorded.requires.inputs.gradients
        index = gradients.get(state.place.index)
        return [] if state.place.index not in gradients else None if index is None else [index]
    reads = {
        (item.read.place.identity, item.read.number): index
        for index, item in enumerate(recorded.inputs)
        if item.read is not None and item.read.structure == state.structure
    }
    inputs = [reads.get((state.place.identity, number)) for number in range(state.count)]
    whole = [index for index in inputs if index is not None]
    return whole if len(whole) == state.count and not state.kept else None


def _unsettled(name: str, at: Frame | LazyFrame | None) -> Refusal:
    return Refusal(
        f"the program leaves {name} as its call has not found it, and no graph can",
        kind="side effect",
        at=at,
        do=("keep it in a buffer of the module, and write to that", FIRST_CALL),
    )


def warn_guarded(recorded: Recording, stacklevel: int) -> None:
    """Warn of a graph that asserts the example's answers to questions about values.

    Raises:
        Refusal: it cannot assert one of them.
    """
    answers = [each for each in recorded.answered if each.inputs or each.random]
    for each in answers:
        if not each.asserted:
            raise Refusal(
                f"no operator asserts what {each.asked} answers, so a graph cannot check it",
                kind="data-dependent",
                at=each.frame,
                do="let the operator return a tensor, and ask that",
            )
    if answers:
        warnings.warn(GUARDED + "".join(f"\n  {each}" for each in answers), stacklevel=stacklevel)
