"""What is said of a file that is not as it was written."""

from typing import Final

from foretrace.errors import Refusal

PROGRAM: Final = "program.json"
"""The member that has the records"""


def damaged(member: str, what: str) -> Refusal:
    """The refusal of a file, with the member that is not as it was written."""
    return Refusal(
        f"the artifact is damaged: {member}: {what}",
        kind="damaged artifact",
        do="copy it again from where it was saved, or save it again",
    )
