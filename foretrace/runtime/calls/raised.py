"""A call in whose graph an operator raised, as Python: the program may have an `except` for it.

What raises then does so with the user's own traceback, and leaves what eager leaves (decision 081).
"""

from collections.abc import Callable
from typing import Any

from foretrace import torch_api


class _Errors(torch_api.TorchDispatchMode):
    """Counts the operators that raise inside."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call it."""
        self.count += 1
        result = func(*args, **kwargs or {})
        self.count -= 1
        return result


def as_python(plain: Callable[..., Any], args: Any, kwargs: Any, error: Exception) -> Any:
    """The result of a program whose graph has raised an error.

    Raises:
        Exception: what the program raises; or the graph's error, if none of the program's operators
            raises: it is one of what has compiled the graph.
    """
    with _Errors() as errors:  # type: ignore[no-untyped-call]
        result = plain(*args, **kwargs)
    if not errors.count:
        error.add_note("foretrace: raised by the compiled graph; no operator of the program raises")
        raise error
    return result
