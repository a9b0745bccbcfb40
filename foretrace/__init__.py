"""One tree of your PyTorch program; every graph is a cut through it."""

from foretrace.compat.program import Cut, Program, capture
from foretrace.errors import Refusal
from foretrace.targets.profile import Target

__all__ = ["Cut", "Program", "Refusal", "Target", "capture"]
