"""Two processes that talk by gloo: what would talk is refused, by line, before anything is sent.

By `foretrace.compile` that part runs as Python, once: DDP trains as it does in eager.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.refusals.ranks import PROGRAMS

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of the two has found."""
    file = str(tmp_path_factory.mktemp("ranks") / "met")
    begun = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.refusals.ranks", str(rank), file],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        ended = [each.communicate(timeout=300) for each in begun]
    finally:
        for each in begun:
            each.kill()
    assert all(each.returncode == 0 for each in begun), "\n".join(error for _, error in ended)
    return [json.loads(out) for out, _ in ended]


def test_refused_by_name_and_line(ranks: list[dict[str, Any]]) -> None:
    refused = ranks[0]["refused"]
    assert len(refused) == 3 * (len(PROGRAMS) + 1)
    for name, refusal in refused.items():
        assert refusal is not None, name
        kind, line, what = refusal
        assert (kind, "# here" in line) == ("communication", True), (name, refusal)
        assert what.endswith("talks to other processes, and a capture would do that once more")


@pytest.mark.parametrize(
    ("program", "named"),
    [
        ("sends", "torch.distributed.send"),
        ("gathers_objects", "torch.distributed.all_gather_object"),
        ("makes_a_group", "torch.distributed.new_group"),
        ("reduces_with_a_gradient", "torch.distributed.nn.functional.all_reduce"),
        ("reduces_by_the_group", "ProcessGroup.allreduce"),
        ("trains", "torch.nn.parallel.distributed.DistributedDataParallel.forward"),
    ],
)
def test_names_what_the_user_called(ranks: list[dict[str, Any]], program: str, named: str) -> None:
    what = ranks[0]["refused"][f"{program} by capture"][2]
    assert what.startswith(named), what


def test_nothing_was_sent(ranks: list[dict[str, Any]]) -> None:
    """The first that the other receives is what was sent after all refusals."""
    assert ranks[0]["sent"] == 0
    assert ranks[1]["first received"] == 7.0
    assert not any(rank["written"] for rank in ranks)


@pytest.mark.parametrize("rank", range(2))
def test_ddp_trains_as_in_eager(ranks: list[dict[str, Any]], rank: int) -> None:
    """Losses, weights, and how often the group was called."""
    assert ranks[rank]["compiled"] == ranks[rank]["eager"]
    assert ranks[rank]["eager"]["called"] > 0


def test_ranks_have_the_same_weights(ranks: list[dict[str, Any]]) -> None:
    """But for running statistics, which DDP makes the same at its next forward."""
    one, other = (rank["compiled"]["weights"] for rank in ranks)
    assert {n: v for n, v in one.items() if ".running_" not in n} == {
        n: v for n, v in other.items() if ".running_" not in n
    }
    assert ranks[0]["compiled"]["losses"] != ranks[1]["compiled"]["losses"]


@pytest.mark.parametrize("rank", range(2))
def test_calls_are_made_once(ranks: list[dict[str, Any]], rank: int) -> None:
    """In-place collectives run as Python; functional ones are captured."""
    for name, (same, eager, given, breaks) in ranks[rank]["talked"].items():
        assert same, name
        assert eager == given == 3, name
        assert breaks == (name != "functionally"), name
