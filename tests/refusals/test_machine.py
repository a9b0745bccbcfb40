"""What a machine lacks: folders, encodings."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from torch import nn

import foretrace
from foretrace import torch_api
from foretrace.errors import Refusal

ROOT = Path(__file__).parents[2]


def test_no_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> NoReturn:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/none']")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    load = torch_api.load_dynamo.__wrapped__  # as in a process that has not loaded it
    with pytest.raises(Refusal, match="a folder for temporary files: No usable") as caught:
        load()
    assert caught.value.kind == "no temporary folder"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/none")  # the way out
    load()


def test_a_file_that_cannot_even_be_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where everything is read-only."""

    def refuse(self: Path, *args: object, **kwargs: object) -> NoReturn:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    program = foretrace.capture(nn.Linear(3, 3), (torch.randn(2, 3),))
    with pytest.raises(Refusal, match="Read-only file system") as caught:
        program.save(tmp_path / "a.ft")
    assert caught.value.kind == "not written"


TEXT = """
import torch
def program():
    größe = torch.nn.Linear(3, 3)
    def vorwärts(eingäbe):
        return größe(eingäbe).sum()  # 日本
    return vorwärts, (torch.randn(2, 3, requires_grad=True),)
"""


@pytest.mark.parametrize(
    "name", ["größe.py", os.fsdecode(b"gr\xf6\xdfe.py")], ids=["utf8", "latin1"]
)
def test_a_program_with_names_that_are_not_ascii(name: str, tmp_path: Path) -> None:
    """Also in a file whose name is in bytes of another encoding: Python has surrogates for them."""
    path = tmp_path / name
    path.write_text(TEXT, encoding="utf-8")
    space: dict[str, object] = {}
    exec(compile(TEXT, str(path), "exec"), space)  # noqa: S102
    fn, args = space["program"]()  # type: ignore[operator]
    program = foretrace.capture(fn, args)
    assert torch.equal(program.compile()(*args), fn(*args))
    program.save(tmp_path / "a.ft", "export", "joint", loss=0)
    loaded = foretrace.load(tmp_path / "a.ft")
    assert torch.equal(loaded(*args), fn(*args))
    explained = str(program.cut("joint", loss=0).explain("addmm"))
    assert name in explained
    assert str(loaded.cut("joint").explain("addmm")) == explained


@pytest.mark.parametrize(
    "encoding",
    ["ascii", *(pytest.param(each, marks=pytest.mark.slow) for each in ("cp1252", "utf-8"))],
)
def test_a_stream_that_cannot_have_every_letter(encoding: str, tmp_path: Path) -> None:
    """What it lacks is written as Python spells it."""
    path = tmp_path / "size.py"
    path.write_text(TEXT, encoding="utf-8")
    words = [sys.executable, "-m", "foretrace", "explain", f"{path}", "addmm"]
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, check=False,
        env=os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    wanted = "größe(eingäbe).sum()  # 日本".encode(encoding, "backslashreplace")
    assert wanted in done.stdout
