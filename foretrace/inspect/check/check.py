"""`check`: runs eager and each cut from one state, and compares them bit by bit."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol

from foretrace.errors import Attempt
from foretrace.inspect.check.bits import Sight, difference
from foretrace.inspect.check.run_stages import Seen, Stage
from foretrace.inspect.check.user_errors import first_line
from foretrace.ir.program.recording import Recording
from foretrace.ir.values.value import Value
from foretrace.python_state.effects.module_owners import owners_of
from foretrace.python_state.effects.module_state import borrowed
from foretrace.runtime.calls.run_cut import Called

TRAINABLE = ("export", "compiled", "eager")
"""The ways to run a program whose outputs autograd follows."""


class Captured(Protocol):
    """The part of a Program that a check needs."""

    recorded: Recording

    def cut(self, kind: str, *, loss: int | None = None) -> Callable[..., Any]:
        """A callable graph of the program."""

    def pair(self, *, loss: int | None = None) -> tuple[Called, Called]:
        """The halves of its joint cut."""

    def compile(self) -> Callable[..., Any]:
        """A callable that replaces the program."""


@dataclass(frozen=True, slots=True)
class Item:
    """One comparison."""

    cut: str
    what: str
    """"output", "gradient", "random state", or the kind of an input: "buffer", ..."""
    name: str
    equal: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a check of one program in one mode."""

    mode: str
    loss: int | None
    items: tuple[Item, ...]
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether everything is bitwise equal."""
        return all(item.equal for item in self.items)

    @property
    def differences(self) -> tuple[Item, ...]:
        """The comparisons that are not equal."""
        return tuple(item for item in self.items if not item.equal)

    def count(self, cut: str, what: str) -> tuple[int, int]:
        """(how many are equal, how many were compared)."""
        found = [item.equal for item in self.items if (item.cut, item.what) == (cut, what)]
        return sum(found), len(found)

    def to_dict(self) -> dict[str, Any]:
        """A dict for JSON."""
        return {
            "mode": self.mode,
            "loss": self.loss,
            "equal": self.equal,
            "items": [asdict(item) for item in self.items],
            "notes": list(self.notes),
        }


def check(
    capture: Callable[..., Captured],
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    *,
    mode: str | None = None,
    seed: int = 0,
) -> Report:
    """Capture a program; run it, its cuts, pair and compiled callable from one state; compare.

    The program's modules, inputs, Python objects and random state are restored. The notes name what
    could not be restored.

    Args:
        capture: returns a program of `fn`, `args` and `kwargs`.
        fn: a function or nn.Module.
        args: its positional arguments.
        kwargs: its keyword arguments.
        mode: "train" or "eval", set on every module of the program; None: as they are.
        seed: the seed of every run.

    Raises:
        Refusal: the program has no exact graph, or fails in eager too.
    """
    with in_mode(fn, mode):
        program = capture(fn, tuple(args), kwargs or {})
        loss = loss_of(program.recorded)
        stage = Stage(fn, args, kwargs or {}, program.recorded, loss, seed)
        eager = stage.eager()
        compare = Comparison(program.recorded, stage.before(), eager)
        items = list(_compared(program, stage, compare))
        if not all(item.equal for item in items):
            items = _judged(items, compare("eager", stage.eager()))
    return Report(mode or "as is", loss, tuple(items), tuple(_notes(program.recorded, stage)))


@contextmanager
def in_mode(fn: Callable[..., Any], mode: str | None) -> Iterator[None]:
    """All modules of a program in "train" or "eval"; what they hold is put back afterwards."""
    owners = owners_of(fn)
    with borrowed(owners):
        for module in owners.values():
            if mode is not None:
                module.train(mode == "train")
        yield


def _notes(recorded: Recording, stage: Stage) -> Iterator[str]:
    if not followed(recorded):
        yield "no output requires grad, so there is no joint cut and no pair"
    yield from (f"not put back: {each}" for each in stage.left)


def loss_of(recorded: Recording) -> int | None:
    """0 if output 0 is a scalar that requires grad; else None, and tangents are inputs."""
    first = recorded.returned[0].value if recorded.returned else None
    if not isinstance(first, Value) or not recorded.differentiable(first):
        return None
    return None if first.type.shape else 0


def followed(recorded: Recording) -> bool:
    """Whether a backward can begin at any output."""
    return any(recorded.differentiable(output.value) for output in recorded.returned)


def _compared(program: Captured, stage: Stage, compare: "Comparison") -> Iterator[Item]:
    for name, run in _runs(program, stage):
        seen = None
        with Attempt(Exception) as attempt:
            seen = run()
        if seen is not None:
            yield from compare(name, seen)
        elif attempt.error is not None:
            reason = f"raised {type(attempt.error).__name__}: {first_line(attempt.error)}"
            yield _item(name, "run", "the whole cut", reason)


def _runs(program: Captured, stage: Stage) -> Iterator[tuple[str, Callable[[], Seen]]]:
    """Each way to run the program, by name; the cut exists before it runs."""
    yield "export", partial(stage.trainable, program.cut("export"))
    yield "aten", partial(stage.forward, program.cut("aten"))
    if followed(program.recorded):
        yield "joint", partial(stage.joint, program.cut("joint", loss=stage.loss))
        yield "pair", partial(stage.pair, *program.pair(loss=stage.loss))
    yield "compiled", partial(stage.trainable, program.compile())


class Comparison:
    """Compares runs with eager's."""

    def __init__(self, recorded: Recording, before: list[Sight], eager: Seen) -> None:
        self.recorded, self.before, self.eager = recorded, before, eager

    def __call__(self, cut: str, seen: Seen) -> Iterator[Item]:
        """All comparisons of one run of a cut."""
        yield from self._outputs(cut, seen)
        yield from self._state(cut, seen)
        if cut != "aten":
            yield from self._gradients(cut, seen)
        for eager, ours in zip(self.eager.random, seen.random, strict=True):
            yield _item(cut, "random state", "after the run", difference(eager, ours))

    def _outputs(self, cut: str, seen: Seen) -> Iterator[Item]:
        if seen.structure != self.eager.structure:
            yield _item(cut, "output", "nesting", "it is nested in another way than eager's")
            return
        ignore = () if cut in TRAINABLE else ("requires_grad",)
        for (name, eager), (_, ours) in zip(self.eager.outputs, seen.outputs, strict=True):
            yield _item(cut, "output", name or "0", difference(eager, ours, ignore))

    def _state(self, cut: str, seen: Seen) -> Iterator[Item]:
        """The inputs that eager, the cut, or the cut's signature writes to."""
        ignore = ("stride", "requires_grad")
        written = {mutation.index for mutation in self.recorded.mutations}
        for index, (item, before) in enumerate(zip(self.recorded.inputs, self.before, strict=True)):
            eager, ours = self.eager.state[index], seen.state[index]
            if index in written or any(difference(before, now, ignore) for now in (eager, ours)):
                yield _item(cut, item.role.kind, item.role.name, difference(eager, ours, ignore))

    def _gradients(self, cut: str, seen: Seen) -> Iterator[Item]:
        layout = ("stride",) if cut in TRAINABLE else ()  # of autograd's own choosing there
        ignore = ("requires_grad", *layout)
        for name, eager in self.eager.gradients.items():
            reason = "the cut has no gradient of that name"
            if name in seen.gradients:
                reason = difference(eager, seen.gradients[name], ignore)
            yield _item(cut, "gradient", name, reason)


def _item(cut: str, what: str, name: str, reason: str) -> Item:
    return Item(cut, what, name, not reason, reason)


def _judged(items: list[Item], again: Iterator[Item]) -> list[Item]:
    """The items, with a note where two runs of eager differ."""
    unstable = {(item.what, item.name) for item in again if not item.equal}
    note = "; a second run of eager differs from the first here, too"
    return [
        replace(item, reason=item.reason + note)
        if not item.equal and (item.what, item.name) in unstable
        else item
        for item in items
    ]
