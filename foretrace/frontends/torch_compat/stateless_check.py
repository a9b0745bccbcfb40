"""Checks the Python state of programs whose graph goes to torch's own tools.

Such a graph has no guards on Python values, and none of the program's effects on them. A counter
on which no result depends is left out; any other is refused.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from foretrace.errors import Refusal
from foretrace.frontends.program.later_calls import changes_of_a_call, same_again
from foretrace.frontends.program.program import Program
from foretrace.ir.program.call_requirements import FIRST_CALL
from foretrace.ir.program.effect import Effect
from foretrace.ir.program.effects import (
    CallMemo,
    ChangePlace,
    FindObject,
    LeaveState,
    ReturnArgument,
)
from foretrace.ir.program.interface import Input, Role
from foretrace.ir.program.recording import Recording
from foretrace.ir.program.tensor_effects import (
    ClearGrad,
    CountWrite,
    MarkOutput,
    Reshape,
    SetRequiresGrad,
)
from foretrace.ir.pydata.location import OnData
from foretrace.tracer.recorder.autograd_hooks import SAVED

DROPPED: Final = "the graph does not leave these tensors, which the program leaves at each call:"
UNHOOKED: Final = "the graph has no hooks on gradients; the program registers some:"
ON_TENSORS: Final = "hooks on the gradient of {} stay on what is here; a file of the graph has none"
GUARDED: Final = "the graph is for inputs that answer as the example does, and asserts each answer:"


def check_settled(
    program: Program, again: Callable[[], Program], counting: Callable[[], Program]
) -> None:
    """Refuse a program that returns something else in a later call, or writes it to an input.

    Args:
        program: the program.
        again: records it again; it is called only if the run has changed Python state.
        counting: captures it with open numbers; only if each call finds something else.

    Raises:
        Refusal: with the line that changes the state.
    """
    bound = changes_of_a_call(check_shapes_stay(program.recorded))
    if bound and not same_again(program, again, counting, bound):
        names = ", ".join(dict.fromkeys(each.change.place.name for each in bound))
        raise Refusal(
            f"the program binds {names}, and computes something else at its next call",
            kind="side effect",
            at=bound[0].change.at,
            do=("keep it in a buffer of the module, and write to that", FIRST_CALL),
        )


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


def without_states(recorded: Recording, stacklevel: int) -> Recording:
    """The recording without the tensors that it leaves in Python state, with a warning.

    A graph that is called without foretrace has no place for them. `check_settled` has shown that
    no result depends on them.
    """
    states = recorded.states
    if not states:
        return recorded
    inputs = [_fixed(item) for item in recorded.inputs]
    lines = "".join(f"\n  {state.place.name}  at {state.at}" for state in states)
    warnings.warn(f"{DROPPED}{lines}", stacklevel=stacklevel)
    left_out = LeaveState, FindObject, ReturnArgument
    effects = [each for each in recorded.effects if not isinstance(each, left_out)]
    return replace(recorded, inputs=inputs, outputs=recorded.returned, effects=effects)


def without_hooks(recorded: Recording, stacklevel: int) -> Recording:
    """The recording without hooks on gradients, with a warning.

    Raises:
        Refusal: a hook is on saved tensors, and a gradient would reach it.
    """
    saving = [op for op in recorded.hooks if op.target.way == SAVED]
    for op in saving:
        if op.target.holds:
            raise Refusal(
                "hooks on what autograd saves (saved_tensors_hooks), of which such a graph knows"
                " nothing, and a gradient would come there",
                kind="hook",
                at=op.origin.frame,
                do=(
                    "use torch.utils.checkpoint, or torch.autograd.graph.save_on_cpu",
                    "or train by foretrace.compile, or by a joint cut",
                ),
            )
    if lines := "".join(f"\n  at {op.origin.frame}" for op in recorded.hooks if op not in saving):
        warnings.warn(f"{UNHOOKED}{lines}", stacklevel=stacklevel)
    if names := ", ".join(str(item.role) for item in recorded.hooked_tensors()):
        warnings.warn(ON_TENSORS.format(names), stacklevel=stacklevel)
    return replace(recorded, hooks=saving)


def _fixed(item: Input) -> Input:
    """An input of Python state as a captured tensor."""
    if item.read is None:
        return item
    return replace(item, role=Role("captured", item.role.name), tensor=item.read(), read=None)


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
