"""Make an environment for a (Python, torch) pair, and run the tests in it.

    python -m tools.environment --python 3.14 --torch 2.15.0
    python -m tools.environment --python 3.14 --torch 2.15.0 --run "tests/unit -x"

The Python is one of this machine's, if it has it: `python3.14` on PATH, or one of pyenv's. If not,
it is Debian's, in a root directory made by debootstrap: that needs root and a Debian mirror, and
runs on Linux alone. `--root` names a root directory to use or to make. torch and requirements.txt
come from the package indexes that pip is set to use (a CUDA build costs some gigabytes). An
environment that is ready is used as it is.

The tests are those of the directory that the script is called in: `--run` says which, `--quick`
runs those of `make test`. The exit code is pytest's, or 2 where the pair cannot be had.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

SUITES = {"3.13": "trixie", "3.14": "sid"}
"""Which of Debian's suites has which Python (2026)"""
BROKEN = {"3.13.0": "torch warns in it that guards are slow, and the tests make errors of warnings"}
"""Releases of Python that are not to be used, and why"""
NEEDED = "python3,python3-venv,python3-dev,g++,make,git,ca-certificates"
"""Packages of Debian's that a root directory has: Inductor compiles C++ against Python's headers"""
PRINTS_VERSION = "import sys; print('.'.join(map(str, sys.version_info[:3])))"
CARRIED = re.compile(r"\w+_NUM_THREADS|PIP_(EXTRA_)?INDEX_URL|https?_proxy|no_proxy", re.IGNORECASE)
"""Variables that a root directory is given of those set here"""
QUICK = ("-m", "not slow")
HERE = Path.cwd()


class Impossible(Exception):
    """The environment cannot be made here; the text says what is missing."""


@dataclass(frozen=True)
class Machine:
    """An environment with a Python of this machine."""

    interpreter: str
    venv: Path

    def run(self, command: Sequence[str], **more: str) -> int:
        """Run a command in the directory of the call; what it exits with."""
        return subprocess.run(command, env=os.environ | more, check=False).returncode


@dataclass(frozen=True)
class Root:
    """An environment in a root directory of Debian's, with its Python."""

    root: Path
    suite: str
    mirror: str
    venv: Path
    interpreter: str = "/usr/bin/python3"

    def make(self, version: str) -> None:
        """Put Debian into the directory if it is not there, and see that it has this Python."""
        if os.geteuid() != 0:
            raise Impossible(f"no Python {version} here, and a root directory needs root")
        if not (self.root / "usr/bin/python3").exists():
            if shutil.which("debootstrap") is None:
                raise Impossible(f"no Python {version} here, and no debootstrap to get Debian's")
            self.root.mkdir(parents=True, exist_ok=True)
            options = ("--variant=minbase", f"--include={NEEDED}")
            checked(["debootstrap", *options, self.suite, str(self.root), self.mirror])
        for file in filter(None, (Path("/etc/resolv.conf"), self._certificates)):
            inside = self.root / file.relative_to("/")
            inside.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, inside, follow_symlinks=True)
        says = ["chroot", str(self.root), self.interpreter, "-c", PRINTS_VERSION]
        found = subprocess.check_output(says, text=True).strip()
        if not found.startswith(f"{version}."):
            raise Impossible(f"{self.root} has Python {found}, not {version}")

    @cached_property
    def _certificates(self) -> Path | None:
        """Those that pip trusts here, if they are set: a mirror may be signed by them alone."""
        given = os.environ.get("PIP_CERT") or os.environ.get("SSL_CERT_FILE")
        return Path(given).absolute() if given else None

    def run(self, command: Sequence[str], **more: str) -> int:
        """Run a command in the directory of the call, which has the same path inside.

        What is mounted for it is seen by it alone, and gone when it ends.
        """
        lines = ["set -e", *self._mounts(), shlex.join(["exec", *self._inside(command, more)])]
        entered = ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(lines)]
        return subprocess.run(entered, check=False).returncode

    def _mounts(self) -> Iterator[str]:
        """Lines of shell that mount the devices, the checkout, and where git keeps its objects."""
        root = shlex.quote(str(self.root))
        yield f"mount --rbind /dev {root}/dev; mount -t proc proc {root}/proc"
        asked = ["git", "rev-parse", "--path-format=absolute", "--git-common-dir"]
        git = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
        apart = [Path(git)] if git and not Path(git).is_relative_to(HERE) else []
        for path in (HERE, *apart):
            inside = self.root / path.relative_to("/")
            inside.mkdir(parents=True, exist_ok=True)
            yield shlex.join(["mount", "--bind", str(path), str(inside)])

    def _inside(self, command: Sequence[str], more: dict[str, str]) -> list[str]:
        kept = {name: value for name, value in os.environ.items() if CARRIED.fullmatch(name)}
        set_to = {
            "PATH": f"{self.venv}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "LANG": "C.UTF-8",
            **({"PIP_CERT": str(self._certificates)} if self._certificates else {}),
            **kept,
            **more,
        }
        words = [f"{name}={value}" for name, value in set_to.items()]
        there = 'cd "$0" && exec "$@"'
        return [
            *("chroot", str(self.root), "env", "-i", *words),
            *("sh", "-c", there, str(HERE), *command),
        ]


def checked(command: Sequence[str]) -> None:
    """Run a command of this machine that has to succeed."""
    if subprocess.run(command, check=False).returncode:
        raise Impossible(f"failed: {shlex.join(command)}")


def interpreter(version: str) -> str | None:
    """A Python of this machine of that version, the newest that is not broken."""
    name = f"python{version}"
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    paths = [Path(each) / name for each in os.environ["PATH"].split(os.pathsep)]
    paths += pyenv.glob(f"{version}.*/bin/{name}")
    found: dict[tuple[int, ...], str] = {}
    for path in filter(Path.is_file, paths):
        asked = [str(path), "-c", PRINTS_VERSION]
        said = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
        if said in BROKEN:
            sys.stderr.write(f"{path} is not used: {BROKEN[said]}\n")
        elif said.startswith(f"{version}."):  # a shim of pyenv's is there without its Python
            found.setdefault(tuple(map(int, said.split("."))), str(path))
    return found[max(found)] if found else None


def environment(given: argparse.Namespace) -> Machine | Root:
    """Where the pair is to be, with its Python in place."""
    version, home = given.python, given.home.absolute()
    own = None if given.root else interpreter(version)
    if own is not None:
        return Machine(own, home / f"python{version}-torch{given.torch}")
    suite = given.suite or SUITES.get(version)
    root = given.root or (home / f"debian-{suite}" if suite else None)
    if root is None or suite is None:
        raise Impossible(f"no Python {version} here, and no --suite of Debian's known to have it")
    at = Root(root.absolute(), suite, given.mirror, Path(f"/opt/foretrace/torch-{given.torch}"))
    at.make(version)
    return at


def fill(at: Machine | Root, torch: str) -> None:
    """Put torch, requirements.txt and this checkout into the environment."""
    pip = [f"{at.venv}/bin/python", "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    rest = HERE / "out" / "requirements-without-torch.txt"
    rest.parent.mkdir(exist_ok=True)
    lines = (HERE / "requirements.txt").read_text().splitlines(keepends=True)
    rest.write_text("".join(line for line in lines if not line.startswith("torch==")))
    for command in (
        [at.interpreter, "-m", "venv", str(at.venv)],
        [*pip, f"torch=={torch}"],
        [*pip, "--prefer-binary", "-r", str(rest)],
        [*pip, "--no-deps", "--no-build-isolation", "-e", "."],
        ["touch", f"{at.venv}/.ready"],
    ):
        if at.run(command):
            raise Impossible(f"failed: {shlex.join(command)}")


def main(words: Sequence[str]) -> int:
    """Make the environment that is asked for, and run what is asked for in it."""
    parser = argparse.ArgumentParser(prog="python -m tools.environment")
    parser.add_argument("--python", required=True, help="3.11, 3.12, 3.13, 3.14")
    parser.add_argument("--torch", required=True, help="a version, as 2.15.0")
    parser.add_argument("--run", help='what pytest is given, as "tests/unit -x"')
    parser.add_argument("--quick", action="store_true", help="run the tests of `make test`")
    parser.add_argument("--root", type=Path, help="a root directory of Debian's, used or made")
    parser.add_argument("--home", type=Path, default=Path("out/environments"))
    parser.add_argument("--suite", help="the suite of Debian's with this Python")
    parser.add_argument("--mirror", default="https://deb.debian.org/debian")
    given = parser.parse_args(words)
    try:
        at = environment(given)
        if at.run(["test", "-e", f"{at.venv}/.ready"]):
            fill(at, given.torch)
    except Impossible as why:
        sys.stderr.write(f"{why}\n")
        return 2
    if given.run is None and not given.quick:
        sys.stdout.write(f"{at.venv}" + (f" in {at.root}" if isinstance(at, Root) else "") + "\n")
        return 0
    tests = shlex.split(given.run) if given.run is not None else ["-n", "2", *QUICK]
    pytest = [f"{at.venv}/bin/python", "-m", "pytest", *tests]
    return at.run(pytest, OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="", PYTHONPATH=str(HERE))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
