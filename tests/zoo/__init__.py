"""Small named programs, grouped by what they may break; every one runs at every cut."""

from tests.zoo import (
    aliasing,
    attention,
    gradients,
    indexing,
    inplace,
    layers,
    linear,
    losses,
    modes,
    modules,
    numbers,
    randomness,
    state,
    structure,
)
from tests.zoo.registry import CASES, Case

__all__ = [
    "CASES",
    "Case",
    "aliasing",
    "attention",
    "gradients",
    "indexing",
    "inplace",
    "layers",
    "linear",
    "losses",
    "modes",
    "modules",
    "numbers",
    "randomness",
    "state",
    "structure",
]
