"""Tools of `sys.monitoring` that somebody else has."""

from collections.abc import Iterator
from contextlib import contextmanager

from foretrace.python_state.access.events import MONITORING


@contextmanager
def other_tools(*tools: int) -> Iterator[None]:
    """Those with these ids, inside."""
    for tool in tools:
        MONITORING.use_tool_id(tool, "another")
    try:
        yield
    finally:
        for tool in tools:
            MONITORING.set_events(tool, 0)
            MONITORING.free_tool_id(tool)
