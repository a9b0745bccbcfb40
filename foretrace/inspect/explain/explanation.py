"""Explanations, their links and places, and their printed form."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from foretrace.errors import Printed
from foretrace.ir.program.op import Op

INDENT, LABEL = 2, 9


@dataclass(frozen=True, slots=True)
class Place:
    """A file and line where a breakpoint stops at a step.

    Args:
        what: "line", "recorded", "types", "meta", "body", "opened", "choice", "rule", "autograd".
        file: the user's; relative to the packages' folder for foretrace and torch's Python;
            relative to torch's repository for C++.
        line: None if only the file is known.
        name: the function.
        stop: for Python, the file on this machine; None for C++.
        condition: for Python, an expression that is true if the step is this op's.
    """

    what: str
    file: str
    line: int | None
    name: str = ""
    stop: str | None = None
    condition: str = ""

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{where} {self.name}".rstrip()

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON."""
        return {
            "what": self.what,
            "file": self.file,
            "line": self.line,
            "name": self.name,
            "python": self.stop is not None,
            "condition": self.condition,
        }


@dataclass(frozen=True, slots=True)
class Link:
    """One step from the user's line to a node.

    Args:
        kind: "line", "module", "written", "opened", "leaf", "whole", "rule", "because", ...
        text: the step, one line.
        notes: the rule or choice that decided it, one a line.
        facts: the same as data.
        path: for "because", the path of the forward op that is served.
        missing: the step is not known; a defect of foretrace.
        places: where a breakpoint stops at it.
    """

    kind: str
    text: str
    notes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)
    path: tuple["Link", ...] = ()
    missing: bool = False
    places: tuple[Place, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON."""
        found: dict[str, Any] = {"kind": self.kind, "text": self.text, **self.facts}
        if self.notes:
            found["notes"] = list(self.notes)
        if self.path:
            found["path"] = [link.to_dict() for link in self.path]
        if self.places:
            found["places"] = [place.to_dict() for place in self.places]
        if self.missing:
            found["missing"] = True
        return found

    def all(self) -> Iterator["Link"]:
        """This link and the links of its path."""
        yield self
        for link in self.path:
            yield from link.all()


class Row(NamedTuple):
    """One line to print."""

    depth: int
    label: str
    text: str
    missing: bool
    note: bool = False

    @property
    def indent(self) -> int:
        """The column of its text."""
        return INDENT * (self.depth + 1) + LABEL + INDENT * self.note


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Printed):
    """The path of a node in the tree, from the user's line down to the op itself.

    `links` are the steps in order. A backward op begins with itself and its rule; its link of kind
    "because" has the path of the forward op that it serves.
    """

    node: str
    what: str
    """the node's call in the graph"""
    type: str
    side: str
    """"forward", "backward", "input", "output" or "size" """
    links: list[Link]
    op: Op | None = field(default=None, repr=False, compare=False)
    """the op that the node calls, if any"""

    @property
    def missing(self) -> tuple[str, ...]:
        """The steps that are not known, each a defect of foretrace."""
        return tuple(f.text for link in self.links for f in link.all() if f.missing)

    @property
    def places(self) -> tuple[Place, ...]:
        """The places of breakpoints at the steps, in order, without duplicates."""
        every = (place for link in self.links for each in link.all() for place in each.places)
        return tuple(dict.fromkeys(every))

    @property
    def head(self) -> str:
        """The type and call of the node."""
        return f"{self.type} = {self.what}" if self.type else self.what

    def rows(self) -> Iterator[Row]:
        """The lines to print."""
        yield from _rows(self.links, 0)
        shown = dict.fromkeys(f"{place.what:<8}  {place}" for place in self.places)
        for number, text in enumerate(shown):
            yield Row(0, "break" if number == 0 else "", text, missing=False)

    def __str__(self) -> str:
        return "\n".join([f"{self.node}: {self.head}", *map(line_of, self.rows())])

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON."""
        return {
            "node": self.node,
            "what": self.what,
            "type": self.type,
            "side": self.side,
            "links": [link.to_dict() for link in self.links],
            "missing": list(self.missing),
        }


def _rows(links: list[Link], depth: int) -> Iterator[Row]:
    before = Link("", "")
    for link in links:
        repeats = link.kind == before.kind and not before.notes
        before = link
        yield Row(depth, "" if repeats else link.kind, link.text, link.missing)
        for note in link.notes:
            yield Row(depth, "", note, link.missing, note=True)
        yield from _rows(list(link.path), depth + 1)


def shown_path(file: str) -> str:
    """The path of a file, relative to the working directory if the file is inside it."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def line_of(row: Row) -> str:
    """A row as plain text."""
    mark = "MISSING: " if row.missing and not row.note else ""
    head = f"{' ' * INDENT * (row.depth + 1)}{row.label}"
    return f"{head:<{row.indent}}{mark}{row.text}"
