"""Training steps, each captured whole, or in part with the reason; by what they are about."""

from tests.steps import (
    accumulation,
    acting,
    adversarial,
    asked,
    by_hand,
    hooked,
    layers,
    learning_to_learn,
    optimizers,
    precision,
    representation,
    schedules,
    shared,
    sizes,
    structures,
    trainers,
    unusual,
)
from tests.steps.registry import STEPS, Step

__all__ = [
    "STEPS",
    "Step",
    "accumulation",
    "acting",
    "adversarial",
    "asked",
    "by_hand",
    "hooked",
    "layers",
    "learning_to_learn",
    "optimizers",
    "precision",
    "representation",
    "schedules",
    "shared",
    "sizes",
    "structures",
    "trainers",
    "unusual",
]
