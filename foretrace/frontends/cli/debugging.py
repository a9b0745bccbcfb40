"""`foretrace explain --break`: the program is captured again under pdb, which stops at a step."""

import os
import pdb  # noqa: T100 - that is what was asked for
import subprocess
import sys
from bdb import Bdb, BdbQuit
from types import FrameType
from typing import Final

from foretrace.errors import Refusal
from foretrace.frontends.cli.arguments import Options
from foretrace.frontends.cli.capture_args import timed_cut
from foretrace.frontends.cli.render import Screen
from foretrace.inspect.explain.explanation import Explanation, Place
from foretrace.inspect.explain.stop_condition import Stop, own_stop, stop_in
from foretrace.ir.program.recording import Recording

FLAG: Final = "--break"
REHEARSE: Final = "0"
"""In place of the number of a stop: find it"""
OWN: Final = "that of {}"
SHARED: Final = "calls with operands of equal types share what it finds, also {}"


def again(options: Options, explanation: Explanation, screen: Screen) -> int:
    """Capture again in fresh processes, without caches of this one.

    The first runs to the end and prints which of the stops at the place is the node's own.
    """
    place = _place(options.stop, explanation)
    words = list(options.words)
    at = words.index(FLAG) if FLAG in words else words.index(f"{FLAG}={options.stop}")
    del words[at : at + (2 if words[at + 1 : at + 2] == [options.stop] else 1)]
    stop = ["--stop-at", str(place.stop), str(place.line), place.condition]
    program = [sys.executable, "-m", "foretrace", *words, *stop]
    same = os.environ | {"PYTHONHASHSEED": os.environ.get("PYTHONHASHSEED", "0")}
    with screen.busy(f"finding the stop of {options.node} at {place}"):
        found = subprocess.run(  # noqa: S603 - the same command as was typed
            [*program, REHEARSE], env=same, capture_output=True, text=True, check=False
        )
    if found.returncode:
        screen.err.print(found.stderr)
        return found.returncode
    own, total, which = found.stdout.split(maxsplit=2)
    screen.line(f"stop {own} of {total} at {place}: {which.format(options.node)}", "bold")
    return subprocess.call([*program, own], env=same)  # noqa: S603


def _place(step: str, explanation: Explanation) -> Place:
    """The first place of the step at which pdb can stop."""
    stops = [each for each in explanation.places if each.stop is not None and each.line]
    for place in stops:
        if place.what == step:
            return place
    steps = ", ".join(dict.fromkeys(each.what for each in stops))
    only = any(place.what == step for place in explanation.places)
    what = f"the step {step!r} of {explanation.node} is C++" if only else f"there is no step {step}"
    raise Refusal(what, kind="wrong use", do=f"name one of: {steps}")


class Debugger(pdb.Pdb):
    """pdb that releases a frame when it continues, so that no tensor outlives its call."""

    def forget(self) -> None:
        """Release the frame's locals too, which Python 3.11 keeps."""
        super().forget()
        self.curframe_locals: dict[str, object] = {}


class Rehearsal(Bdb):
    """Notes where pdb would stop, and continues."""

    def __init__(self) -> None:
        super().__init__()
        self.stops: list[Stop] = []

    def user_line(self, frame: FrameType) -> None:
        """Note the stop."""
        self.stops.append(stop_in(frame))
        self.set_continue()


def stop_at(options: Options, file: str, line: str, condition: str, which: str) -> int:
    """Capture, cut and explain under pdb; stop at the `which`-th time, or find the number."""
    debugger = Rehearsal() if which == REHEARSE else Debugger()
    wrong = debugger.set_break(file, int(line), cond=condition or None)
    if wrong:
        raise Refusal(f"pdb cannot stop at {file}:{line}: {wrong}", kind="wrong use")
    debugger.get_breaks(file, int(line))[0].ignore = max(int(which) - 1, 0)
    debugger.reset()
    debugger.botframe = sys._getframe()  # else it stops at the very first line
    debugger.set_continue()
    sys.settrace(debugger.trace_dispatch)
    try:
        with timed_cut(options, Screen(json=True)) as found:
            explained = found.cut.explain(options.node)
        sys.settrace(None)
        if isinstance(debugger, Rehearsal):
            _print_stop(debugger.stops, explained, found.program.recorded)
    except (BdbQuit, Refusal):
        if not debugger.quitting:
            raise
    finally:
        sys.settrace(None)
    return 0


def _print_stop(stops: list[Stop], explained: Explanation, recorded: Recording) -> None:
    """Print the number of the node's stop, and of all stops."""
    if not stops:
        raise Refusal("the capture does not come there", kind="wrong use", do="take another step")
    own = own_stop(stops, explained.op, recorded)
    sys.stdout.write(f"{own.number} {len(stops)} {SHARED if own.shared else OWN}")
