"""Files of training steps: each batch is eager's, bit for bit, and the refusals are the step's."""

import re
from pathlib import Path

import pytest

import foretrace
from tests.steps import STEPS
from tests.steps.failing import FAILS, ONLY_AS_A_WHOLE
from tests.support.step_files import BATCHES, Trained
from tests.support.turns import one_in

NOT_SAVED: dict[str, str] = {}
"""What no file holds, by name: words of the refusal"""
CASES = [pytest.param(s, id=f"{s.section}.{n}") for n, s in STEPS.items() if not s.breaks]


@pytest.mark.parametrize("step", one_in(5, CASES))
def test_same_from_a_file(step, tmp_path: Path) -> None:
    words = NOT_SAVED.get(step.name) or FAILS.get(step.name)
    if words and step.name not in ONLY_AS_A_WHOLE:
        with pytest.raises(foretrace.Refusal, match=re.escape(words)):
            Trained(step.build, tmp_path / "step.ft")
        return
    both = Trained(step.build, tmp_path / "step.ft")
    for count in range(BATCHES):
        why = both.batch()
        if why:
            assert count, why
            return
