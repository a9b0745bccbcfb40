"""Captures and cuts by the options of a command."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from foretrace.errors import Refusal
from foretrace.frontends.cli.arguments import AUTO, Options, SideAsked
from foretrace.frontends.cli.load import UserProgram, user_program
from foretrace.frontends.cli.render import Screen
from foretrace.frontends.program import Cut, Program, capture
from foretrace.frontends.program.load import Loaded, load
from foretrace.inspect.check.check import loss_of
from foretrace.python_state.effects.module_owners import owners_of


@dataclass(frozen=True, slots=True)
class TimedCut:
    """A cut with the milliseconds that it took."""

    user: UserProgram
    program: Program
    cut: Cut
    capture_ms: float
    cut_ms: float

    def to_dict(self) -> dict[str, object]:
        """The program and the options of the cut, as JSON."""
        return {
            "program": self.user.spec,
            "cut": self.cut.graph.kind,
            "target": self.program.target.name,
            "loss": self.cut.loss,
        }


SUFFIX = ".ft"
ONE_CAPTURE = "name the program itself: a file has one capture, and no example inputs"


def of_file(spec: str, asked: bool) -> UserProgram | None:
    """The program of a file that `Program.save` has written; None for Python.

    `asked`: whether an option needs a capture or a call, which a file cannot give.

    Raises:
        Refusal: one does, or the file cannot be read.
    """
    if not spec.endswith(SUFFIX):
        return None
    if asked:
        raise Refusal(f"{spec} is captured already", kind="wrong use", do=ONE_CAPTURE)
    return UserProgram(spec, load(spec), (), {})


def cut_of(fn: Any, program: Program, asked: Options | SideAsked) -> Cut:
    """A cut of a program; of a file, the stored one if it has the same options."""
    kind, loss, keep, open = asked.cut, asked.loss, asked.keep, asked.open
    stored = fn.cut(kind) if isinstance(fn, Loaded) and kind in fn.cuts else None
    level: Any = asked.level
    if stored is not None and loss in {AUTO, stored.loss} and not (keep or open or level):
        return stored
    chosen: Any = loss_of(program.recorded) if loss == AUTO else loss
    return program.cut(kind, policy=asked.policy, loss=chosen, keep=keep, open=open, level=level)


@contextmanager
def timed_cut(options: Options, screen: Screen) -> Iterator[TimedCut]:
    """The cut of the options."""
    file = of_file(options.program, bool(options.target or options.dynamic or options.eval))
    if file is not None:
        yield _of_file(file, options)
        return
    with screen.busy(f"loading {options.program}") as now, user_program(options.program) as user:
        if options.eval:
            for owner in owners_of(user.fn).values():
                owner.eval()
        now(f"capturing {options.program}")
        start = perf_counter()
        program = capture(
            user.fn,
            user.args,
            user.kwargs,
            target=options.target,
            dynamic_shapes=True if options.dynamic else None,
        )
        captured = perf_counter()
        now(f"cutting {options.program}")
        cut = _built(user.fn, program, options)
        done = perf_counter()
    yield TimedCut(user, program, cut, 1e3 * (captured - start), 1e3 * (done - captured))


def _built(fn: Any, program: Program, options: Options) -> Cut:
    cut = cut_of(fn, program, options)
    cut.graph_module  # noqa: B018 - built on first access
    return cut


def _of_file(file: UserProgram, options: Options) -> TimedCut:
    start = perf_counter()
    program: Program = file.fn.program  # type: ignore[attr-defined]
    cut = _built(file.fn, program, options)
    return TimedCut(file, program, cut, 0.0, 1e3 * (perf_counter() - start))
