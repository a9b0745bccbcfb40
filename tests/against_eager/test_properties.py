"""Whatever a program does in whatever order: every cut equals eager, or the capture is refused."""

import contextlib

import pytest
from hypothesis import Phase, assume, given, note, settings, strategies as st

import foretrace
from tests.support.compare import same_as_eager
from tests.support.straight import Step, accepted, inputs, program_of, runs, steps

# eager warns of what it takes reluctantly
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

RETURNED = st.integers(1, 2**6 - 1)  # which of the last six tensors come out
COMMON = settings(
    deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate, Phase.shrink]
)


def cuts_of(chosen: tuple[Step, ...], returned: int) -> tuple[str, ...]:
    """All cuts where an output wants a gradient, the forward ones otherwise."""
    outputs = program_of(chosen, returned)(*inputs())
    differentiable = any(tensor.requires_grad for tensor in outputs)
    return ("export", "aten", "joint") if differentiable else ("export", "aten")


def as_eager(drawn: list[Step], returned: int) -> None:
    chosen = accepted(drawn, returned)
    assume(chosen)
    note("\n".join(map(str, chosen)))
    cuts = cuts_of(chosen, returned)
    same_as_eager(program_of(chosen, returned), inputs(), loss=None, cuts=cuts)


@settings(COMMON, max_examples=40)
@given(steps(), RETURNED)
def test_any_program_is_the_same_as_eager(drawn: list[Step], returned: int) -> None:
    as_eager(drawn, returned)


@pytest.mark.slow
@settings(COMMON, max_examples=150)
@given(steps(), RETURNED)
def test_many_programs_are_the_same_as_eager(drawn: list[Step], returned: int) -> None:
    as_eager(drawn, returned)


def at_another_size(drawn: list[Step], returned: int, rows: int) -> None:
    """A size may be refused, by a guard; it is never answered wrongly."""
    chosen = accepted(drawn, returned)
    assume(chosen and runs(chosen, returned, rows))
    note("\n".join(map(str, chosen)))
    with contextlib.suppress(foretrace.Refusal):
        same_as_eager(
            program_of(chosen, returned),
            inputs(),
            loss=None,
            cuts=cuts_of(chosen, returned),
            dynamic_shapes=True,
            more_args=[inputs(rows)],
        )


@settings(COMMON, max_examples=15)
@given(steps(), RETURNED, st.integers(2, 9))
def test_any_program_at_another_size(drawn: list[Step], returned: int, rows: int) -> None:
    at_another_size(drawn, returned, rows)


@pytest.mark.slow
@settings(COMMON, max_examples=50)
@given(steps(), RETURNED, st.integers(2, 9))
def test_many_programs_at_another_size(drawn: list[Step], returned: int, rows: int) -> None:
    at_another_size(drawn, returned, rows)
