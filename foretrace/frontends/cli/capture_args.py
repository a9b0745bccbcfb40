"""Capture and cut as the options say: the part that `show` and `explain` share."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from foretrace.errors import Refusal
from foretrace.frontends.cli.arguments import AUTO, Options
from foretrace.frontends.cli.load import Loaded, loaded
from foretrace.frontends.cli.render import Screen
from foretrace.frontends.program import Cut, Program, capture
from foretrace.frontends.program.load import Loaded as Artifact, load
from foretrace.inspect.check.check import loss_of
from foretrace.python_state.effects.module_owners import owners_of


@dataclass(frozen=True, slots=True)
class Made:
    """A cut, and the milliseconds it took."""

    loaded: Loaded
    program: Program
    cut: Cut
    capture_ms: float
    cut_ms: float

    def to_dict(self) -> dict[str, object]:
        """What the cut is of, for programs."""
        return {
            "program": self.loaded.spec,
            "cut": self.cut.graph.kind,
            "target": self.program.target.name,
            "loss": self.cut.loss,
        }


SUFFIX = ".ft"
ONE_CAPTURE = "name the program itself: a file has one capture, and no example inputs"


def of_file(spec: str, asked: bool) -> Loaded | None:
    """The program of a file that `Program.save` has written; None for Python.

    `asked`: whether something is wanted that only a capture, or a call, can give.

    Raises:
        Refusal: it is; or the file cannot be read.
    """
    if not spec.endswith(SUFFIX):
        return None
    if asked:
        raise Refusal(f"{spec} is captured already", kind="wrong use", do=ONE_CAPTURE)
    return Loaded(spec, load(spec), (), {})


def cut_of(
    of: Any, program: Program, kind: str, *, loss: Any, policy: str, keep: Sequence[str] = (),
    open: Sequence[str] = (),
) -> Cut:  # fmt: skip
    """A cut of a program; that of its file, where that has it as it is asked for."""
    stored = of.cut(kind) if isinstance(of, Artifact) and kind in of.cuts else None
    if stored is not None and loss in {AUTO, stored.loss} and not (keep or open):
        return stored
    chosen = loss_of(program.recorded) if loss == AUTO else loss
    return program.cut(kind, policy=policy, loss=chosen, keep=keep, open=open)


@contextmanager
def made(options: Options, screen: Screen) -> Iterator[Made]:
    """The cut that the options ask for."""
    file = of_file(options.program, bool(options.target or options.dynamic or options.eval))
    if file is not None:
        yield _of_file(file, options)
        return
    with screen.busy(f"loading {options.program}") as now, loaded(options.program) as user:
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
        cut = _asked(user.fn, program, options)
        done = perf_counter()
    yield Made(user, program, cut, 1e3 * (captured - start), 1e3 * (done - captured))


def _asked(of: Any, program: Program, options: Options) -> Cut:
    cut = cut_of(
        of,
        program,
        options.cut,
        loss=options.loss,
        policy=options.policy,
        keep=options.keep,
        open=options.open,
    )
    cut.graph_module  # noqa: B018 - built when asked for
    return cut


def _of_file(file: Loaded, options: Options) -> Made:
    start = perf_counter()
    program: Program = file.fn.program  # type: ignore[attr-defined]
    cut = _asked(file.fn, program, options)
    return Made(file, program, cut, 0.0, 1e3 * (perf_counter() - start))
