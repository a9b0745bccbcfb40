"""Which Python `tools.environment` takes, and what it says where there is none."""

import pytest

from tools import environment


def python(folder, name, version):
    """A program that says what a Python of that version says."""
    folder.mkdir(parents=True)
    (folder / name).write_text(f"#!/bin/sh\necho {version}\n")
    (folder / name).chmod(0o755)
    return str(folder / name)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with pyenv's 3.13.0 and 3.13.4, and a shim on PATH that has no Python."""
    monkeypatch.setenv("PATH", f"{tmp_path}/shims:/usr/bin:/bin")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    python(tmp_path / "shims", "python3.19", "")
    for release in ("3.17.2", "3.17.10", "3.13.0"):
        name = "python" + release.rpartition(".")[0]
        python(tmp_path / "versions" / release / "bin", name, release)
    return tmp_path


def test_the_newest_release_is_taken(machine):
    assert environment.interpreter("3.17") == f"{machine}/versions/3.17.10/bin/python3.17"


def test_a_broken_release_is_not(machine, monkeypatch, capsys):
    monkeypatch.setitem(environment.BROKEN, "3.17.10", "of a test")
    assert environment.interpreter("3.17") == f"{machine}/versions/3.17.2/bin/python3.17"
    assert "of a test" in capsys.readouterr().err


def test_a_shim_is_no_python(machine):
    assert environment.interpreter("3.19") is None


@pytest.mark.parametrize(
    ("uid", "words", "said"),
    [
        (1, [], "no --suite"),
        (1, ["--suite", "none"], "needs root"),
        (0, ["--suite", "none"], "no debootstrap"),
    ],
)
def test_what_is_missing_is_said(machine, monkeypatch, capsys, uid, words, said):
    monkeypatch.setenv("PATH", f"{machine}/shims")
    monkeypatch.setattr(environment.os, "geteuid", lambda: uid)
    home = ["--home", str(machine / "home")]
    assert environment.main(["--python", "3.19", "--torch", "2.15.0", *home, *words]) == 2
    assert said in capsys.readouterr().err


def test_a_command_sees_the_checkout_and_its_objects(machine):
    at = environment.Root(machine / "root", "sid", "", machine / "venv")
    mounts = list(at._mounts())
    assert f"mount --bind {environment.HERE} {machine}/root{environment.HERE}" in mounts
    assert at._inside(["a b"], {"X": "y"})[-2:] == [str(environment.HERE), "a b"]
