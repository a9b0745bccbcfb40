"""docs/decisions/README.md has each note once, with its number and what it claims."""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "decisions"
TEMPLATE = "000-template.md"
ROW = re.compile(r"^- \[(\d{3})\]\(([\w.-]+)\): (\S.*)$", re.MULTILINE)


def faults(index: str, notes: Iterable[str]) -> list[str]:
    """What a reader of the index would miss; each fault says what to do."""
    rows, notes = ROW.findall(index), set(notes) - {TEMPLATE}
    lines = Counter(note for _, note, _ in rows)
    found = [f"{note}: add a line to docs/decisions/README.md" for note in notes - {*lines}]
    found += [f"{note}: remove its line, there is no such note" for note in {*lines} - notes]
    found += [f"{note}: remove its second line" for note, count in lines.items() if count > 1]
    wrong = [(number, note) for number, note, _ in rows if not note.startswith(number)]
    return sorted(found + [f"{note}: its line has the number {number}" for number, note in wrong])


def test_every_note_is_in_the_index() -> None:
    notes = [file.name for file in FOLDER.glob("[0-9]*.md")]
    assert len(notes) > 50
    assert not faults((FOLDER / "README.md").read_text(), notes)


def test_what_the_index_may_not_be() -> None:
    notes = [TEMPLATE, "001-a.md", "002-b.md"]
    right = "- [001](001-a.md): one\n- [002](002-b.md): two\n"
    assert not faults(right, notes)
    assert "add a line" in faults("- [001](001-a.md): one\n", notes)[0]
    assert "add a line" in faults(right.replace(": two", ":"), notes)[0]  # without a claim
    assert "its second line" in faults(right + "- [001](001-a.md): one\n", notes)[0]
    assert "no such note" in faults(right + "- [003](003-c.md): three\n", notes)[0]
    assert "has the number 003" in faults(right.replace("[002]", "[003]"), notes)[0]
