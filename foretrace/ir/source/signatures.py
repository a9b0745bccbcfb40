"""The signature of a function of the program's, whatever its annotations are."""

import inspect
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from torch import nn

if sys.version_info >= (3, 14):
    import annotationlib

    READ: Final = partial(inspect.signature, annotation_format=annotationlib.Format.FORWARDREF)
    """An annotation runs when it is asked for; what it names need not be there, and stays a name"""
else:
    READ: Final = inspect.signature


def signature_of(fn: Callable[..., Any]) -> inspect.Signature:
    """How a function, or the `forward` of a module, is called; its annotations are not run.

    Raises:
        TypeError: it is not callable.
        ValueError: it is written in C, and has none.
    """
    return READ(fn.forward if isinstance(fn, nn.Module) else fn)
