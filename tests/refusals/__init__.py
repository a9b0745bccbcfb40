"""Programs that are refused: one for each place in foretrace that refuses, with the ways out.

Each case has the program, the line that its refusal names (marked `# here`), the function of
foretrace that raises it, and for each line of `do` the program changed as the line says.
"""

from tests.refusals import (
    asked,
    devices,
    entries,
    gradients,
    holes,
    hooks,
    inside,
    launches,
    levels,
    packing,
    saving,
    state,
    talking,
    tensors,
    trained_exports,
    values,
    wrapped,
)
from tests.refusals.registry import CASES, EXCUSED, Case

__all__ = [
    "CASES",
    "EXCUSED",
    "Case",
    "asked",
    "devices",
    "entries",
    "gradients",
    "holes",
    "hooks",
    "inside",
    "launches",
    "levels",
    "packing",
    "saving",
    "state",
    "talking",
    "tensors",
    "trained_exports",
    "values",
    "wrapped",
]
