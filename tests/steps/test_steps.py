"""Training steps, captured, beside eager: bitwise in all state after each of ten batches."""

import warnings

import pytest

from tests.steps import STEPS, Step
from tests.support.steps import same_cut, same_steps

WHOLE = [pytest.param(s, id=f"{s.section}.{n}") for n, s in STEPS.items() if not s.breaks]
IN_PART = [pytest.param(s, id=f"{s.section}.{n}") for n, s in STEPS.items() if s.breaks]


def failing(request: pytest.FixtureRequest, words: str) -> None:
    """What does not work today has to fail, by these words."""
    if words:
        request.applymarker(pytest.mark.xfail(strict=True, reason=words))


@pytest.mark.parametrize("step", WHOLE)
def test_captured_whole(step: Step, request: pytest.FixtureRequest) -> None:
    failing(request, step.fails)
    ran = same_steps(step.build, fullgraph=True)
    told = [str(each) for each in ran.compiled.recaptures]
    assert 1 <= ran.captures <= step.captures, (ran.captures, told)
    assert ran.as_python <= step.first_calls, ran.compiled._first_calls


@pytest.mark.parametrize("step", WHOLE)
def test_one_cut(step: Step, request: pytest.FixtureRequest) -> None:
    """`foretrace.capture` after two batches; its aten cut does the third."""
    failing(request, step.cut_fails or step.fails)
    same_cut(step.build)


@pytest.mark.parametrize("step", IN_PART)
def test_captured_in_part(step: Step, request: pytest.FixtureRequest) -> None:
    failing(request, step.fails)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "[^\n]*is not captured whole")
        ran = same_steps(step.build)
    assert tuple(each.refusal.kind for each in ran.breaks) == step.breaks, [*map(str, ran.breaks)]
