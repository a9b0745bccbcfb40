"""Output: colour and tables on a terminal, plain text elsewhere; JSON for programs."""

import json as json_module
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TextIO, TypeAlias

from rich import box
from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from foretrace.errors import Refusal

Update: TypeAlias = Callable[[str], None]
THEME = "ansi_dark"
CLOSED_PIPE = 141
FOLD = 8


class Escaping:
    """A stream that writes characters outside of its encoding as Python's escapes."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write to the stream."""
        encoding = self._file.encoding
        if encoding:  # a stream in memory takes everything
            text = text.encode(encoding, "backslashreplace").decode(encoding)
        return self._file.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class Paper(Console):
    """A console without markup and without guessed colours."""

    def __init__(self, file: TextIO) -> None:
        escaping: Any = Escaping(file)
        super().__init__(file=escaping, highlight=False, markup=False, emoji=False)

    def on_broken_pipe(self) -> None:
        """Exit silently, as other tools do."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())
        raise SystemExit(CLOSED_PIPE)


class Screen:
    """The output of a command: answers to stdout, all else to stderr.

    Both are the streams at the start of the command: the user's program prints elsewhere.
    """

    def __init__(self, *, json: bool) -> None:
        self.json = json
        self.out, self.err = Paper(sys.stdout), Paper(sys.stderr)

    @property
    def terminal(self) -> bool:
        """Whether stdout is a terminal."""
        return self.out.is_terminal

    def data(self, answer: Any) -> None:
        """Print an answer as JSON."""
        self._write(json_module.dumps(answer, indent=2))

    def line(self, text: str | Text = "", style: str = "") -> None:
        """Print a line; only the terminal wraps it."""
        if self.terminal:
            self.out.print(text, style=style, soft_wrap=True)
        else:
            self._write(str(text))

    def paragraph(self, text: Text) -> None:
        """Print a line with a hanging indent."""
        self.line(self._folded(text) if self.terminal else text)

    def _write(self, text: str) -> None:
        """Write without rich, which takes a second for the text of a large graph."""
        try:
            self.out.file.write(f"{text}\n")
            self.out.file.flush()
        except BrokenPipeError:
            self.out.on_broken_pipe()

    def code(self, text: str) -> None:
        """Print Python; on a terminal in colour, with a hanging indent."""
        if not self.terminal:
            self.line(text)
            return
        syntax = Syntax("", "python", theme=THEME, background_color="default")
        for line in syntax.highlight(text.rstrip()).split():
            self.paragraph(line)

    def _folded(self, line: Text) -> Text:
        width = self.out.width
        indent = len(line.plain) - len(line.plain.lstrip())
        inside = width - indent - FOLD
        if line.cell_len <= width or inside < FOLD:
            return line
        first, *rest = line[indent:].wrap(self.out, inside)
        for part in rest:
            first.append("\n" + " " * (indent + FOLD)).append_text(part)
        return Text(" " * indent) + first

    def table(self, head: Sequence[str], rows: Sequence[Sequence[Text]], left: int) -> None:
        """Print a table; the first `left` columns are text, the others numbers."""
        if not self.terminal:
            plain = [list(head), *([cell.plain for cell in row] for row in rows)]
            widths = [max(map(len, column)) for column in zip(*plain, strict=True)]
            for cells in plain:
                self._write("  ".join(_cells(cells, widths, left)).rstrip())
            return
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
        for index, title in enumerate(head):
            table.add_column(title, justify="left" if index < left else "right")
        for row in rows:
            table.add_row(*row)
        self.out.print(table)

    def indented(self, left: Text, right: Text | Syntax, width: int) -> None:
        """Print text beside a label; it wraps in its own column."""
        if not self.terminal:
            right = right if isinstance(right, Text) else Text(right.code)
            self._write(f"{left.plain:<{width}}{right.plain}".rstrip())
            return
        grid = Table.grid()
        grid.add_column(width=width, no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(left, right)
        self.out.print(grid)

    def refusal(self, refusal: Refusal) -> None:
        """Print a refusal."""
        if self.json:
            self.data({"refusal": refusal.to_dict()})
            return
        what, *rest = str(refusal).splitlines()
        self.err.print(what, style="bold red", soft_wrap=True)
        for row in rest:
            self.err.print(Text(row[:8], "cyan") + Text(row[8:]), soft_wrap=True)

    @contextmanager
    def busy(self, doing: str) -> Iterator[Update]:
        """Show a status on a terminal; yields the function that changes it."""
        if self.json or not self.err.is_terminal:
            yield lambda now: None
            return
        with self.err.status(Text(doing)) as status:
            yield lambda now: status.update(Text(now))

    @contextmanager
    def quiet_warnings(self) -> Iterator[None]:
        """Print warnings after the answer, each once."""
        with warnings.catch_warnings(record=True) as caught:
            try:
                yield
            finally:
                once = {f"{w.filename}:{w.lineno}": w for w in caught}
                for place, warning in once.items():
                    self._warning(place, warning)

    def _warning(self, place: str, warning: warnings.WarningMessage) -> None:
        text = str(warning.message).partition("\n")[0]
        what = f"{warning.category.__name__}: {text}\n  at    {place}"
        self.err.print(what, style="yellow", soft_wrap=True)


def _cells(row: Sequence[str], widths: Sequence[int], left: int) -> Iterator[str]:
    for index, (cell, width) in enumerate(zip(row, widths, strict=True)):
        yield cell.ljust(width) if index < left else cell.rjust(width)
