"""The layout of foretrace/: wings over the ground, rooms in a wing, what each wing's README lists.

A check takes one parsed file, or the whole package, and yields (place, complaint).
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final

ROOT: Final = Path(__file__).parents[2]
GROUND: Final = ("forks", "errors", "arrays", "torch_api")
WINGS: Final = MappingProxyType({
    "ir": ("source", "symbols", "values", "pydata", "program"),
    "operators": ("schemas", "indexing", "abstract_tensors", "inference", "targets"),
    "tracer": (
        "functionalization", "concrete", "subclasses", "higher_order", "forward_ad", "recorder",
        "data_dependence",
    ),
    "python_state": ("code", "snapshot", "access", "reads", "effects"),
    "autograd": ("derivatives", "eager_history", "higher_order", "backward"),
    "session": ("patches", "run", "both_branches"),
    "lowering": (
        "cuts", "subclasses", "reinplace", "emit", "partition", "pipelines",
    ),
    "runtime": ("guards", "calls", "adapters", "backends", "graph_breaks"),
    "inspect": ("check", "dispatcher", "explain", "diff"),
    "serialization": ("schema", "state", "archive"),
    "frontends": ("program", "torch_compat", "cli"),
})  # fmt: skip
"""A file imports from wings above its own, and in its own from rooms to the left"""
SIBLINGS: Final = frozenset({"inspect", "serialization"})
"""Wings that do not import from each other"""
ORDER: Final = (*GROUND, *WINGS, "__init__", "__main__")
ROW: Final = re.compile(r"^\| `(\w+\.py)` \|.*\|(.*)\|$")

Complaints = Iterator[tuple[str, str]]


@dataclass(frozen=True)
class Import:
    """One imported name: where it is imported, and what from."""

    path: PurePosixPath
    line: int
    module: tuple[str, ...]
    name: str

    @property
    def place(self) -> str:
        """For a complaint."""
        return f"{self.path}:{self.line}"

    @property
    def wing(self) -> str:
        """The wing, or the part of the ground, that imports."""
        return self.path.with_suffix("").parts[1]

    @property
    def room(self) -> str:
        """The room that imports; empty for a file that lies in its wing."""
        return self.path.parts[2] if len(self.path.parts) > 3 else ""

    @property
    def source(self) -> str:
        """The wing, or the part of the ground, that is imported from."""
        return next(part for part in (*self.module[1:], self.name, "__init__") if part)


def imports(path: str, text: str) -> Iterator[Import]:
    """What a file imports of foretrace, name by name; a relative import has an empty module."""
    for node in ast.walk(ast.parse(text, path)):
        if isinstance(node, ast.Import):
            found = [(each.name, "") for each in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [("." * node.level + (node.module or ""), each.name) for each in node.names]
        else:
            continue
        for module, name in found:
            if module.split(".")[0] in ("", "foretrace"):
                yield Import(PurePosixPath(path), node.lineno, tuple(module.split(".")), name)


def imports_go_left(path: str, text: str) -> Complaints:
    """From wings to the left; in a wing from rooms to the left; by full names."""
    place = PurePosixPath(path).with_suffix("").parts
    if place[1] not in ORDER:
        yield path, f"{place[1]} is no wing: see WINGS in tests/house/wings.py"
        return
    if place[1] in WINGS and len(place) > 3 and place[2] not in WINGS[place[1]]:
        yield path, f"{place[2]} is no room of {place[1]}: see WINGS in tests/house/wings.py"
        return
    for each in imports(path, text):
        if not each.module[0]:
            yield each.place, "a relative import: write the name in full"
        elif each.source != each.wing:
            yield from _between_wings(each)
        elif each.wing in WINGS:
            yield from _between_rooms(each)


def _between_wings(found: Import) -> Complaints:
    source = found.source if found.source in ORDER else "__init__"
    if ORDER.index(source) > ORDER.index(found.wing):
        yield found.place, f"{found.wing} may not import from {source}, which builds on it"
    elif {source, found.wing} == SIBLINGS:
        yield found.place, f"{found.wing} and {source} do not know each other"


def _between_rooms(found: Import) -> Complaints:
    rooms = WINGS[found.wing]
    room = next((part for part in found.module[2:3] if part in rooms), "")
    if room and found.room and rooms.index(room) > rooms.index(found.room):
        yield found.place, f"{found.room} may not import from {room}, which builds on it"


def surface(sources: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    """The names that other wings import from each file, by its path without `foretrace/`."""
    found = defaultdict[str, set[str]](set)
    for path, text in sources:
        for each in imports(path, text):
            if each.wing in WINGS and each.source in WINGS and each.source != each.wing:
                found["/".join(each.module[1:])].add(each.name)
    return found


def listed(readme: str) -> dict[str, set[str]]:
    """The names that a wing's README lists, by room and file."""
    found, room = dict[str, set[str]](), ""
    for line in readme.splitlines():
        if line.startswith("## "):
            room = line[3:].strip()
        elif row := ROW.match(line):
            found[f"{room}/{row[1]}"] = set(re.findall(r"`(\w+)`", row[2]))
    return found


def readme_is_true(
    wing: str, readme: str, files: set[str], used: dict[str, set[str]]
) -> Complaints:
    """Each file has a row, and each row the names that other wings import, no more and no less.

    Args:
        wing: its name.
        readme: its README.
        files: the files of the wing, as `room/file.py`.
        used: what `surface` has found.
    """
    rows = listed(readme)
    for file in sorted(files ^ {*rows}):
        yield f"{wing}/README.md", f"{file}: {'no row' if file in files else 'no such file'}"
    for file in sorted(files & {*rows}):
        module = f"{wing}/{file[:-3]}".removesuffix("/__init__")
        names = used.get(module, set())
        for name in sorted(names - rows[file]):
            yield f"{wing}/README.md", f"{file}: another wing imports {name}, which is not listed"
        for name in sorted(rows[file] - names):
            yield f"{wing}/README.md", f"{file}: no other wing imports {name}"
