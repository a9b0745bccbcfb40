"""`foretrace explain`: why a node is in a graph."""

from rich.syntax import Syntax
from rich.text import Text

from foretrace.errors import Refusal
from foretrace.frontends.cli.arguments import Options
from foretrace.frontends.cli.capture_args import of_file, timed_cut
from foretrace.frontends.cli.debugging import FLAG, again, stop_at
from foretrace.frontends.cli.render import THEME, Screen
from foretrace.inspect.explain.explanation import INDENT, Explanation, Row


def run(options: Options, screen: Screen) -> int:
    """Print the node's path in the tree."""
    if options.stop_at is not None:
        return stop_at(options, *options.stop_at)
    if options.stop is not None and screen.json:
        raise Refusal(f"{FLAG} is for people, --json for programs", kind="wrong use", do="take one")
    if options.stop is not None:
        of_file(options.program, asked=True)
    with timed_cut(options, screen) as found:
        explanation = found.cut.explain(options.node)
        if screen.json:
            screen.data({**found.to_dict(), **explanation.to_dict()})
        else:
            _print(explanation, screen)
    return again(options, explanation, screen) if options.stop is not None else 0


def _print(explanation: Explanation, screen: Screen) -> None:
    screen.paragraph(Text(explanation.node, "bold") + Text(f": {explanation.head}"))
    labelled = ""
    for row in explanation.rows():
        labelled = row.label or labelled
        left = Text(" " * INDENT * (row.depth + 1)) + Text(row.label, "cyan")
        screen.indented(left, _right(row, labelled), row.indent)


def _right(row: Row, labelled: str) -> Text | Syntax:
    if row.missing:
        return Text(row.text if row.note else f"MISSING: {row.text}", "bold red")
    if not row.note:
        return Text(row.text, "bold" if row.label in ("written", "rule") else "")
    if labelled == "line":
        return Syntax(row.text, "python", theme=THEME, background_color="default", word_wrap=True)
    return Text(row.text, "dim")
