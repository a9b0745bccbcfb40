"""The wheel has all that it needs: what README shows runs beside torch and what is declared alone.

The environments here are made of links to what is installed where the tests run: torch, and what
torch and pyproject.toml declare, and what those declare in turn. Nothing is fetched.
"""

import json
import os
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.house.test_docs import ROOT, blocks

ALONE = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TORCH = tuple(each for each in PROJECT["dependencies"] if each.startswith("torch"))


def needed(requirements: Iterable[str], found: set[str] | None = None) -> set[str]:
    """The distributions that these name, and those that they name in turn, extras left out."""
    found = set() if found is None else found
    for requirement in map(Requirement, requirements):
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if wanted and name not in found:
            found.add(name)
            needed(distribution(name).requires or (), found)
    return found


def environment(folder: Path, requirements: Iterable[str]) -> tuple[Path, Path]:
    """An environment that has these and what they need; its Python and its site-packages."""
    venv.create(folder, with_pip=False)
    (site,) = (folder / "lib").glob("python*/site-packages")
    for name in needed(requirements):
        one = distribution(name)
        for top in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(one.locate_file(top))
    return folder / "bin/python", site


def installed_from_the_checkout(site: Path) -> None:
    """What a wheel would put there, without building one."""
    (site / "foretrace").symlink_to(ROOT / "foretrace")
    facts = site / f"foretrace-{PROJECT['version']}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Name: foretrace\nVersion: {PROJECT['version']}\n")
    points = PROJECT["entry-points"]["torch_dynamo_backends"]
    lines = [f"{name} = {place}" for name, place in points.items()]
    (facts / "entry_points.txt").write_text("\n".join(["[torch_dynamo_backends]", *lines]))


def in_it(python: Path, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *words], cwd=cwd, env=ALONE, capture_output=True, text=True, check=False
    )


def things(python: Path, folder: Path) -> tuple[str, dict[str, str]]:
    """Where foretrace is, and what each thing raised that did not work."""
    folder.mkdir()
    done = in_it(python, str(ROOT / "tests/house/alone.py"), str(folder), cwd=folder)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert len(said["found"]) > 20
    return said["foretrace"], {name: why for name, why in said["found"].items() if why}


def test_all_that_readme_shows_runs_beside_what_is_declared(tmp_path: Path) -> None:
    python, site = environment(tmp_path / "env", PROJECT["dependencies"])
    installed_from_the_checkout(site)
    where, failed = things(python, tmp_path / "work")
    assert where == str(site / "foretrace/__init__.py")
    assert not failed, "\n".join(failed.values())


def test_what_is_not_declared_is_not_there(tmp_path: Path) -> None:
    """Else the test above would show nothing."""
    python, site = environment(tmp_path / "env", TORCH)
    installed_from_the_checkout(site)
    done = in_it(python, "-c", "import foretrace; foretrace.capture", cwd=tmp_path)
    assert "ModuleNotFoundError: No module named 'safetensors'" in done.stderr


@pytest.mark.slow
def test_all_that_readme_shows_runs_from_the_wheel(tmp_path: Path) -> None:
    build = ["wheel", "--no-deps", "--no-build-isolation", "--quiet", "-w", str(tmp_path)]
    subprocess.run([*PIP, *build, str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("foretrace-*.whl")
    python, site = environment(tmp_path / "env", PROJECT["dependencies"])
    install = ["--python", str(python), "install", "--quiet", "--no-index", str(wheel)]
    subprocess.run([*PIP, *install], check=True, env=ALONE)  # with what it declares: it is there
    where, failed = things(python, tmp_path / "work")
    assert where == str(site / "foretrace/__init__.py")
    assert not failed, "\n".join(failed.values())
    (tmp_path / "example.py").write_text(blocks(ROOT / "README.md", "python")[0])
    done = in_it(python, "example.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    command = subprocess.run(
        [python.parent / "foretrace", "--version"], env=ALONE, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert command.stdout.startswith(f"foretrace {PROJECT['version']}")
