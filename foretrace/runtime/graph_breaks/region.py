"""`foretrace.region`: a function that may be captured on its own."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from foretrace.errors import Refusal
from foretrace.ir.source.short_tracebacks import Hiding
from foretrace.runtime.graph_breaks.module_redirect import hole_here

F = TypeVar("F", bound=Callable[..., Any])


@Hiding()
def region(fn: F) -> F:
    """Mark a function or method as a piece of programs.

    Where `foretrace.compile` runs the code that calls it as Python, it is captured and compiled on
    its own, as a module is. Anywhere else, in a program that is captured whole too, it is itself.

    Args:
        fn: a function or method.

    Raises:
        Refusal: it is none.
    """
    if not inspect.isfunction(fn):
        raise Refusal(
            f"a {type(fn).__name__} is no region",
            kind="wrong call",
            do="mark a function or a method; modules are pieces anyway",
        )

    @wraps(fn)
    def marked(*args: Any, **kwargs: Any) -> Any:
        hole = hole_here()
        return fn(*args, **kwargs) if hole is None else hole.region(fn, args, kwargs)

    return marked  # type: ignore[return-value]
