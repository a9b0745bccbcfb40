"""The wheel has all that it needs: README's example runs from it, where no checkout is in reach."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.house.test_docs import ROOT, blocks


@pytest.mark.slow
def test_the_example_runs_from_the_wheel(tmp_path: Path) -> None:
    """In an environment of its own, that has torch and what torch needs from this one."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--quiet", "-w", str(tmp_path)]
    subprocess.run([*pip, *build, str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("foretrace-*.whl")
    venv.create(tmp_path / "env")
    python = tmp_path / "env/bin/python"
    (site,) = (tmp_path / "env/lib").glob("python*/site-packages")
    here = sysconfig.get_path("purelib")  # a plain line: what is editable here stays out
    (site / "torch-of-this-environment.pth").write_text(f"{here}\n")
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    install = ["--python", str(python), "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run([*pip, *install], check=True, env=alone)
    example = (
        "import foretrace\nprint(foretrace.__file__)\n" + blocks(ROOT / "README.md", "python")[0]
    )
    (tmp_path / "example.py").write_text(example)
    done = subprocess.run(
        [python, "example.py"], cwd=tmp_path, env=alone, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(site))
