"""Small named programs, grouped by what they may break; every one runs at every cut."""

from tests.zoo import (
    aliasing,
    attention,
    foreach,
    functions,
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
    reread,
    state,
    structure,
)
from tests.zoo.registry import CASES, Case

__all__ = [
    "CASES",
    "Case",
    "aliasing",
    "attention",
    "foreach",
    "functions",
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
    "reread",
    "state",
    "structure",
]
