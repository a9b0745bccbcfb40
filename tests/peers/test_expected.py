"""The list of torch's tests that fail: it can be read, and any change is found."""

from pathlib import Path

import pytest

from tests.peers.__main__ import PLAN
from tests.peers.expected import Expected, changes, read
from tests.peers.run import Ran


def test_the_list_speaks_of_files_and_modes_that_are_run() -> None:
    planned = {(file, mode) for file, modes, _ in PLAN for mode in modes}
    assert {(each.file, each.mode) for each in read()} <= planned


def test_a_change_of_either_kind_is_found() -> None:
    known = [Expected("a.py", "compile", "a limit", ("T::one", "T::two"))]
    assert changes("a.py", "compile", ["T::three"], ["T::one", "T::two"], known) == []
    found = changes("a.py", "compile", ["T::one"], ["T::two", "T::three"], known)
    assert [(each.test, each.passes) for each in found] == [("T::three", False), ("T::one", True)]
    assert "is on the list" in str(found[1])
    assert changes("a.py", "compilers", ["T::one"], [], known) == []


@pytest.mark.parametrize(
    "text",
    [
        '[[expected]]\nfile="a"\nmodes=["compile"]\ncause=" "\ntests=["T::one"]',
        '[[expected]]\nfile="a"\nmodes=["compile"]\ncause="x"\ntests=["T::one", "T::one"]',
    ],
)
def test_a_test_stands_once_and_has_a_cause(text: str, tmp_path: Path) -> None:
    (tmp_path / "list.toml").write_text(text)
    with pytest.raises(ValueError, match="twice, or without a cause"):
        read(tmp_path / "list.toml")


@pytest.mark.parametrize(
    ("outcome", "error", "kind"),
    [
        ("passed", "", "passed"),
        ("crashed", "", "crashed"),
        ("failed", "E   foretrace.errors.Refusal: no", "refused"),
        ("failed", "E   AssertionError: Tensor-likes are not close!", "differs"),
        ("failed", "x\nE   TypeError: no", "raises"),
    ],
)
def test_kinds(outcome: str, error: str, kind: str) -> None:
    ran = Ran("T::one", outcome, error)
    assert ran.kind == kind
    assert ran.fails == (kind not in ("passed", "skipped"))
