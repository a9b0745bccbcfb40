"""What a user is shown of a refusal's traceback: the user's lines, without ours and torch's.

The same is done to what the refusal was raised from. `Refusal.with_full_traceback` puts all back.
"""

from contextlib import ContextDecorator

from foretrace import torch_api
from foretrace.errors import Refusal, is_library


class Hiding(ContextDecorator):
    """While inside, and in a function that it decorates: a refusal leaves with the user's lines.

    The frame of the `with` goes too: Python adds the frames above it to a traceback, and not again
    the one that lets an exception go on (3.11 to 3.14).
    """

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Refusal):
            hide(error)


def hide(refusal: Refusal) -> None:
    """Take the frames of libraries out of a refusal's tracebacks, as far as they come by now."""
    refusal.shorten(lambda code: not is_library(code, (torch_api.TORCH_DIR,)))
