"""`foretrace diff`: where two cuts differ, and why."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from rich.text import Text

from foretrace.frontends.cli.arguments import Options, SideAsked
from foretrace.frontends.cli.capture_args import cut_of, of_file
from foretrace.frontends.cli.load import UserProgram, user_program
from foretrace.frontends.cli.render import Screen
from foretrace.frontends.program import Program, capture
from foretrace.inspect.diff.diff import Diff, diff
from foretrace.inspect.diff.render import FOLDS, Row
from foretrace.ir.values.nested import map_tree
from foretrace.ir.values.tensor_type import DTYPE_NAMES
from foretrace.python_state.effects.module_owners import owners_of

DTYPES: dict[str, torch.dtype] = {name: dtype for dtype, name in DTYPE_NAMES.items()}
STYLES: dict[str, str] = {
    "reason": "bold", "missing": "bold red", "what": "", "left": "red", "right": "green",
    "note": "dim", "plain": "", "sum": "bold",
}  # fmt: skip
MANY = 10**6


@dataclass(frozen=True, slots=True)
class Captured:
    """A capture and its program."""

    user: UserProgram
    program: Program


def run(options: Options, screen: Screen) -> int:
    """Print the differences, grouped by reason.

    Returns:
        0: there is none; 1: there are some.
    """
    left, right = _sides(options)
    found = _compared(options, left, right, screen)
    shown = found.of(options.node) if options.node else found
    if screen.json:
        programs = [options.program, options.other or options.program]
        screen.data({"programs": programs, **shown.to_dict()})
    else:
        for row in shown.rows(MANY if options.all else FOLDS):
            _print(row, screen)
    return int(bool(shown))


def _sides(options: Options) -> tuple[SideAsked, SideAsked]:
    """Both sides, with defaults filled in."""
    cut = options.cut or ("export" if options.other else None)
    left = options.left or SideAsked(cut or "export")
    right = options.right or SideAsked(cut or "joint")
    if options.left and not options.right and not cut:
        right = SideAsked(options.left.cut if options.left.cut != "export" else "joint")
    return left, right


def _compared(options: Options, left: SideAsked, right: SideAsked, screen: Screen) -> Diff:
    specs = (options.program, options.other or options.program)
    for spec in specs if options.run else ():
        of_file(spec, asked=True)
    with screen.busy(f"loading {specs[0]}") as now:
        first = _captured(specs[0], left, now)
        one = specs[0] == specs[1] and left.captured == right.captured
        second = first if one else _captured(specs[1], right, now)
        now("comparing the cuts")
        pairs = (first, left), (second, right)
        cuts = [cut_of(each.user.fn, each.program, side) for each, side in pairs]
        call = (first.user.args, first.user.kwargs) if options.run else None
        return diff(*cuts, run=call)


def _captured(spec: str, asked: SideAsked, now: Callable[[str], None]) -> Captured:
    """A capture of the program, loaded again with the same random numbers."""
    file = of_file(spec, asked.captured != SideAsked(asked.cut).captured)
    if file is not None:
        return Captured(file, file.fn.program)  # type: ignore[attr-defined]
    now(f"capturing {spec}")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        with user_program(spec) as found:
            for owner in owners_of(found.fn).values():
                if asked.mode is not None and isinstance(owner, torch.nn.Module):
                    owner.train(asked.mode == "train")
            user = found if asked.dtype is None else _cast(found, DTYPES[asked.dtype])
            shapes = True if asked.dynamic else None
            program = capture(
                user.fn, user.args, user.kwargs, target=asked.target, dynamic_shapes=shapes
            )
            return Captured(user, program)


def _cast(user: UserProgram, dtype: torch.dtype) -> UserProgram:
    """The program with its parameters and floating-point inputs in another dtype."""

    def cast(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return leaf.detach().to(dtype).requires_grad_(leaf.requires_grad)
        return leaf

    for owner in owners_of(user.fn).values():
        if isinstance(owner, torch.nn.Module):
            owner.to(dtype)
    args: Any = map_tree(user.args, cast)
    kwargs: Any = map_tree(user.kwargs, cast)
    return UserProgram(user.spec, user.fn, tuple(args), kwargs)


def _print(row: Row, screen: Screen) -> None:
    if not row.depth:
        screen.line(Text(row.text, STYLES[row.style]))
        return
    indent = Text(" " * 2 * row.depth)
    screen.indented(indent + Text(row.label, "cyan"), Text(row.text, STYLES[row.style]), row.width)
