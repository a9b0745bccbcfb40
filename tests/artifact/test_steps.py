"""Files of training steps: each batch is eager's, to the bit, and refusals are the step's."""

import re
import warnings
from contextlib import suppress
from pathlib import Path

import pytest

import foretrace
from tests.steps import STEPS, Step
from tests.steps.failing import FAILS, ONLY_AS_A_WHOLE
from tests.support.step_files import BATCHES, Trained
from tests.support.turns import one_in

ONE_CALL = "a file of that answers one call"
OTHER_MEMORY = "a file leaves the memory of what it has"
NOT_SAVED: dict[str, str] = {
    "a_gradient_that_has_a_graph_stays": "w.grad is the result of an operator, with a history",
    "chained_in_the_step": ONE_CALL,
    "lbfgs_with_a_closure": ONE_CALL,
    "losses_are_averaged_now_and_then": ONE_CALL,
    "negatives_from_a_deque_of_batches": ONE_CALL,
    "pruned_by_torch": "weight is the result of an operator, with a history",
    "sequential_in_the_step": ONE_CALL,
    "stops_early_by_patience": ONE_CALL,
    "the_last_three_losses": ONE_CALL,
    "the_model_is_an_argument": "net is Sequential, an object with state, among the arguments",
    "the_model_and_the_optimizer_are_given": "model is Sequential, an object with state, among",
    "a_parameter_is_given_too": "the argument head is a tensor that the program has",
    **dict.fromkeys(
        (
            *("sharpness_aware_as_an_optimizer", "moco_with_a_queue", "descends_by_data"),
            *("noise_before_the_backward", "the_giver_is_written_to", "hooks_stay_on_it"),
            *("the_giver_is_left_elsewhere", "the_giver_is_returned_and_written_later"),
            *("what_saw_it_before_goes_on_seeing_that", "twice_in_one_step", "from_columns"),
            *("momentum_goes_on_with_the_same_parameter", "statistics_get_other_memory"),
            *("two_share_one_memory_that_nobody_writes", "parameters_are_set_from_a_vector"),
        ),
        OTHER_MEMORY,
    ),
}
"""What no file holds, by name: words of the refusal"""
WHOLE = [pytest.param(s, id=f"{s.section}.{n}") for n, s in STEPS.items() if not s.breaks]
IN_PART = [pytest.param(s, id=f"{s.section}.{n}") for n, s in STEPS.items() if s.breaks]
FULL = {"the_last_three_losses": 4, "negatives_from_a_deque_of_batches": 5}
"""Steps that a file holds once their lists are full, and after how many batches that is"""


@pytest.mark.parametrize("step", one_in(16, WHOLE, 2))
def test_same_from_a_file(step: Step, tmp_path: Path) -> None:
    failing = FAILS.get(step.name) if step.name not in ONLY_AS_A_WHOLE else None
    words = NOT_SAVED.get(step.name) or failing
    if words is None:
        same_for_a_while(Trained(step.build, tmp_path / "step.ft"))
        return
    with pytest.raises(foretrace.Refusal, match=re.escape(words)) as caught:
        Trained(step.build, tmp_path / "step.ft")
    assert caught.value.do
    assert caught.value.at is not None or failing


@pytest.mark.parametrize("name", FULL)
def test_same_once_they_are_full(name: str, tmp_path: Path) -> None:
    same_for_a_while(Trained(STEPS[name].build, tmp_path / "step.ft", FULL[name]))


def same_for_a_while(both: Trained) -> None:
    """The first batch is answered, and all others until the step itself is another program."""
    for count in range(BATCHES):
        why = both.batch()
        if why:
            assert count, why
            return


@pytest.mark.parametrize("step", one_in(5, IN_PART))
def test_what_no_single_graph_holds(step: Step, tmp_path: Path) -> None:
    """A file has one graph: it is refused as by `foretrace.capture`, or answers what that does."""
    both: list[Trained] = []
    with warnings.catch_warnings(), suppress(foretrace.Refusal):
        warnings.simplefilter("ignore")
        both.append(Trained(step.build, tmp_path / "step.ft"))
    for each in both:
        same_for_a_while(each)
