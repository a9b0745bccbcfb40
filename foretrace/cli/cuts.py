"""Capture and cut as the options say: the part that `show` and `explain` share."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter

from foretrace.cli.arguments import AUTO, Options
from foretrace.cli.load import Loaded, loaded
from foretrace.cli.render import Screen
from foretrace.compare.check import loss_of
from foretrace.program import Cut, Program, capture
from foretrace.python_state.module_state import owners_of


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
        now(f"cutting {options.program}")
        loss = loss_of(program.recorded) if options.loss == AUTO else options.loss
        chosen = {"loss": loss, "keep": options.keep, "open": options.open}
        cut = program.cut(options.cut, policy=options.policy, **chosen)
        cut.graph_module  # noqa: B018 - built when asked for
        done = perf_counter()
    yield Made(user, program, cut, 1e3 * (captured - start), 1e3 * (done - captured))
