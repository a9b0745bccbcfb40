"""Every zoo program, captured once and run at every cut, against eager."""

import pytest

import foretrace
from tests.programs import CASES, Case
from tests.support import standin
from tests.support.compare import Report, same_as_eager
from tests.support.turns import at_other_sizes, one_in

# torch warns of this once, eager or not
pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")

CAPTURED, OTHER = 11, 7  # unlike every other size, so that no two are taken for one


def captures(case: Case) -> list[tuple[str, ...]]:
    """The cuts of each capture: all of one, but where one cut may be refused, or changes another.

    A program's own generator goes on drawing from one cut of a capture to the next.
    """
    apart = case.may_refuse or case.section == "randomness"
    return [(cut,) for cut in case.cuts] if apart else [case.cuts]


BY_NAME = [pytest.param(case, id=f"{case.section}.{name}") for name, case in CASES.items()]
AT_EVERY_CUT = [
    pytest.param(*each.values, cuts, id=f"{each.id}-{'-'.join(cuts)}", marks=each.marks)
    for each in one_in(2, BY_NAME)
    for cuts in captures(each.values[0])
]
"""One program in two; the other one is quick through `foretrace.compile` (test_compile_zoo.py)"""


def compare(case: Case, size: int = 4, **options: object) -> Report:
    """The comparison with what the case asks for."""
    subject = case.subject(size)
    return same_as_eager(
        subject.fn,
        subject.args,
        subject.kwargs,
        loss=case.loss,
        **{"cuts": case.cuts, **options},  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("case", one_in(16, BY_NAME, 1))
def test_eager_equals_itself(case: Case) -> None:
    """The program runs on the installed torch, and is deterministic."""
    report = compare(case, capture=standin.capture)
    compared = report.outputs + report.gradients + len(report.mutated)
    assert compared, "nothing was compared"
    assert not case.train or report.gradients, "nothing has a gradient: say train=False"


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("case", "cuts"), AT_EVERY_CUT)
def test_same_as_eager(case: Case, cuts: tuple[str, ...]) -> None:
    """Outputs, gradients, mutations, aliasing and random state are those of eager."""
    try:
        compare(case, cuts=cuts)
    except foretrace.Refusal as refusal:
        if not case.may_refuse:
            raise
        pytest.xfail(f"{case.may_refuse}: {refusal}")


@pytest.mark.parametrize("cut", ["aten", "joint"])
@pytest.mark.parametrize(
    "name", ["autocast_inside_a_composite", "autocast_and_casts_of_the_program"]
)
def test_everything_kept_under_autocast(name: str, cut: str) -> None:
    """A composite that is kept does what it did under autocast."""
    compare(CASES[name], cuts=(cut,), keep=[lambda _: True])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", at_other_sizes(0))
def test_another_size(case: Case) -> None:
    """The same graphs, captured with symbolic sizes, at the captured size and at another."""
    other = case.subject(OTHER)
    assert not other.kwargs, "a size in a keyword does not vary yet"
    compare(case, CAPTURED, dynamic_shapes=True, more_args=[other.args])
