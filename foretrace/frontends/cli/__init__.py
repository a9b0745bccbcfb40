"""The command line: `foretrace show`, `ops`, `explain`, `diff`, `check`, `dispatch` and others."""

import sys
from collections.abc import Sequence
from importlib import import_module

from foretrace.errors import Refusal
from foretrace.frontends.cli.arguments import parser
from foretrace.frontends.cli.render import Screen

DONE, DIFFERENT, REFUSED, INTERRUPTED = 0, 1, 2, 130

COMMANDS: dict[str, str] = {
    "show": "foretrace.frontends.cli.show",
    "ops": "foretrace.frontends.cli.show",
    "explain": "foretrace.frontends.cli.explain",
    "check": "foretrace.frontends.cli.check",
    "diff": "foretrace.frontends.cli.diff",
    "dispatch": "foretrace.frontends.cli.dispatch",
    "targets": "foretrace.frontends.cli.targets",
    "doctor": "foretrace.frontends.cli.doctor",
}
"""The module with `run(options, screen)` of each command: help needs no torch."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0: done; 1: a difference was found; 2: refused, or wrong use; 130: interrupted.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    screen = Screen(json="--json" in words)
    try:
        options = parser().parse_args(words)
        options.words = words
        command = import_module(COMMANDS[options.command])
        with screen.quiet_warnings():
            done: int = command.run(options, screen)
        return done
    except Refusal as refusal:
        screen.refusal(refusal)
        return REFUSED
    except SystemExit as exit_:  # --help
        return exit_.code if isinstance(exit_.code, int) else DONE
    except KeyboardInterrupt:
        return INTERRUPTED
