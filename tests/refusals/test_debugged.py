"""A debugger stops in a captured program: it keeps frames, which are no places of the program's."""

import io
import pdb  # noqa: T100 - what it tests
import signal
import sys
from bdb import BdbQuit, Breakpoint
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrace
from tests.support.compare import same_as_eager

X = torch.randn(2, 4)
OPS = ["mul", "t", "addmm", "relu", "mean"]


class Net(nn.Module):
    """Stops between two ops."""

    def __init__(self, *, stops: bool = True) -> None:
        super().__init__()
        self.linear, self.stops = nn.Linear(4, 4), stops

    def forward(self, x: Tensor) -> Tensor:
        h = x * 2
        if self.stops:
            breakpoint()  # noqa: T100 - what it tests
        k = self.linear(h)
        return k.relu().mean()


LAST = Net.forward.__code__.co_firstlineno + 5


class Prompt:
    """Types commands where a program stops, and keeps what is answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch, self.shown = monkeypatch, io.StringIO()

    def types(self, *commands: str) -> None:
        typed = io.StringIO("\n".join([*commands, ""]))

        def hook() -> None:
            pdb.Pdb(stdin=typed, stdout=self.shown, readrc=False).set_trace(sys._getframe(1))

        self.patch.setattr(sys, "breakpointhook", hook)


@pytest.fixture
def prompt(monkeypatch: pytest.MonkeyPatch) -> Iterator[Prompt]:
    """The one who is asked; a debugger is who answers an interrupt from the first `c` on."""
    traces, interrupt = sys.gettrace(), signal.getsignal(signal.SIGINT)
    Breakpoint.clearBreakpoints()  # they are of the process: `foretrace explain --break` sets some
    yield Prompt(monkeypatch)
    sys.settrace(traces)
    Breakpoint.clearBreakpoints()
    signal.signal(signal.SIGINT, interrupt)


@pytest.mark.parametrize(
    "commands",
    [
        ["c"],
        ["n", "n", "p h", "pp k", "p h.shape", "up", "down", "c"],
        ["s", "s", "r", "n", "c"],
        ["display h", "n", "c"],
        ["n", "n", "n", "n", "n", "n", "n", "n", "c"],  # out of the program, into what runs it
        [f"tbreak {LAST}", "c", "p k", "c"],
        ["w", "l", "args", "whatis h", "c"],
    ],
    ids=" ".join,
)
def test_is_captured(prompt: Prompt, commands: list[str]) -> None:
    """As without the debugger."""
    net = Net()
    prompt.types(*commands)
    program = foretrace.capture(net, (X,))
    assert program.cut("aten").nodes[3:-1] == tuple(OPS)
    net.stops = False
    same = foretrace.capture(net, (X,)).cut("joint", loss=0)
    assert program.cut("joint", loss=0).nodes == same.nodes


def test_what_is_shown(prompt: Prompt) -> None:
    """A tensor's type; a number that is asked for is the example's, and guarded as any other."""
    net = Net()
    prompt.types("p h", "p h.sum().item()", "c")
    program = foretrace.capture(net, (X,))
    assert "Abstract(f32[2, 4])" in prompt.shown.getvalue()
    assert str((X * 2).sum().item()) in prompt.shown.getvalue()
    assert torch.equal(program.cut("export")(X), net.linear(X * 2).relu().mean())


def test_what_is_changed_is_recorded(prompt: Prompt) -> None:
    """The prompt is in the program."""
    net = Net()
    prompt.types("!h = h * 3", "c")
    program = foretrace.capture(net, (X,))
    assert torch.equal(program.cut("export")(X), net.linear(X * 2 * 3).relu().mean())


def test_who_leaves_the_debugger_leaves_the_program(prompt: Prompt) -> None:
    """As in eager; a later capture is as ever."""
    net = Net()
    prompt.types("q")
    with pytest.raises(BdbQuit):
        foretrace.capture(net, (X,))
    assert type(net.linear.weight) is nn.Parameter
    net.stops = False
    same_as_eager(net, (X,))


def test_after_a_refusal(prompt: Prompt) -> None:
    """The frames of the program are there to be looked at."""
    seen = io.StringIO()

    def refused(x: Tensor) -> Tensor:
        h = x * 2
        return h + torch.compiler.is_compiling.__name__.missing  # type: ignore[attr-defined]

    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.capture(refused, (X,))
    debugger = pdb.Pdb(stdin=io.StringIO("p h\nup\nq\n"), stdout=seen, readrc=False)
    debugger.reset()
    cause: Any = caught.value.__cause__
    debugger.interaction(None, cause.__traceback__)
    assert "Abstract(of a capture that has ended)" in seen.getvalue()


KEPT: list[Any] = []
NOTES: ContextVar[ValueError | None] = ContextVar("NOTES", default=None)


def keeps_an_error(x: Tensor) -> Tensor:
    h = x * 2
    try:
        raise ValueError(h.shape)  # noqa: TRY301
    except ValueError as error:
        KEPT.append(error)  # it leads to this frame
    return h + 1


def keeps_a_frame(x: Tensor) -> Tensor:
    h = x * 2
    KEPT.append(sys._getframe())
    return h + 1


def keeps_a_generator(x: Tensor) -> Tensor:
    def later() -> Iterator[Tensor]:
        h = x * 2
        yield h
        yield h + 1

    going = later()
    KEPT.append(going)
    return x + next(going)


def keeps_a_closure(x: Tensor) -> Tensor:
    h = x * 2
    KEPT.append(lambda: h)
    return h + 1


@pytest.mark.parametrize(
    "program", [keeps_an_error, keeps_a_frame, keeps_a_generator, keeps_a_closure]
)
@pytest.mark.parametrize("stops", [pytest.param(False, marks=pytest.mark.slow), True])
def test_what_the_program_keeps_is_refused(prompt: Prompt, program: Any, *, stops: bool) -> None:
    """What goes on later, a variable of a closure, and what leads to a frame."""

    def stopping(x: Tensor) -> Tensor:
        if stops:
            breakpoint()  # noqa: T100 - what it tests
        y: Tensor = program(x)
        return y

    prompt.types("n", "c")
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.capture(stopping, (X,)).cut("export")(X)
    assert caught.value.kind == "side effect"
    assert not KEPT


def test_what_a_traceback_keeps() -> None:
    """A variable of a context would keep it: that is refused, and the variables are let go."""

    def program(x: Tensor) -> Tensor:
        h = x * 2
        try:
            raise ValueError(h.shape)  # noqa: TRY301
        except ValueError as error:
            NOTES.set(error)
        return h + 1

    before = NOTES.get(None)
    with pytest.raises(foretrace.Refusal) as caught:
        foretrace.capture(program, (X,))
    assert caught.value.kind == "side effect"
    assert NOTES.get(None) is before
