"""What every refusal looks like: what, at which line of the user, near what, and what to do."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import foretrace
from tests.support.unchanged import state_unchanged

HERE = "  # here"
LABEL = re.compile(r"  (at|in|near|do) +(.*)")

Program = Callable[..., Any]


def parts_of(text: str) -> dict[str, str]:
    """The parts of a refusal by label; the first line is `what`."""
    what, *lines = text.splitlines()
    parts, label = {"what": what}, "what"
    for line in lines:
        labelled = LABEL.match(line)
        label, rest = labelled.groups() if labelled else (label, line)
        parts[label] = f"{parts[label]}\n{rest}" if label in parts else rest
    return parts


def guilty_line(fn: Program) -> str:
    """`file:line` of the line marked `# here`."""
    lines, first = inspect.getsourcelines(fn)
    (offset,) = [index for index, line in enumerate(lines) if line.rstrip().endswith(HERE)]
    return f"{Path(inspect.getfile(fn)).name}:{first + offset}"


def check(refusal: foretrace.Refusal, *, at: Program | None = None, near: str = "") -> None:
    """The form is right; the place is the marked line of `at`; `near` points at that op."""
    parts = parts_of(str(refusal))
    assert set(parts) <= {"what", "at", "in", "near", "do"}, parts
    assert parts["what"].strip()
    assert parts["do"].strip(), f"nothing to do is offered:\n{refusal}"
    if at is not None:
        assert guilty_line(at) in parts["at"], str(refusal)
        assert parts["at"].rstrip().endswith(HERE.strip()), "the code itself is shown"
    if near:
        pointed = [line for line in parts["near"].splitlines() if line.lstrip().startswith(">")]
        assert len(pointed) == 1, str(refusal)
        assert near in pointed[0], str(refusal)


def refused(fn: Program, args: Any, kwargs: dict[str, Any] | None = None, **options: Any) -> Any:
    """The refusal of a capture, which left everything as it was."""
    given = args if isinstance(args, tuple) else ()
    with state_unchanged(fn, given), pytest.raises(foretrace.Refusal) as caught:
        foretrace.capture(fn, args, kwargs, **options)
    return caught.value
