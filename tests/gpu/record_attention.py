"""The part that records attention: each call of the grid, torch's choice, eager's kernel."""

from collections.abc import Iterator

from tests.gpu.attention import grid, seen
from tests.gpu.child import Circumstances, Finding
from tests.gpu.recorded import KERNELS, kernel_table


def run(given: Circumstances) -> Iterator[Finding]:
    """One row for a part of the grid, or for the kernels that there are."""
    if given.program == KERNELS:
        yield KERNELS, "measured", kernel_table()
        return
    rows = grid()[given.program]
    yield given.program, "measured", [[row, *seen(row, given.device)] for row in rows]
