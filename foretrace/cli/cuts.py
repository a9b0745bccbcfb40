"""Capture and cut as the options say: the part that `show` and `explain` share."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

from foretrace.cli.arguments import AUTO, Options
from foretrace.cli.load import Loaded, loaded
from foretrace.cli.render import Screen
from foretrace.compat.program import Cut, Program, capture
from foretrace.errors import Refusal
from foretrace.ir.op import ModuleCall, Op, target_name
from foretrace.passes.cut import selects
from foretrace.runtime.check import loss_of
from foretrace.trace.owners import owners_of

NEAR_NAMES = 4


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


@contextmanager
def made(options: Options, screen: Screen) -> Iterator[Made]:
    """The cut that the options ask for."""
    with screen.busy(f"loading {options.program}") as now, loaded(options.program) as user:
        if options.eval:
            for owner in owners_of(user.fn).values():
                owner.eval()
        now(f"capturing {options.program}")
        start = perf_counter()
        program = capture(
            user.fn, user.args, user.kwargs,
            target=options.target, dynamic_shapes=True if options.dynamic else None,
        )  # fmt: skip
        captured = perf_counter()
        for selector in (*options.keep, *options.open):
            _check_selector(selector, program)
        now(f"cutting {options.program}")
        loss = loss_of(program.recorded) if options.loss == AUTO else options.loss
        cut = program.cut(options.cut, loss=loss, keep=options.keep, open=options.open)
        cut.graph_module  # noqa: B018 - built when asked for
        done = perf_counter()
    yield Made(user, program, cut, 1e3 * (captured - start), 1e3 * (done - captured))


def _check_selector(selector: str, program: Program) -> None:
    """Refuse a name that means nothing in the program."""
    names: set[str] = set()
    for op in _all_ops(program.recorded.ops):
        if selects(selector, op):
            return
        target = op.target
        names.add(target.class_name if isinstance(target, ModuleCall) else target_name(target))
    near = difflib.get_close_matches(selector, names, NEAR_NAMES) or sorted(names)[:NEAR_NAMES]
    raise Refusal(
        f"no op or module of the program is called {selector}", kind="wrong use",
        do=f"near it are {', '.join(near)}",
    )  # fmt: skip


def _all_ops(ops: Iterable[Op]) -> Iterator[Op]:
    for op in ops:
        yield op
        yield from _all_ops(op.body or ())
