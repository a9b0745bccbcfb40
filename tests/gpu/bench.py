"""bench/capture.py and bench/call.py on the device: times, alone on the machine."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

from tests.gpu.child import Circumstances, Finding
from tests.gpu.children import ROOT

COMMANDS: Final = {
    "call": ["bench/call.py", "--calls", "300", "--steps", "5"],
    "capture": ["bench/capture.py", "--repeat", "2", "--groups", "joint;export;one step", "--json"],
}
TAIL: Final = 3000


def run(given: Circumstances) -> Iterator[Finding]:
    """What it prints; of capture.py, a row for each case."""
    command = [sys.executable, *COMMANDS[given.program], "--device", given.device]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        said = f"exit code {done.returncode}: {(done.stderr or done.stdout)[-TAIL:]}"
        yield given.program, "raw", {"said": said, "printed": done.stdout[-TAIL:]}
    if given.program == "call":
        yield "call", "measured", {"said": done.stdout[-TAIL:]}
        return
    for row in json.loads(done.stdout)["rows"] if done.stdout.startswith("{") else ():
        said = f"{row['median']:.3f} s" if "median" in row else f"refused: {row['error']}"
        yield f"{row['model']}: {row['group']}: {row['who']}", "measured", {"said": said, **row}
