"""The part that records attention: each call of the grid, torch's choice, eager's kernel."""

from collections.abc import Iterator

from tests.gpu.attention import grid, seen
from tests.gpu.child import Circumstances, Finding
from tests.gpu.recorded import kernel_table


def run(given: Circumstances) -> Iterator[Finding]:
    """A row for each part of the grid, and one for the kernels that there are."""
    yield "kernels", "measured", kernel_table()
    for name, rows in grid().items():
        yield name, "measured", [[row, *seen(row, given.device)] for row in rows]
