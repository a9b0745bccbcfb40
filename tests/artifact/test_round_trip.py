"""Every zoo program whose cuts a file can hold: the cuts of the file give the same bits."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.programs import CASES, Case
from tests.support.saved import Saved, same_again, same_explanations, saved
from tests.support.subject import Subject
from tests.support.turns import crossed, some

pytestmark = pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")

EVERY = ("export", "aten", "joint", "pair")
NAMES = list(CASES)
DRAWN = NAMES[:: len(NAMES) // 40]
"""Programs, evenly drawn, of which the quick tests see some; the others are slow together"""


def holdable(case: Case, path: Path) -> Saved:
    """The program saved with all cuts that it has and a file can hold."""
    cuts = list(EVERY if case.train else EVERY[:2])
    while True:
        try:
            return saved(case.subject(), path, cuts, case.loss)
        except foretrace.Refusal as refusal:
            if refusal.kind != "not saved" and not case.may_refuse:
                raise
            if len(cuts) == 1:
                pytest.skip(str(refusal))
            cuts = cuts[1:]


def check(case: Case, path: Path) -> None:
    found = holdable(case, path)
    assert same_again(found, case.subject(), case.loss)
    loaded = found.loaded()
    for name, cut in found.cuts.items():
        again: Any = loaded.pair() if name == "pair" else loaded.cut(name)
        pairs = zip(cut, again, strict=True) if name == "pair" else [(cut, again)]
        for one, other in pairs:
            assert same_explanations(one, other)


@pytest.mark.parametrize("name", some(2, DRAWN))
def test_same_bits(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path / "program.ft")


def other_sizes(name: str, path: Path) -> None:
    """Saved with open sizes, the file gives what the capture gives at sizes unlike its own."""
    case, cuts = CASES[name], ["export", "joint"] if CASES[name].train else ["export"]
    try:
        found = saved(case.subject(11), path, cuts, case.loss, dynamic_shapes=True)
    except foretrace.Refusal as refusal:
        pytest.skip(str(refusal))
    for size in (7, 1) if name in UNREAD else (7, 1, 0):
        same_again(found, case.subject(size), case.loss)


UNREAD = {"margins_of_many_classes"}
"""Without rows, torch's kernel gives what was in memory: eager differs from itself"""
VARYING = [name for name in NAMES if CASES[name].varies]


@pytest.mark.parametrize("name", some(2, VARYING[:: len(VARYING) // 15], 1))
def test_other_sizes(name: str, tmp_path: Path) -> None:
    other_sizes(name, tmp_path / "program.ft")


@pytest.mark.slow
@pytest.mark.parametrize("name", VARYING)
def test_other_sizes_of_all(name: str, tmp_path: Path) -> None:
    other_sizes(name, tmp_path / "program.ft")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name not in DRAWN])
def test_same_bits_of_all(name: str, tmp_path: Path) -> None:
    check(CASES[name], tmp_path / "program.ft")


class Rows(nn.Module):
    """Data decides how many rows are left, and the batch is open."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        rows = x[x.sum(-1) > 0]
        return torch.nn.functional.gelu(self.proj(rows)).sum() * x.shape[0]


@pytest.mark.parametrize(("rows", "cut"), crossed([2, 3, 9], ["export", "joint", "pair"]))
def test_open_sizes(cut: str, rows: int, tmp_path: Path) -> None:
    """A file has open sizes and what was assumed of them."""
    torch.manual_seed(0)
    subject = Subject(Rows(), (torch.randn(5, 8),))
    found = saved(subject, tmp_path / "open.ft", [cut], 0, dynamic_shapes=True)
    same_again(found, Subject(found.live.fn, (torch.randn(rows, 8),)), 0)


def test_a_row_has_a_capture_of_its_own(tmp_path: Path) -> None:
    """An open size is 2 or more: a file refuses one row, and takes it with a capture for it."""
    subject, one = Rows(), torch.randn(1, 8)
    many = foretrace.capture(subject, (torch.randn(5, 8),), dynamic_shapes=True)
    many.save(tmp_path / "many.ft")
    with pytest.raises(foretrace.Refusal, match="capture with an example of this size"):
        foretrace.load(tmp_path / "many.ft")(one)
    many.save(tmp_path / "both.ft", also=[foretrace.capture(subject, (one,))])
    both = foretrace.load(tmp_path / "both.ft")
    for x in (one, torch.randn(3, 8)):
        assert torch.equal(both(x), subject(x))


def test_a_guard_on_a_size_has_its_line(tmp_path: Path) -> None:
    def small(x: Tensor) -> Tensor:
        return x * 2 if x.shape[0] < 8 else x * 3

    x = torch.randn(4, 3)
    program = foretrace.capture(small, (x,), dynamic_shapes=True)
    program.save(tmp_path / "small.ft")
    loaded = foretrace.load(tmp_path / "small.ft")
    assert torch.equal(loaded(torch.ones(7, 3)), torch.ones(7, 3) * 2)
    told = []
    for cut in (program.cut("export"), loaded):
        with pytest.raises(foretrace.Refusal) as caught:
            cut(torch.ones(9, 3))
        told.append(str(caught.value))
    assert told[0] == told[1]
    assert "return x * 2 if x.shape[0] < 8" in told[1]


def test_an_answer_from_the_example_is_guarded(tmp_path: Path) -> None:
    def asks(x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x * 3

    foretrace.capture(asks, (torch.ones(3),)).save(tmp_path / "asks.ft")
    loaded = foretrace.load(tmp_path / "asks.ft")
    assert torch.equal(loaded(torch.ones(3)), torch.ones(3) * 2)
    with pytest.raises(foretrace.Refusal) as caught:
        loaded(-torch.ones(3))
    assert caught.value.kind == "guard broken"
    assert caught.value.at is not None
    assert caught.value.at.text == "return x * 2 if x.sum() > 0 else x * 3"


def test_saved_again_it_is_the_same_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)), torch.randn(5, 4)
    program = foretrace.capture(model, (x,))
    program.save(tmp_path / "one.ft", "export", "pair")
    loaded = foretrace.load(tmp_path / "one.ft")
    loaded.program.save(tmp_path / "two.ft", loaded.cut("export"), loaded.pair())
    assert (tmp_path / "one.ft").read_bytes() == (tmp_path / "two.ft").read_bytes()


def test_the_torch_that_rules_were_asked_of_is_that_of_the_capture(tmp_path: Path) -> None:
    program = foretrace.capture(nn.Linear(4, 3), (torch.randn(5, 4),))
    program.recorded.torch_version = "2.99.0"
    program.save(tmp_path / "other.ft", "joint")
    told = str(foretrace.load(tmp_path / "other.ft").cut("joint").explain("mm"))
    assert "torch 2.99.0's own autograd" in told
    assert told == str(program.cut("joint").explain("mm"))


def test_the_difference_of_two_files(tmp_path: Path) -> None:
    x = torch.randn(5, 4)
    for name, act in (("gelu", nn.GELU()), ("relu", nn.ReLU())):
        torch.manual_seed(0)
        foretrace.capture(nn.Sequential(nn.Linear(4, 3), act), (x,)).save(tmp_path / f"{name}.ft")
    left, right = (
        foretrace.load(tmp_path / f"{name}.ft").cut("export") for name in ("gelu", "relu")
    )
    assert not foretrace.diff(left, left)
    found = foretrace.diff(left, right)
    assert len(found.differences) == 1
    assert not found.missing
    assert "gelu" in str(found)
