"""Python's collector rests while a program is captured."""

import gc
from typing import Final

from foretrace import forks
from foretrace.errors import Refusal


class Resting(forks.Shared):
    """Python's collector rests while a thread is inside: nearly all objects of a run are kept."""

    before_it = False
    """whether it was enabled"""

    def begin(self) -> None:
        """Disable it."""
        self.before_it = gc.isenabled()
        gc.disable()

    def end(self) -> None:
        """As it was."""
        (gc.enable if self.before_it else gc.disable)()


UNCOLLECTED: Final = Resting()
"""Of a capture, a cut or its module; there is one collector for all threads"""


def check_whole() -> None:
    """Refuse to capture in a child that was forked in the middle of another thread's capture.

    Raises:
        Refusal: it was. Torch and the modules are as they were, but not all that torch keeps.
    """
    if UNCOLLECTED.cut_off:
        raise Refusal(
            "this process was forked while another thread captured, which took longer than the"
            f" {forks.LONGEST:.0f} s that a fork waits",
            kind="forked",
            do=(
                "fork when no thread captures",
                "or start the process in another way: multiprocessing's spawn or forkserver",
            ),
        )
