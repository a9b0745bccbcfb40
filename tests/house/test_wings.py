"""Imports go one way, and each wing's README lists its files and what others import from them."""

from functools import cache

import pytest

from tests.house import wings
from tests.house.wings import GROUND, ROOT, WINGS

PACKAGE = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("foretrace/**/*.py"))
MOST = 18
"""Folders and files directly in foretrace/, README and py.typed aside"""
ARROWS = 91
"""From one wing to another, or to the ground: a new one needs a reason; see docs/design.md"""


@cache
def sources() -> tuple[tuple[str, str], ...]:
    return tuple((path, (ROOT / path).read_text()) for path in PACKAGE)


@cache
def surface() -> dict[str, set[str]]:
    return wings.surface(sources())


def test_imports_go_left() -> None:
    found = [each for path, text in sources() for each in wings.imports_go_left(path, text)]
    assert not found, "\n".join(": ".join(each) for each in found)


def test_few_arrows() -> None:
    arrows = {
        (each.wing, each.source)
        for path, text in sources()
        for each in wings.imports(path, text)
        if each.wing in wings.ORDER[:-2] and each.source in wings.ORDER[:-2]
        if each.wing != each.source
    }
    assert len(arrows) <= ARROWS


@pytest.mark.parametrize("wing", WINGS)
def test_readme(wing: str) -> None:
    place = ROOT / "foretrace" / wing
    files = {path.relative_to(place).as_posix() for path in place.glob("*/*.py")}
    used = surface()
    files -= {file for file in files if file.endswith("__init__.py")
              and f"{wing}/{file}".removesuffix("/__init__.py") not in used}  # fmt: skip
    found = list(wings.readme_is_true(wing, (place / "README.md").read_text(), files, used))
    assert not found, "\n".join(": ".join(each) for each in found)
    rooms = [
        line[3:] for line in (place / "README.md").read_text().splitlines() if line[:3] == "## "
    ]
    assert tuple(rooms) == WINGS[wing]


def test_the_first_floor() -> None:
    there = {path.name for path in (ROOT / "foretrace").iterdir()} - {"py.typed", "__pycache__"}
    assert len(there) <= MOST
    assert {path.split(".")[0] for path in there} == {*GROUND, *WINGS, "__init__", "__main__"}


IR = "foretrace/ir/program/op.py"


@pytest.mark.parametrize(("path", "text"), [
    (IR, "from foretrace.lowering.cuts.cut import cut"),
    (IR, "from foretrace import tracer"),
    (IR, "import foretrace"),
    (IR, "from .value import Value"),
    ("foretrace/ir/source/x.py", "from foretrace.ir.program.op import Op"),
    ("foretrace/errors.py", "from foretrace.torch_api import OpOverload"),
    ("foretrace/serialization/schema/x.py", "from foretrace.inspect.diff.diff import diff"),
    ("foretrace/frontends/cli/x.py", "from foretrace import capture"),
    ("foretrace/tools/x.py", ""),
    ("foretrace/ir/tools/x.py", ""),
])  # fmt: skip
def test_an_import_that_goes_right_is_found(path: str, text: str) -> None:
    assert list(wings.imports_go_left(path, text))


@pytest.mark.parametrize(("path", "text"), [
    (IR, "import torch\nfrom foretrace.errors import Frame\nfrom foretrace.ir.source.x import y"),
    (IR, "from foretrace import forks, torch_api"),
    ("foretrace/__init__.py", "from foretrace.frontends.cli import main"),
])  # fmt: skip
def test_an_import_that_goes_left_is_none(path: str, text: str) -> None:
    assert not list(wings.imports_go_left(path, text))


README = "## program\n| `op.py` | ops | `Op` |\n"


@pytest.mark.parametrize(("readme", "files", "used"), [
    ("", {"program/op.py"}, {}),
    (README, set(), {}),
    (README, {"program/op.py"}, {}),
    (README, {"program/op.py"}, {"ir/program/op": {"Op", "Value"}}),
])  # fmt: skip
def test_a_readme_that_is_untrue_is_found(
    readme: str, files: set[str], used: dict[str, set[str]]
) -> None:
    assert list(wings.readme_is_true("ir", readme, files, used))


def test_a_readme_that_is_true() -> None:
    used = {"ir/program/op": {"Op"}}
    assert not list(wings.readme_is_true("ir", README, {"program/op.py"}, used))
