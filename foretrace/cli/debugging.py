"""`foretrace explain --break`: the program is captured again under pdb, which stops at a step."""

import pdb  # noqa: T100 - that is what was asked for
import subprocess
import sys
from bdb import BdbQuit

from foretrace.cli.arguments import Options
from foretrace.cli.cuts import made
from foretrace.cli.render import Screen
from foretrace.errors import Refusal
from foretrace.explain.explanation import Explanation, Place

FLAG = "--break"


def again(options: Options, explanation: Explanation) -> int:
    """Capture again in a process of its own, so that nothing is known from the first time."""
    if options.json:
        raise Refusal(f"{FLAG} is for people, --json for programs", kind="wrong use", do="take one")
    place = _place(options.stop, explanation)
    words = list(options.words)
    at = words.index(FLAG) if FLAG in words else words.index(f"{FLAG}={options.stop}")
    del words[at : at + (2 if words[at + 1 : at + 2] == [options.stop] else 1)]
    stop = [str(place.stop), str(place.line), place.condition]
    program = [sys.executable, "-m", "foretrace", *words, "--stop-at", *stop]
    return subprocess.call(program)  # noqa: S603 - the same command as was typed


def _place(step: str, explanation: Explanation) -> Place:
    """The first place of such a step that Python can stop at."""
    stops = [each for each in explanation.places if each.stop is not None and each.line]
    for place in stops:
        if place.what == step:
            return place
    steps = ", ".join(dict.fromkeys(each.what for each in stops))
    only = any(place.what == step for place in explanation.places)
    what = f"the step {step!r} of {explanation.node} is C++" if only else f"there is no step {step}"
    raise Refusal(what, kind="wrong use", do=f"name one of: {steps}")


class Debugger(pdb.Pdb):
    """pdb; when it goes on, it holds nothing of the frame, so that no tensor outlives its call."""

    def forget(self) -> None:
        """Also the frame's locals, which Python 3.11 keeps."""
        super().forget()
        self.curframe_locals: dict[str, object] = {}


def stop_at(options: Options, file: str, line: str, condition: str) -> int:
    """Capture, cut and explain under pdb."""
    debugger = Debugger()
    wrong = debugger.set_break(file, int(line), cond=condition or None)
    if wrong:
        raise Refusal(f"pdb cannot stop at {file}:{line}: {wrong}", kind="wrong use")
    debugger.reset()
    debugger.botframe = sys._getframe()  # else it stops at the first line of all
    debugger.set_continue()
    sys.settrace(debugger.trace_dispatch)
    try:
        with made(options, Screen(json=True)) as found:
            found.cut.explain(options.node)
    except (BdbQuit, Refusal):
        if not debugger.quitting:
            raise
    finally:
        sys.settrace(None)
    return 0
