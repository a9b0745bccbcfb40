"""The refusal of a damaged file."""

from typing import Final

from foretrace.errors import Refusal

PROGRAM: Final = "program.json"
"""The member with the records"""


def damaged(member: str, what: str) -> Refusal:
    """The refusal of a damaged file; `member` is where the damage is."""
    return Refusal(
        f"the artifact is damaged: {member}: {what}",
        kind="damaged artifact",
        do="copy it again from where it was saved, or save it again",
    )
