"""Programs that return a leaf that they create, on which another result depends.

Behind a backend that takes graphs no gradient would arrive there: they are refused, and eager's
results are compared by all other routes.
"""

from collections.abc import Callable
from typing import Final

import pytest

import foretrace

NAMES: Final = frozenset({
    "leaves_written_before_they_are_used", "leaf_in_the_memory_of_a_written_input",
    "leaf_in_the_memory_of_another_written_in_part", "leaves_made_inside",
})  # fmt: skip


def check_refused(call: Callable[[], object]) -> None:
    """Fail unless a call by such a backend is refused for the leaf."""
    with pytest.raises(foretrace.Refusal, match="returns a leaf that requires grad") as caught:
        call()
    assert caught.value.kind == "hook"
