"""numpy, where it is loaded: foretrace does not need it and does not import it.

torch loads numpy with itself where it is installed. Where it is not loaded, no value of numpy's
can occur, so there is nothing to compare, keep or put back.
"""

import sys
from typing import Any


def numpy() -> Any:
    """The module `numpy` that is loaded; None where there is none, or where it is still loading."""
    found = sys.modules.get("numpy")
    return found if hasattr(found, "ndarray") else None


def is_array(item: object) -> bool:
    """Whether it is an array of numpy's."""
    loaded = numpy()
    return loaded is not None and isinstance(item, loaded.ndarray)


def as_plain(array: Any) -> Any:
    """The same memory as an array of numpy's own class: no method of another class runs for it."""
    plain = numpy().ndarray
    return plain.view(array, plain)
