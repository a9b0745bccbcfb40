"""A file that calls operators which the process does not have, or has otherwise."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

import foretrace
from tests.artifact.test_damaged import in_manifest, rewritten

LIBRARY = torch.library.Library("foretrace_artifact", "FRAGMENT")
LIBRARY.define("doubled(Tensor x) -> Tensor")
LIBRARY.impl("doubled", lambda x: x * 2, "CompositeExplicitAutograd")
LIBRARY.impl("doubled", torch.empty_like, "Meta")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    def fn(x: Tensor) -> Tensor:
        doubled: Tensor = torch.ops.foretrace_artifact.doubled(x)
        return doubled + 1

    foretrace.capture(fn, (torch.ones(3),)).save(tmp_path / "own.ft")
    return tmp_path / "own.ft"


def test_a_library_that_is_there(path: Path) -> None:
    assert torch.equal(foretrace.load(path)(torch.ones(3)), torch.full((3,), 3.0))


def test_a_library_that_is_not_there_is_named(path: Path) -> None:
    code = f"import foretrace; foretrace.load({str(path)!r})"
    root = str(Path(foretrace.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env={"PYTHONPATH": root},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "calls foretrace_artifact::doubled, which this process does not have" in done.stderr
    assert "import the library that registers foretrace_artifact first" in done.stderr


def test_an_operator_with_another_schema_is_named(path: Path, tmp_path: Path) -> None:
    other = {
        "foretrace_artifact::doubled": "foretrace_artifact::doubled(Tensor x, int n) -> Tensor"
    }
    bad = rewritten(path, tmp_path / "bad.ft", in_manifest(operators=other))
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.load(bad)
    assert caught.value.kind == "unknown operator"
    assert "int n" in caught.value.what
