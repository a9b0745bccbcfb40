"""`foretrace check --partial`: a program in pieces beside eager, and why it is not one graph."""

import warnings
from collections.abc import Callable
from typing import Any

from torch import nn

from foretrace.errors import counted
from foretrace.frontends.cli.arguments import Options
from foretrace.frontends.cli.load import user_program
from foretrace.frontends.cli.render import Screen
from foretrace.frontends.torch_compat.compile import compile as compiled_form
from foretrace.inspect.check.graph_breaks import PiecesReport, check_pieces
from foretrace.python_state.effects.module_owners import owners_of


def run(options: Options, screen: Screen) -> int:
    """Print for each program what is equal, what runs as Python, and the captured share.

    Returns:
        0: all is equal; 1: a difference was found.
    """
    found: list[dict[str, Any]] = []
    equal = True
    for spec in options.programs:
        with screen.busy(f"loading {spec}") as now, user_program(spec) as user:
            for mode in options.modes if has_modes(user.fn) else (None,):
                now(f"checking {spec}{f' after {mode}()' if mode else ''}")
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", ".*is not captured whole")
                    report = check_pieces(compiled_form, user.fn, user.args, user.kwargs, mode=mode)
                equal &= report.equal
                found.append({"program": spec, **report.to_dict()})
                if not screen.json:
                    _print(spec, report, screen)
    if screen.json:
        screen.data({"equal": equal, "checks": found})
    return 0 if equal else 1


def _print(spec: str, report: PiecesReport, screen: Screen) -> None:
    screen.line(f"{spec}, {report.mode}", "bold")
    share = f"{report.captured} of {counted(report.total, 'leaf op')} run by captures"
    screen.line(share if report.breaks else f"captured whole: {share}")
    for each in report.breaks:
        screen.line()
        for line in str(each).splitlines():
            screen.line(line)
    wrong = [item for item in report.items if not item.equal]
    for item in wrong:
        screen.line(f"differs: {item.what} {item.name}", "red")
        screen.line(f"  {item.reason}")
    names = {(item.what, item.name) for item in report.items}
    verdict = f"{'not ' if wrong else ''}all of {counted(len(names), 'thing')} bitwise equal"
    screen.line(verdict, "bold red" if wrong else "green")
    screen.line()


def has_modes(fn: Callable[..., Any]) -> bool:
    """Whether the program has modules, so that train() and eval() may differ."""
    return any(isinstance(owner, nn.Module) for owner in owners_of(fn).values())
