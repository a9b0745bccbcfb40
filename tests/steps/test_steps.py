"""Training steps, captured, beside eager: bitwise in all state after each of ten batches."""

import re
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.steps import STEPS, Step
from tests.steps.failing import FAILS, NOT_BY_THE_STEP_CUT, ONLY_AS_A_WHOLE, ONLY_BY_A_CUT
from tests.steps.ways import WAYS, ways_of
from tests.support.steps import Loop, same_cut, same_steps
from tests.support.turns import crossed, one_in

# foretrace warns so at the eighth; a step that may have as many says it
pytestmark = pytest.mark.filterwarnings("ignore:.* was captured again 8 times")

WRONG = "differs from eager"
NO_REFUSALS = (WRONG, "malformed")
WHOLE = [pytest.param(s, id=f"{s.section}.{n}") for n, s in STEPS.items() if not s.breaks]
IN_PART = [
    pytest.param(s, id=f"{s.section}.{n}")
    for n, s in STEPS.items()
    if s.breaks or FAILS.get(n, WRONG) not in NO_REFUSALS
]


def expecting(step: Step, works: frozenset[str], attempt: Callable[[], None]) -> None:
    """What does not work today fails by its words, and by no others."""
    words = FAILS.get(step.name, "")
    if not words or step.name in works:
        attempt()
        return
    with pytest.raises((AssertionError, foretrace.Refusal), match=re.escape(words)):
        attempt()
    pytest.xfail(words)


@pytest.mark.parametrize("step", one_in(7, WHOLE))
def test_captured_whole(step: Step) -> None:
    def attempt() -> None:
        ran = same_steps(step.build, fullgraph=True)
        told = [each.reason for each in ran.compiled.recaptures]
        fewest, most = ways_of(step.name)
        assert fewest <= ran.captures <= most, f"captured {ran.captures} times: {told}"
        assert ran.as_python <= step.first_calls, ran.compiled._first_calls

    expecting(step, ONLY_BY_A_CUT, attempt)


@pytest.mark.parametrize("there", [False, True])
def test_what_is_cleared_is_not_asked(there: bool) -> None:
    """One capture, whether there are gradients or none; one that nothing makes again is cleared."""

    def build() -> Loop:
        model, unused = nn.Linear(3, 2), nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([*model.parameters(), unused], lr=0.1)
        unused.grad = torch.ones(2) if there else None

        def train(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        def batch(index: int) -> tuple[Tensor]:
            if index == 2:
                unused.grad, model.bias.grad = torch.ones(2), None
            return (torch.full((2, 3), float(index)),)

        return Loop(train, batch, model=model, unused=unused, optimizer=optimizer)

    assert same_steps(build, fullgraph=True, batches=4).captures == 1


def test_named_are_steps() -> None:
    """No reason is left of a step that is no more, or that is not captured whole."""
    assert not WAYS.keys() - {step.name for step in STEPS.values() if not step.breaks}


@pytest.mark.parametrize(("step", "level"), crossed(one_in(10, WHOLE, 4), ["aten", "step"]))
def test_one_cut(step: Step, level: str) -> None:
    """`foretrace.capture` after two batches; a cut of it does the third."""
    if level == "step" and step.name in NOT_BY_THE_STEP_CUT:
        with pytest.raises(foretrace.Refusal, match="with a history"):
            same_cut(step.build, level)
        return
    expecting(step, ONLY_AS_A_WHOLE, lambda: same_cut(step.build, level))


@pytest.mark.parametrize("step", IN_PART)
def test_captured_in_part(step: Step) -> None:
    """What no single graph holds, or is refused today, is as eager in pieces."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "[^\n]*is not captured whole")
        ran = same_steps(step.build)
    kinds = tuple(each.refusal.kind for each in ran.breaks)
    assert kinds, "it is captured whole"
    assert not step.breaks or kinds == step.breaks, [*map(str, ran.breaks)]
