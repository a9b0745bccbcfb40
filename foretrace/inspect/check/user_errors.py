"""Exceptions of the user's code as refusals with the user's line."""

from types import TracebackType

from foretrace.errors import Frame, Refusal, Refusing, innermost, user_frame_of
from foretrace.ir.source.call_site import LIBRARY_DIRS


def raised(doing: str, do: str, file: str | None = None) -> Refusing:
    """While inside, an exception becomes a refusal; a refusal stays one.

    Args:
        doing: the beginning of the message: "the program raised".
        do: the remedy.
        file: the user's file, whose lines are preferred to those of what it calls.
    """

    def of(error: BaseException, trace: TracebackType | None) -> Refusal | None:
        if isinstance(error, Refusal):
            return None
        return Refusal(
            f"{doing} {type(error).__name__}: {first_line(error)}",
            kind="program raised",
            at=_frame(error, trace, file),
            do=do,
        )

    return Refusing(of, (Exception, SystemExit))


def _frame(error: BaseException, trace: TracebackType | None, file: str | None) -> Frame | None:
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return Frame(error.filename, error.lineno, "<module>")
    preferred = innermost(trace, lambda code: code.co_filename == file)
    return preferred or user_frame_of(error.__traceback__, LIBRARY_DIRS)


def first_line(error: BaseException) -> str:
    """The first line of its message."""
    return (error.msg if isinstance(error, SyntaxError) else str(error)).partition("\n")[0]
