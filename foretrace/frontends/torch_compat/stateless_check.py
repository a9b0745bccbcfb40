"""Checks the Python state of programs whose graph goes to torch's own tools.

Such a graph has no guards on Python values, and none of the program's effects on them. A counter
on which no result depends is left out; any other is refused.
"""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from foretrace.errors import Refusal
from foretrace.frontends.program.later_calls import changes_of_a_call, same_again
from foretrace.frontends.program.other_graphs import check_shapes_stay
from foretrace.frontends.program.program import Program
from foretrace.ir.program.call_requirements import FIRST_CALL
from foretrace.ir.program.effects import FindObject, LeaveState, ReturnArgument
from foretrace.ir.program.interface import Input, Role
from foretrace.ir.program.recording import Recording
from foretrace.tracer.recorder.autograd_hooks import SAVED

DROPPED: Final = "the graph does not leave these tensors, which the program leaves at each call:"
UNHOOKED: Final = "the graph has no hooks on gradients; the program registers some:"
ON_TENSORS: Final = "hooks on the gradient of {} stay on what is here; a file of the graph has none"


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
