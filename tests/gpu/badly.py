"""A part that ends badly, so that the runner can be seen to go on."""

import os
import time
from collections.abc import Iterator

from tests.gpu.child import Circumstances, Finding


def run(given: Circumstances) -> Iterator[Finding]:
    """Abort, or never end."""
    if given.program == "an abort":
        os.abort()
    time.sleep(3600)
    yield "never", "same", ""
