"""Refusals of views that are used after a write to their memory, which autograd lost."""

from foretrace.errors import Frame, Refusal

KIND = "in-place on view"


def not_tracked(why: str, what: str) -> Refusal:
    """What eager raises of a view that autograd cannot follow through a write."""
    return Refusal(
        f"{why} is {what}, which eager refuses too",
        kind=KIND,
        do="write to a clone, or to the tensor that it is a view of; select or slice, not unbind",
    )


def of_another(at: Frame | None) -> Refusal:
    """A view of an input that is a view itself, of what does not require grad."""
    return Refusal(
        "a view is used after a write to its memory, and eager gives it the history of what"
        " an input is a view of, which does not require grad",
        kind=KIND, at=at, do=("take the view after the write", "or write to a clone"),
    )  # fmt: skip


def of_detached() -> Refusal:
    """A view whose new history ends where there is none."""
    return Refusal(
        "a view is used after a write to its memory and detach_() of what it is a view of: eager"
        " gives it a history that leads nowhere",
        kind=KIND, do="take the view after the detach_(), or use detach()",
    )  # fmt: skip
