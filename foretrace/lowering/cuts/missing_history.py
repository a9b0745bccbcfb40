"""Refusals of histories that a cut does not leave, though eager does."""

from foretrace.errors import Frame, Refusal
from foretrace.ir.program.recording import Recording
from foretrace.ir.pydata.location import OnGradient
from foretrace.ir.values.value import Value


def check_gradients_bare(recorded: Recording) -> None:
    """Refuse a program that leaves a `.grad` with a history, for a cut that gives none.

    Raises:
        Refusal: it asks for a gradient with `create_graph=True`, and leaves it in a `.grad`.
    """
    for state in recorded.states:
        if not isinstance(state.place, OnGradient):
            continue
        left = [each.value for each in recorded.outputs[state.first : state.first + state.count]]
        if any(isinstance(value, Value) and recorded.followed(value) for value in left):
            raise Refusal(
                f"the program leaves {state.place.name} with a history (create_graph=True), which"
                " this cut does not give it",
                kind="double backward",
                at=state.at if isinstance(state.at, Frame) else None,
                do=(
                    'use cut("aten"), or foretrace.compile',
                    "or detach it: p.grad = p.grad.detach()",
                ),
            )
