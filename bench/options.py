"""What the benchmarks of several models are asked on the command line."""

import argparse
from collections.abc import Collection


def parser_of(doc: str | None, models: Collection[str], repeat: str) -> argparse.ArgumentParser:
    """A parser of `--models`, `--repeat` and `--json`; `repeat` says what is done so often."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--models", default=",".join(models), help=f"some of {', '.join(models)}")
    parser.add_argument("--repeat", type=int, default=3, help=repeat)
    parser.add_argument("--json", action="store_true", help="print everything, for programs")
    return parser


def parsed(
    parser: argparse.ArgumentParser, argv: list[str] | None, models: Collection[str]
) -> argparse.Namespace:
    """Read the command line; the names of unknown models are refused."""
    options = parser.parse_args(argv)
    options.models = options.models.split(",")
    if unknown := set(options.models) - set(models):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    if options.repeat < 1:
        parser.error("--repeat is at least 1")
    return options
