"""Programs from seeds, by every route against eager; and those that were once wrong."""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from foretrace.frontends.program import Cut
from tests.fuzz import campaign, server, works
from tests.fuzz.verdict import Verdict, judged
from tests.support.turns import one_in, some

FOUND = sorted((Path(__file__).parent / "found").glob("[!_]*.py"))

KNOWN: dict[int, str] = {}
"""seeds that fail today, and why"""
KNOWN_STATEFUL: dict[int, str] = {}

# eager warns of what it takes reluctantly
pytestmark = pytest.mark.filterwarnings("ignore")


def failures(seeds: Iterable[int], *, kind: str = "programs") -> list[str]:
    outcomes = campaign.run(seeds, jobs=1, limit=60, kind=kind)
    return [campaign.told(outcome) for outcome in outcomes if outcome.failed]


@pytest.mark.parametrize("first", some(4, range(0, 40, 10)))
def test_programs(first: int) -> None:
    assert not failures(seed for seed in range(first, first + 10) if seed not in KNOWN)


@pytest.mark.slow
def test_programs_while_state_changes() -> None:
    assert not failures((s for s in range(10) if s not in KNOWN_STATEFUL), kind="stateful")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1400, 50))
def test_more_programs(first: int) -> None:
    assert not failures(range(first, first + 50))


@pytest.mark.slow
def test_more_programs_while_state_changes() -> None:
    assert not failures(range(1000, 1060), kind="stateful")


PROGRAM = """
import torch

def make():
    def program(x, flag=True, number=2):
        a = x.sin()
        b = a.exp()
        c = b.cos()
        return a, c * 2
    return program

def inputs(call):
    return (torch.randn(3, 4),), {}

LOSS, DYNAMIC = None, False
"""


@pytest.mark.slow
def test_a_fault_is_found_and_the_program_made_small() -> None:
    """A graph that is wrong where it has `exp` leaves a program of `exp`, and nothing else."""
    (result,) = server.forked(works.faulty, [(PROGRAM, "export cut")], 1, 60)
    outcome = campaign.Outcome(0, PROGRAM, tuple(Verdict(**one) for one in result.value))
    (verdict,) = outcome.failures
    assert (verdict.status, verdict.kind) == ("WRONG", "output values")
    told = campaign.told(outcome, work=works.faulty)
    assert ".exp()" in told
    assert not any(word in told for word in ("sin", "cos", "* 2"))


@pytest.mark.parametrize(
    ("change", "status"), [(torch.neg, "nothing"), (torch.Tensor.double, "WRONG")]
)
def test_eager_that_differs_from_itself(
    change: Callable[[torch.Tensor], torch.Tensor], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it does not repeat is held against no route; what it does repeat is."""
    right = Cut.__call__

    def wrong(self: Cut, *args: object, **kwargs: object) -> object:
        return pytree.tree_map(change, right(self, *args, **kwargs))

    monkeypatch.setattr(Cut, "__call__", wrong)
    text = PROGRAM.replace("x.sin()", "x.sin() + clock() % 100_003 / 1e5")
    text = text.replace("import torch", "import torch\nfrom time import perf_counter_ns as clock")
    assert [verdict.status for verdict in judged(text, only="export cut")] == [status]


def test_a_child_that_dies_costs_one_seed() -> None:
    """An abort, and a child that does not end, are outcomes, named by what they were at."""
    found = {r.item: (r.value, r.ended, r.last) for r in server.forked(works.dying, range(4), 2, 3)}
    assert found[0][0] == 0
    assert found[3][0] == 3
    assert found[1] == (None, "SIGABRT", "at work")
    assert found[2] == (None, "timeout", "at work")


def test_a_child_can_run_a_backward_where_this_process_has() -> None:
    """Who forks it is another process: torch for CUDA refuses a fork after a backward.

    It counts a device, so that its autograd starts threads, once there has been a fake tensor.
    """
    with FakeTensorMode():
        torch.ones(())
    _, gradient = works.backward(2, lambda word: None)
    (result,) = server.forked(works.backward, [3], 1, 60)
    assert not result.ended
    forking, of_child = result.value
    assert forking != os.getpid()
    assert (gradient, of_child) == (2, 3)


@pytest.mark.parametrize("file", one_in(3, [pytest.param(file, id=file.stem) for file in FOUND]))
def test_what_was_once_wrong(file: Path, request: pytest.FixtureRequest) -> None:
    text = file.read_text()
    known = re.search(r"^XFAIL = \"(.*)\"", text, re.MULTILINE)
    if known:
        request.applymarker(pytest.mark.xfail(reason=known[1], strict=False))
    failed = [verdict for verdict in judged(text) if verdict.failed]
    assert not failed
