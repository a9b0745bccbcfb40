"""Which sizes of the inputs are symbols: `dynamic_shapes` as torch.export takes it, or True."""

from typing import Any

import torch

from foretrace.symbols.sizes import Symbols


class Dynamic:
    """Gives inputs symbolic sizes; this one gives none."""

    def __init__(self, symbols: Symbols) -> None:
        self.symbols = symbols

    def fake(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """The tensor, or a fake one of its type with symbols for dynamic sizes."""
        return tensor


def dynamic_of(dynamic_shapes: Any, symbols: Symbols) -> Dynamic:
    """Read the `dynamic_shapes` argument."""
    return Dynamic(symbols)
