"""A piece of the world that a program may read."""

from dataclasses import dataclass

from tests.fuzz.grammar import each


@dataclass(frozen=True)
class Thing:
    """A piece of the world."""

    name: str
    setup: str
    reads: tuple[str, ...]
    changes: tuple[str, ...]
    unseen: bool = False
    """whether nothing but Python sees it (docs/limits.md): `foretrace.compile` runs it so"""


def thing(name: str, setup: str, reads: str, changes: str, *, unseen: bool = False) -> Thing:
    """A thing of texts with `;` between the expressions, and between the statements."""
    return Thing(name, setup.strip("\n"), tuple(each(reads)), tuple(each(changes)), unseen)
