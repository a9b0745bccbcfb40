"""What the documentation shows is run: README.md and every page under docs/.

Every ```python block runs, in order, in one namespace per page; a line of a block is the line of
its page, so what an error or an explanation quotes can be found there. In every ```console block
each `$ foretrace ...` and `$ python ...` line runs and exits with 0, or with N where the line ends
with `# exit N`; the lines below it are lines that it prints, in this order (`...`: some are left
out; the numbers of our own lines may be others). A block that is only to be looked at is fenced
```text. One that is fenced ```python needs PACKAGE runs where the package is installed, as in
`make test-backends`.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from foretrace.frontends.cli import main
from tests.house.wings import WINGS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
REQUIRED = (ROOT / "requirements.txt").read_text()
BLOCK = re.compile(r"^```(\w+)(?: needs ([\w. ]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
THEIR_LINE = re.compile(r"(\b(?:aten|build|torch)/[\w/]+?)(?:_[\d*]+)?\.(?:cpp|h|py)(?::\d+)?")
OF_NO_DEVICE = re.compile(r"note +kernels of the CUDA build of torch ")
OUR_LINE = re.compile(r"(\bforetrace/[\w/]+\.py):\d+")
COMMAND = re.compile(r"^\$ ((?:foretrace|python) .*?)(?:\s+# exit (\d+))?$", re.MULTILINE)


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    """The blocks in one language, each padded so that its lines have the page's numbers."""
    text = page.read_text()
    found = [match for match in BLOCK.finditer(text) if match[1] == language]
    runs = [match for match in found if all(map(find_spec, (match[2] or "").split()))]
    return ["\n" * text.count("\n", 0, match.start(3)) + match[3] for match in runs]


def commands(page: Path) -> list[tuple[str, int, list[str]]]:
    """Each command of a page, what it exits with, and what it is shown to print."""
    found = []
    for block in blocks(page, "console"):
        for part in re.split(r"^(?=\$ )", block, flags=re.MULTILINE):
            match = COMMAND.match(part)
            if match is not None:
                found.append((match[1], int(match[2] or 0), part.splitlines()[1:]))
    return found


def printed(lines: list[str]) -> list[str]:
    """Lines to compare: without those left out, and without the numbers of our own lines.

    The pages show torch's CPU build of requirements.txt. Any other has other files and lines, and
    a CUDA build answers of its own kernels.
    """
    shown = [OUR_LINE.sub(r"\1", line.rstrip()) for line in lines]
    if f"torch=={torch.__version__.removesuffix('+cpu')}\n" not in REQUIRED:
        shown = [THEIR_LINE.sub(r"\1", line) for line in shown]
        shown = [line for line in shown if not OF_NO_DEVICE.search(line)]
    return [line for line in shown if line.strip() not in ("", "...")]


def missing(shown: list[str], said: list[str]) -> list[str]:
    """What is shown and not said, in this order."""
    rest = iter(printed(said))
    return [line for line in printed(shown) if line not in rest]


def test_what_is_shown_has_to_be_said_in_order() -> None:
    assert not missing(["a", "...", "c"], ["a", "b", "c"])
    assert missing(["c", "a"], ["a", "c"]) == ["a"]
    assert not missing(["foretrace/x.py:3 f"], ["foretrace/x.py:4 f"])
    assert missing(["mine.py:3 f"], ["mine.py:4 f"])


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name)
def test_python(page, monkeypatch, tmp_path):
    """Where everything of the checkout is in reach, and what a block writes is not left in it."""
    for each in ROOT.iterdir():
        (tmp_path / each.name).symlink_to(each)
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": f"docs:{name(page)}"}
    for block in blocks(page, "python"):
        exec(compile(block, str(page), "exec"), namespace)  # noqa: S102  (that is the test)


@pytest.mark.parametrize(
    ("command", "status", "shown"),
    [
        pytest.param(*found, id=f"{name(page)}: {found[0]}")
        for page in PAGES
        for found in commands(page)
    ],
)
def test_command(command, status, shown, capsys, monkeypatch):
    program, *arguments = shlex.split(command)
    first = commands(PAGES[0])[0][0]
    if program == "foretrace" and command != first:
        monkeypatch.chdir(ROOT)  # as the README's first command, without torch's import for each
        done, output, said = main(arguments), *capsys.readouterr()
    else:
        done, output, said = in_a_process(program, arguments)
    assert done == status, output + said
    assert not missing(shown, output.splitlines()), output


def in_a_process(program: str, arguments: list[str]) -> tuple[int, str, str]:
    """What it exits with, and what it prints as a result and as an error."""
    bin_folder = Path(sys.executable).parent
    done = subprocess.run(
        [bin_folder / program, *arguments],
        cwd=ROOT,
        env=os.environ | {"PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.returncode, done.stdout, done.stderr


def test_the_readme_is_run():
    assert blocks(PAGES[0], "python")
    assert commands(PAGES[0])


def test_what_contributing_names_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"[`(]((?:foretrace|tests|tools|docs)/[\w/.-]+)", text)
    assert len(named) > 20
    assert not [path for path in named if not (ROOT / path).exists()]


DESIGN = (ROOT / "docs/design.md").read_text()
ROWS = re.findall(r"^\|.*\|$", DESIGN, re.MULTILINE)
PLACES = [
    (path, names.split())
    for row in ROWS
    for path, names in re.findall(r"`(\w+(?:/\w+)*\.py)`((?: `[\w.]+`,?)*)", row)
]


def gone(path: str, names: list[str]) -> Iterator[str]:
    """`lowering/cuts/cut.py` `flatten`: the file, in it the function or class, or its method."""
    text = (ROOT / "foretrace" / path).read_text()
    for name in (part for each in names for part in each.strip("`,").split(".")):
        if not re.search(rf"\b(?:def|class) {name}\b|^{name}\b", text, re.MULTILINE):
            yield f"{path}: {name}"


def test_what_a_table_of_the_design_names_is_there() -> None:
    assert len(PLACES) > 50
    assert not [each for path, names in PLACES for each in gone(path, names)]


def test_the_rooms_that_the_design_names_are_there() -> None:
    rooms = re.findall(rf"`((?:{'|'.join(WINGS)})/\w+)/?`", DESIGN)
    assert len(rooms) > 20
    assert not [room for room in rooms if not (ROOT / "foretrace" / room).is_dir()]


def test_the_lines_of_itself_that_the_design_shows_are_these_lines() -> None:
    shown = re.findall(r"docs/design\.md:(\d+) in [\w.]+(?:, code:|\n\s+)(.*)", DESIGN)
    lines = DESIGN.splitlines()
    assert len(shown) > 2
    assert not [(n, code) for n, code in shown if lines[int(n) - 1].strip() != code.strip()]
