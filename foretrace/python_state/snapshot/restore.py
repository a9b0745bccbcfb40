"""All that is kept is left as it was, whatever fails there."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from foretrace import forks, torch_api
from foretrace.errors import Attempt, Refusal
from foretrace.python_state.snapshot.objects import Snapshot


def put_all_back(kept: Iterable[Snapshot]) -> list[str]:
    """Leave everything as it was, whatever fails on the way; gives what could not be, in words.

    A step that an interrupt stopped half way is done again; the interrupt is raised in the end.
    """
    failed: list[str] = []
    interrupt: BaseException | None = None
    attempt = Attempt(BaseException)
    with torch_api.no_torch_function():
        waiting = list(kept)[::-1]
        while waiting:
            with attempt:
                while waiting:
                    waiting[-1].put_back()
                    waiting.pop()
            if attempt.error is None:
                continue
            interrupt = interrupt if isinstance(attempt.error, Exception) else attempt.error
            with attempt:
                waiting[-1].put_back()
            if attempt.error is not None:
                failed.append(f"a {type(waiting[-1].item).__name__} ({attempt.error})")
            waiting.pop()
    if interrupt is not None:
        raise interrupt
    return failed


@contextmanager
def put_back(step: Callable[[], list[str]], *, always: bool) -> Iterator[None]:
    """Do a step of putting back after the block, if it fails or always; say what cannot be done.

    A child that another thread forks inside the block does it, too.

    Raises:
        Refusal: the block ended well, and something could not be put back.
    """
    key = forks.noted(step)
    try:
        yield
    except BaseException as error:
        forks.forgotten(key)
        failed = step()
        if failed and isinstance(error, Refusal):
            error.ways = (*error.ways, left_broken(failed))
        raise
    forks.forgotten(key)
    failed = step() if always else []
    if failed:
        raise Refusal(
            "something that the program changed could not be put back",
            kind="side effect",
            do=left_broken(failed),
        )


def left_broken(failed: list[str]) -> str:
    """What to do with what is not as it was."""
    return f"make anew what could not be put back: {', '.join(failed)}"
