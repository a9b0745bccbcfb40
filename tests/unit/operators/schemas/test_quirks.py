"""The table of what torch's operators do otherwise: each is there, and its page is up to date."""

from pathlib import Path

import pytest

from foretrace.autograd.derivatives.registered_rules import REDUCTION_RULES
from foretrace.autograd.eager_history.trained_writes import VIEWS
from foretrace.operators.schemas import quirks
from foretrace.operators.schemas.quirks import QUIRKS, Quirk
from foretrace.operators.targets.mode_sensitive_bodies import UNTRACED
from tools.quirks import page

ROOT = Path(__file__).parents[4]
ALL = [quirk for _, group in QUIRKS for quirk in group]


def test_the_page_is_printed_from_the_table() -> None:
    assert (ROOT / "docs/torch-quirks.md").read_text() == page()


@pytest.mark.parametrize("quirk", ALL, ids=lambda quirk: quirk.differs[:40])
def test_each_names_operators_of_torch_and_who_asks(quirk: Quirk) -> None:
    names = {name: value for name, value in vars(quirks).items() if value is quirk}
    assert quirk.overloads
    (name,) = names
    asking = ROOT / "foretrace" / quirk.asked
    assert name in asking.read_text() or quirk in (quirks.UNTRACED, quirks.BY_DATA)


def test_none_is_left_out() -> None:
    assert {id(q) for q in vars(quirks).values() if isinstance(q, Quirk)} == {id(q) for q in ALL}


def test_tables_of_functions_are_for_these_operators() -> None:
    assert UNTRACED.keys() == quirks.UNTRACED.overloads.keys()
    assert REDUCTION_RULES.keys() == quirks.BY_DATA.overloads.keys()
    assert VIEWS.keys() == quirks.SCATTERED.overloads.keys()
