"""The field's own words: identifiers and docstrings use no word that only this project knew.

An engineer of the field searches for `create`, `store`, `separate`; a dialect hides what is there.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import foretrace

PACKAGE = Path(foretrace.__file__).parent

INSTEAD = {
    "told": "is passed, knows, was noted",
    "tell": "say, report, distinguish, name",
    "tells": "says, reports, distinguishes, names",
    "telling": "saying, reporting",
    "spell": "write, emit as",
    "spells": "writes, emits",
    "spelled": "written, emitted as",
    "spelling": "notation, form",
    "anew": "again, afresh",
    "given": "passed, supplied, from the caller",
    "held": "kept, stored, wrapped",
    "alike": "equal, the same",
    "apart": "separate, distinct",
    "made": "created, built, produced, recorded",
    "lent": "borrowed, passed for a while",
}
"""Words that are not used, and what the field says"""

ALLOWED: dict[str, str] = {
    '"given", "held"': "kinds of reasons in the JSON output of `foretrace diff`, which is public",
}
"""Identifiers, and phrases of docstrings, that have such a word, with the reason"""


def words_of(source: str) -> Iterator[tuple[int, str, str]]:
    """Each line, forbidden word, and identifier or docstring line that has it."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for line, text in [*_names(node), *_docs(node)]:
            for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", text):
                if word.lower() in INSTEAD and not any(each in text for each in ALLOWED):
                    yield line, word.lower(), text


def _names(node: ast.AST) -> Iterator[tuple[int, str]]:
    match node:
        case ast.FunctionDef() | ast.ClassDef() | ast.AsyncFunctionDef():
            yield node.lineno, node.name
        case ast.arg():
            yield node.lineno, node.arg
        case ast.Name(ctx=ast.Store()):
            yield node.lineno, node.id
        case ast.Attribute(ctx=ast.Store()):
            yield node.lineno, node.attr
        case ast.alias(asname=str()):
            yield node.lineno, str(node.asname)


def _docs(node: ast.AST) -> Iterator[tuple[int, str]]:
    match node:
        case ast.Expr(value=ast.Constant(value=str() as text)):
            for number, line in enumerate(text.splitlines()):
                yield node.lineno + number, line.strip()


def faults(path: str, source: str) -> list[str]:
    """What a file has to change, each with a line."""
    return [
        f"{path}:{line}: {word!r} in `{text}`; say: {INSTEAD[word]}"
        for line, word, text in words_of(source)
    ]


def test_no_word_of_a_dialect() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    found = [
        fault
        for file in files
        for fault in faults(str(file.relative_to(PACKAGE)), file.read_text())
    ]
    names = [
        f"{file.relative_to(PACKAGE)}: rename the file"
        for file in files
        if INSTEAD.keys() & set(file.stem.split("_"))
    ]
    assert not found + names, "\n".join([*found, *names])


ANAPHORA = frozenset({"Those", "That", "Such", "Them", "These"})
"""First words of docstrings that say what something is by pointing at something else"""


def pointing(path: str, source: str) -> list[str]:
    """The docstrings of a file that begin with such a word, each with what to do."""
    found = []
    for node in ast.walk(ast.parse(source)):
        for line, text in [*_docs(node)][:1]:
            first = text.split()[0].strip(".,;:") if text else ""
            if first in ANAPHORA or text == "The same.":
                found.append(f"{path}:{line}: `{text}`: name the thing and say what it does")
    return found


def test_a_docstring_stands_alone() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    found = [
        fault
        for file in files
        for fault in pointing(str(file.relative_to(PACKAGE)), file.read_text())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("text", ["Those of one run.", "That they differ.", "The same."])
def test_a_docstring_that_points_is_found(text: str) -> None:
    assert pointing("file.py", f'def f():\n    """{text}"""')
    assert not pointing("file.py", 'def f():\n    """Collect the outputs of one run."""')


def test_the_list_of_what_is_allowed_is_short_and_used() -> None:
    assert len(ALLOWED) <= 15
    assert all(ALLOWED.values())
    everything = "\n".join(file.read_text() for file in PACKAGE.rglob("*.py"))
    assert all(each in everything for each in ALLOWED)


@pytest.mark.parametrize(
    "source",
    [
        "def told_twice(): pass",
        "def f(given_name): pass",
        "made = 1",
        "self.held = 1",
        "class HeldBack: pass",
        "import os as lent",
        'def f():\n    """Tells values apart."""',
        'X = 1\n"""What is spelled anew"""',
    ],
)
def test_a_word_is_found(source: str) -> None:
    assert faults("file.py", source)


def test_what_is_no_word_of_it() -> None:
    assert not faults("file.py", "department = maker.telltale\nx.held()")
