"""Print docs/torch-quirks.md from the table: `python -m tools.quirks > docs/torch-quirks.md`."""

import sys
from collections.abc import Iterator

from foretrace.operators.schemas.quirks import QUIRKS, Quirk

HEAD = """# What torch's operators do otherwise

What an operator does otherwise than its schema, its meta kernel or its name says, as far as
foretrace has to know it. `python -m tools.quirks` prints this page from
`foretrace/operators/schemas/quirks.py`; a test sees that it is up to date. How far a cut is exact
is on [limits.md](limits.md)."""


def page() -> str:
    """The page as text."""
    parts = [HEAD]
    for heading, quirks in QUIRKS:
        parts.append(f"## {heading}")
        parts += ["\n".join(_told(quirk)) for quirk in quirks]
    return "\n\n".join(parts) + "\n"


def _told(quirk: Quirk) -> Iterator[str]:
    yield f"**It {quirk.differs}.** Seen on torch {quirk.since}."
    yield f"Source: {quirk.source}. Asked by `foretrace/{quirk.asked}`."
    yield ""
    for name, value in sorted(quirk.operators.items()):
        yield f"- `{name}`" + (f": {_words(value)}" if value is not None else "")


def _words(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else f"{value}"


if __name__ == "__main__":
    sys.stdout.write(page())
