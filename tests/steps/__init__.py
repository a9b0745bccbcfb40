"""Training steps, each captured whole, or in part with the reason; by what they are about."""

from tests.steps import optimizers
from tests.steps.registry import STEPS, Step

__all__ = ["STEPS", "Step", "optimizers"]
