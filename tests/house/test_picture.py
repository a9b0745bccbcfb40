"""docs/wings.svg is what the code and the READMEs of the wings say now."""

import re
from collections.abc import Iterator

import pytest

from tests.house.wings import ROOT, WINGS
from tools.wings import gives, svg

TORCHS = frozenset({"GraphModule", "ExportedProgram"})
CLASS = re.compile(r"`(?:\w+\.)?([A-Z]\w+)`")


def classes() -> set[str]:
    texts = (file.read_text() for file in (ROOT / "foretrace").rglob("*.py"))
    return {name for text in texts for name in re.findall(r"^class (\w+)", text, re.MULTILINE)}


def unknown(said: str, known: set[str]) -> Iterator[str]:
    yield from (name for name in CLASS.findall(said) if name not in known | TORCHS)


def test_the_picture_is_drawn_again_after_a_change() -> None:
    drawn = (ROOT / "docs" / "wings.svg").read_text()
    assert drawn == svg(), "python -m tools.wings > docs/wings.svg"


def test_what_a_wing_hands_on_is_there() -> None:
    known = classes()
    missing = {wing: [*unknown(gives(wing), known)] for wing in WINGS}
    assert not any(missing.values()), f"the line 'Gives' of foretrace/WING/README.md: {missing}"


@pytest.mark.parametrize("said", ["`Absent` and `Op`", "`fx.Absent`"])
def test_a_name_that_is_not_there_is_found(said) -> None:
    assert [*unknown(said, {"Op"})] == ["Absent"]
